// The C ABI of the operators beside attention.
#include <vector>

#include "base/text.hpp"
#include "interfaces/c_guarded.hpp"
#include "onepass/merge.hpp"

namespace onepass::interfaces {
namespace {

// The tensors of an array, such as lses[0].
std::vector<ConstTensor> parts_from(const char* name, std::size_t count, const onepass_tensor* tensors) {
  std::vector<ConstTensor> parts;
  for (std::size_t i = 0; i < count; ++i)
    parts.push_back(tensor_from(text(name, "[", i, "]").c_str(), &given(name, tensors) + i));
  return parts;
}

}  // namespace
}  // namespace onepass::interfaces

using namespace onepass;
using namespace onepass::interfaces;

extern "C" {

onepass_code onepass_append_init(onepass_append* append, size_t size) {
  return guarded([&] { set_defaults("append", append, size, onepass_append{}); });
}
onepass_code onepass_softmax_init(onepass_softmax* softmax, size_t size) {
  return guarded([&] {
    onepass_softmax defaults{};
    defaults.scale = 1;
    set_defaults("softmax", softmax, size, defaults);
  });
}
onepass_code onepass_quantize_init(onepass_quantize* quantize, size_t size) {
  return guarded([&] { set_defaults("quantize", quantize, size, onepass_quantize{}); });
}

onepass_code onepass_merge(size_t count, const onepass_tensor* outs, const onepass_tensor* lses,
                           const onepass_tensor* out, const onepass_tensor* lse, onepass_executor* executor) {
  return onepass_merge_on_stream(count, outs, lses, out, lse, executor, nullptr);
}
onepass_code onepass_merge_on_stream(size_t count, const onepass_tensor* outs, const onepass_tensor* lses,
                                     const onepass_tensor* out, const onepass_tensor* lse, onepass_executor* executor,
                                     void* stream) {
  return guarded([&] {
    onepass::merge(parts_from("outs", count, outs), parts_from("lses", count, lses), tensor_from("out", out),
                   optional_tensor_from("lse", lse), launch_on(executor, stream));
  });
}

onepass_code onepass_merge_lse(size_t count, const onepass_tensor* lses, const onepass_tensor* lse,
                               onepass_executor* executor, void* stream) {
  return guarded(
      [&] { merge_lse(parts_from("lses", count, lses), tensor_from("lse", lse), launch_on(executor, stream)); });
}

onepass_code onepass_append_kv(const onepass_append* append) {
  return guarded([&] {
    const AppendCall call = append_from(given("append", append));
    append_kv(call.tensors, call.interleaved, call.launch);
  });
}

onepass_code onepass_quantize_rows(const onepass_quantize* quantize) {
  return guarded([&] {
    const QuantizeCall c = quantize_from(given("quantize", quantize));
    onepass::quantize(c.x, c.y, c.descale, c.mean, c.options, c.launch);
  });
}

onepass_code onepass_softmax_forward(const onepass_softmax* softmax) {
  return guarded([&] {
    const SoftmaxCall c = softmax_from(given("softmax", softmax));
    want(!c.dy.given() && !c.dx.given(), ErrorCode::bad_value,
         "onepass_softmax_forward does not accept dy or dx; onepass_softmax_backward does");
    if (!c.row_lse.given()) return onepass::softmax(c.x, c.y, c.lse, c.options, c.bool_mask, c.launch);
    want(!c.lse.given(), ErrorCode::bad_value, "row_lse requires y and does not support lse");
    softmax_piece(c.x, c.row_lse, c.y, c.options, c.bool_mask, c.launch);
  });
}
onepass_code onepass_softmax_backward(const onepass_softmax* softmax) {
  return guarded([&] {
    const SoftmaxCall c = softmax_from(given("softmax", softmax));
    want(!c.x.given() && !c.lse.given() && !c.row_lse.given() && !c.bool_mask.given(), ErrorCode::bad_value,
         "onepass_softmax_backward does not accept x, lse, row_lse or bool_mask");
    softmax_backward(c.y, c.dy, c.dx, c.options, c.launch);
  });
}

onepass_code onepass_flat_gemm(const onepass_tensor* x, const onepass_tensor* w, const onepass_tensor* y,
                               const onepass_tensor* column_bias, onepass_executor* executor, void* stream) {
  return guarded([&] {
    flat_gemm(tensor_from("x", x), tensor_from("w", w), tensor_from("y", y),
              optional_tensor_from("column_bias", column_bias), launch_on(executor, stream));
  });
}

onepass_code onepass_linear(const onepass_tensor* x, const onepass_tensor* w, const onepass_tensor* y,
                            const onepass_tensor* column_bias, onepass_executor* executor, void* stream) {
  return guarded([&] {
    linear(tensor_from("x", x), tensor_from("w", w), tensor_from("y", y),
           optional_tensor_from("column_bias", column_bias), launch_on(executor, stream));
  });
}

}  // extern "C"
