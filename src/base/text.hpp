// Sentences put together from values.
#pragma once
#include <sstream>
#include <string>

#include "onepass/error.hpp"

namespace onepass {

// Joins its arguments as `<<` prints them: Error(code, text("k has ", n, " heads")).
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// The sentence is put together only when it is needed: every call checks its tensors, and a text() costs 0.3 us.
template <class... Parts>
void want(bool ok, ErrorCode code, const Parts&... parts) {
  if (!ok) throw Error(code, text(parts...));
}

}  // namespace onepass
