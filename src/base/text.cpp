#include "base/text.hpp"

#include <sstream>

namespace onepass {

std::string joined(const TextPiece* pieces, std::size_t count) {
  std::ostringstream out;
  for (std::size_t i = 0; i < count; ++i) pieces[i].print(out, pieces[i].value);
  return out.str();
}

}  // namespace onepass
