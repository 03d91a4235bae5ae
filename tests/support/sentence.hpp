// The sentences of refused calls.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "onepass/error.hpp"

namespace onepass::test {

struct Said {
  ErrorCode code = ErrorCode::ok;
  std::string sentence;
};

// The onepass::Error that the action throws, said; ok and "" if it throws none.
inline Said said_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    return {e.code(), e.what()};
  }
  return {};
}
inline std::string sentence_of(const std::function<void()>& action) { return said_by(action).sentence; }

// Expects an error with this part in its sentence and, where it is given, of this code.
inline void expect_refused(const std::function<void()>& action, std::string_view part,
                           std::optional<ErrorCode> code = {}) {
  const Said said = said_by(action);
  EXPECT_NE(said.code, ErrorCode::ok) << "nothing was thrown, but: " << part;
  EXPECT_NE(said.sentence.find(part), std::string::npos) << said.sentence << "\n  is not: " << part;
  EXPECT_EQ(said.code, code.value_or(said.code)) << said.sentence;
}

}  // namespace onepass::test
