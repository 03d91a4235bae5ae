// What any user of the installed package can do: describe a problem in one line and read it back.
#include <onepass/onepass.hpp>

#include <cstdio>

int main() {
  const onepass::Problem problem = onepass::parse_problem("fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right");
  std::printf("%s\n", onepass::to_string(problem).c_str());
  return problem.group() == 4 && problem.seq_k == 2048 ? 0 : 1;
}
