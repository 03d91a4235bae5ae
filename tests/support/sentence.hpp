// The sentence of a refusal.
#pragma once
#include <functional>
#include <string>

#include "onepass/error.hpp"

namespace onepass::test {

// The sentence of the onepass::Error that the action throws; "" if it throws none.
inline std::string sentence_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace onepass::test
