// Tasks that race with each other: ./dev sanitize tsan must say so, whatever it is told about TBB. Its test passes when
// ThreadSanitizer reports this file.
#include <cmath>
#include <cstdint>

#include "onepass/executor.hpp"

namespace {

double planted = 0;

void task(void*, std::int64_t number, int) {
  double x = static_cast<double>(number);
  for (int i = 0; i < 20000; ++i) x = std::sin(x);  // long enough for other threads to take tasks too
  planted += x;
}

}  // namespace

int main() {
  const auto executor = onepass::make_executor(4);
  for (int call = 0; call < 20; ++call) executor->parallel_for(100, task, nullptr);
  return planted == 0;
}
