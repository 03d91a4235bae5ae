// From the C structs to the C++ ones, checked: C callers can hand in any number where an enum is meant.
#pragma once
#include "onepass/attention.hpp"
#include "onepass/onepass.h"

// The opaque types of onepass.h.
struct onepass_executor {
  std::shared_ptr<onepass::Executor> executor;
};
struct onepass_problem {
  onepass::Problem problem;
};
struct onepass_plan {
  onepass::Plan plan;
};

namespace onepass::interfaces {

Tensor tensor_from(const char* name, const onepass_tensor* tensor);           // throws Error if it is NULL
Tensor optional_tensor_from(const char* name, const onepass_tensor* tensor);  // NULL: not given
Options options_from(const onepass_options* options);                         // NULL: the defaults

template <class T>
T& given(const char* name, T* pointer) {
  if (!pointer) throw Error(ErrorCode::bad_value, text(name, " is a null pointer"));
  return *pointer;
}

}  // namespace onepass::interfaces
