#include "libtorch/views.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.hpp"

namespace onepass::libtorch {
namespace {

using torch::headeronly::ScalarType;

template <class From, class Lost>
void refuse_lost(const char* name, const Owned& given, const char* dtype, const Lost& lost) {
  const Owned row = torch::stable::contiguous(given);
  const From* const numbers = static_cast<const From*>(row.const_data_ptr());
  for (std::int64_t i = 0; i < row.numel(); ++i)
    want(!lost(numbers[i]), ErrorCode::bad_value, name, " must be in the range of ", dtype, " (element ", i, " is ",
         numbers[i], ")");
}

// A device's numbers are not waited for.
Owned in_int32(const char* name, const Owned& x) {
  using Limits = std::numeric_limits<std::int32_t>;
  const auto lost = [](std::int64_t n) { return n < Limits::min() || n > Limits::max(); };
  if (x.is_cpu()) refuse_lost<std::int64_t>(name, x, "int32", lost);
  return torch::stable::to(x, ScalarType::Int);
}
Owned in_float32(const char* name, const Owned& x, bool from_float64) {
  const auto lost = [](double n) { return std::isinf(static_cast<float>(n)) && !std::isinf(n); };
  if (x.is_cpu() && from_float64) refuse_lost<double>(name, x, "float32", lost);
  return torch::stable::to(x, ScalarType::Float);
}

}  // namespace

AtenTensorHandle Views::readable(const char* name, AtenTensorHandle tensor, Types types, bool unit_last) {
  const std::int32_t dtype = dtype_of(tensor);
  static const std::int32_t int64 = code_of(DType::i64), float64 = aoti_torch_dtype_float64();
  static const std::int32_t floats[] = {code_of(DType::f16), code_of(DType::bf16), float64};
  if (types == Types::i32 && dtype == int64) tensor = hold(in_int32(name, kept(tensor)));
  if (types == Types::f32 && std::ranges::find(floats, dtype) != std::end(floats))
    tensor = hold(in_float32(name, kept(tensor), dtype == float64));
  const auto sizes = sizes_of(tensor), strides = strides_of(tensor);
  if (unit_last && !sizes.empty() && sizes.back() > 1 && strides.back() != 1)
    tensor = hold(torch::stable::contiguous(kept(tensor)));
  return tensor;
}

Tensor Views::view(const char* name, AtenTensorHandle tensor, const char* accepted, bool writable) {
  meta_ = meta_ || is_meta(tensor);
  return view_of(name, tensor, accepted, writable);
}

}  // namespace onepass::libtorch
