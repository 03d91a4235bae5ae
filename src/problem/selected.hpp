// A choice that may be refused.
#pragma once
#include <optional>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace onepass {

struct Refused {
  std::string sentence;
};
template <class... Parts>
Refused refuse(const Parts&... parts) {
  return {text(parts...)};
}

// A value, or the sentence that refuses it. value() throws the sentence.
template <class T>
class Selected {
 public:
  Selected(T value) : value_(std::move(value)) {}
  Selected(Refused refused) : refusal_(std::move(refused.sentence)) {}

  explicit operator bool() const { return value_.has_value(); }
  const T& operator*() const { return *value_; }
  T& operator*() { return *value_; }
  const T* operator->() const { return &*value_; }
  T& value() {
    want(value_.has_value(), ErrorCode::unsupported, refusal_);
    return *value_;
  }
  const std::string& refusal() const { return refusal_; }

 private:
  std::optional<T> value_;
  std::string refusal_;
};

}  // namespace onepass
