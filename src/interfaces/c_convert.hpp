// From the C structs to the C++ ones, checked: C callers can hand in any number where an enum is meant.
#pragma once
#include "base/text.hpp"
#include "onepass/append.hpp"
#include "onepass/attention.hpp"
#include "onepass/cascade.hpp"
#include "onepass/flat_gemm.hpp"
#include "onepass/linear.hpp"
#include "onepass/onepass.h"
#include "onepass/quantize.hpp"
#include "onepass/softmax.hpp"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

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

inline Launch launch_on(const onepass_executor* executor, void* stream) {  // NULL: the default one
  return {.stream = stream, .executor = executor ? executor->executor.get() : nullptr};
}

// The three parts of a call.
struct Call {
  Tensors tensors;
  Attention attention;
  Launch launch;
  std::string implementation;
};
Call call_from(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v, const onepass_tensor* out,
               const onepass_options* options);

struct Levels {
  std::vector<Call> calls;  // hold the names of implementations
  std::vector<CascadeLevel> all;
};
Levels levels_from(const onepass_tensor* q, size_t count, const onepass_level* levels, const onepass_tensor* out);

struct AppendCall {
  AppendTensors tensors;
  bool interleaved;
  Launch launch;
};
AppendCall append_from(const onepass_append& append);

struct QuantizeCall {
  Tensor x, y, descale, mean;
  QuantizeOptions options;
  Launch launch;
};
QuantizeCall quantize_from(const onepass_quantize& quantize);

struct SoftmaxCall {
  Tensor x, y, lse, row_lse, bool_mask, dy, dx;
  SoftmaxOptions options;
  Launch launch;
};
SoftmaxCall softmax_from(const onepass_softmax& softmax);

// *pointer, or an Error that names it.
template <class T>
T& given(const char* name, T* pointer) {
  if (!pointer) throw Error(ErrorCode::bad_value, text(name, " must not be NULL"));
  return *pointer;
}

}  // namespace onepass::interfaces
