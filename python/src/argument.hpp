// Arrays of a call as views.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "onepass/tensor.hpp"
#include "problem/checks/accepted.hpp"
#include "problem/roles.hpp"

namespace onepass::python {

namespace nb = nanobind;
using Array = nb::ndarray<nb::ro>;

inline constexpr std::uint8_t kFloat8E4m3 = 10;  // DLPack's kDLFloat8_e4m3fn

inline DType dtype_of(const char* name, const char* accepted, const Array& a) {
  using Code = nb::dlpack::dtype_code;
  const nb::dlpack::dtype t = a.dtype();
  const auto is = [&](Code code, int bits) {
    return t.code == static_cast<std::uint8_t>(code) && t.bits == bits && t.lanes == 1;
  };
  if (is(Code::Float, 32)) return DType::f32;
  if (is(Code::Float, 16)) return DType::f16;
  if (is(Code::Bfloat, 16)) return DType::bf16;
  if (is(Code::Bool, 8)) return DType::boolean;
  if (is(Code::Int, 32)) return DType::i32;
  if (is(Code::Int, 64) && std::string_view(accepted).ends_with("int64")) return DType::i64;
  if (t.code == kFloat8E4m3 && t.bits == 8 && t.lanes == 1) return DType::f8e4m3;
  const char* const kinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const char* const eights[] = {"_e3m4",     "_e4m3", "_e4m3b11fnuz", "_e4m3fn",
                                "_e4m3fnuz", "_e5m2", "_e5m2fnuz"};  // the codes behind them
  const std::size_t code = t.code, beyond = code - std::size(kinds);
  throw Error(ErrorCode::bad_dtype,
              text(name, " must be ", accepted, " (got ", code < std::size(kinds) ? kinds[code] : "float", int{t.bits},
                   beyond < std::size(eights) ? eights[beyond] : "", ")"));
}

inline Device device_of(const char* name, const Array& a) {
  switch (a.device_type()) {
    case nb::device::cpu::value:
    case nb::device::cuda_host::value: return {};
    case nb::device::cuda::value: return {DeviceKind::cuda, a.device_id()};
    default:
      throw Error(ErrorCode::bad_device,
                  text(name, " must be in CPU or CUDA memory (got DLPack device type ", a.device_type(), ")"));
  }
}

// A tensor argument of a call: the array is kept alive, `view` points into it. None is a tensor that is not given.
// NumPy cannot export bfloat16 and float8, so the package hands over (the same bits as unsigned numbers,), a tuple of
// one.
class Argument {
 public:
  Argument() = default;
  Argument(const char* name, nb::handle object, const char* accepted, bool writable = false) {
    if (object.is_none()) return;
    const bool bits = nb::isinstance<nb::tuple>(object);
    const nb::handle array = bits ? nb::handle(object[nb::int_(0)].ptr()) : object;
    nb::ndarray<> target;  // a capsule of a device can be read once, and is only if it fits
    if (writable && nb::try_cast<nb::ndarray<>>(array, target, false)) array_ = Array(target);
    if (!array_.is_valid() && !nb::try_cast<Array>(array, array_, false)) {
      throw Error(ErrorCode::bad_dtype,
                  text(name, " must export DLPack or a buffer of numbers, with strides of whole elements (got this ",
                       nb::type_name(array.type()).c_str(), ")"));
    }
    if (writable && !target.is_valid())
      throw Error(ErrorCode::bad_value, text(name, " must be writable (got read-only memory)"));
    if (array_.ndim() == 0 || array_.ndim() > kMaxRank) {
      throw Error(ErrorCode::bad_shape,
                  text(name, " must have 1 to ", kMaxRank, " dimensions (got ", array_.ndim(), ")"));
    }
    view.data = const_cast<void*>(array_.data());  // inputs become ConstTensors
    view.rank = static_cast<int>(array_.ndim());
    view.dtype = !bits ? dtype_of(name, accepted, array_) : array_.itemsize() == 1 ? DType::f8e4m3 : DType::bf16;
    view.device = device_of(name, array_);
    for (int i = 0; i < view.rank; ++i) {
      view.shape[i] = static_cast<std::int64_t>(array_.shape(i));
      view.stride[i] = array_.stride(i);
    }
    if (view.elements() == 0) {  // NumPy gives empty arrays stride 0, which would say that they overlap themselves
      for (std::int64_t i = view.rank - 1, step = 1; i >= 0; step *= std::max<std::int64_t>(view.shape[i--], 1))
        view.stride[i] = step;
    }
  }
  // Missing leading dimensions have size 1, as NumPy broadcasts.
  Argument& broadcast_to_rank4() {
    if (!view.given()) return *this;
    for (; view.rank < 4; ++view.rank) {
      for (int i = view.rank; i > 0; --i) {
        view.shape[i] = view.shape[i - 1];
        view.stride[i] = view.stride[i - 1];
      }
      view.shape[0] = 1;
      view.stride[0] = 0;
    }
    return *this;
  }

  Tensor view;

 private:
  Array array_;
};

}  // namespace onepass::python
