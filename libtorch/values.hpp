// Arguments and tensors of PyTorch's in the library's types, through the C functions of its stable ABI alone.
#pragma once
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "libtorch/schemas.hpp"
#include "onepass/tensor.hpp"

namespace onepass::libtorch {

using Owned = torch::stable::Tensor;  // of PyTorch's

// Throws what PyTorch says about a call of its own that failed.
void check(AOTITorchError error, const char* call);

// The arguments of a call, which it frees at the end.
class Arguments {
 public:
  Arguments(const StableIValue* stack, std::span<const Item> items);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;
  ~Arguments();

  bool given(int i) const { return given_[static_cast<std::size_t>(i)]; }  // not None
  AtenTensorHandle tensor(int i) const { return given(i) ? as<AtenTensorHandle>(i) : nullptr; }
  std::vector<AtenTensorHandle> tensors(int i) const;
  std::optional<std::string_view> text(int i) const;
  std::optional<std::int64_t> integer(int i) const { return optional<std::int64_t>(i); }
  std::optional<std::int32_t> dtype(int i) const { return optional<std::int32_t>(i); }
  std::optional<double> number(int i) const { return optional<double>(i); }
  bool boolean(int i) const { return as<bool>(i); }
  std::vector<std::int64_t> integers(int i) const;  // and booleans

 private:
  template <class T>
  T as(int i) const {
    return torch::stable::detail::to<T>(values_[static_cast<std::size_t>(i)]);
  }
  template <class T>
  std::optional<T> optional(int i) const {
    if (given(i)) return as<T>(i);
    return {};
  }
  std::vector<StableIValue> list(int i) const;

  std::span<const Item> items_;
  std::array<StableIValue, kMaxItems> values_;  // of optional arguments what they hold
  std::array<bool, kMaxItems> given_;
};

// As a result of an operator, which PyTorch takes.
StableIValue result(const Owned& tensor);

// The codes of PyTorch's dtypes.
std::int32_t code_of(DType dtype);

// A tensor's memory. accepted: the element types that a sentence names. data is null on the meta device.
Tensor view_of(const char* name, AtenTensorHandle tensor, const char* accepted, bool writable = false);
bool is_meta(AtenTensorHandle tensor);
std::int32_t dtype_of(AtenTensorHandle tensor);
const char* dtype_name(AtenTensorHandle tensor);
std::span<const std::int64_t> sizes_of(AtenTensorHandle tensor);
std::span<const std::int64_t> strides_of(AtenTensorHandle tensor);

// Another owner of the tensor.
Owned kept(AtenTensorHandle tensor);

// A new tensor on the device of `like`; strides empty: row-major.
Owned empty(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, std::int32_t dtype,
            AtenTensorHandle like);
// In the memory order of `like`, which has the same number of dimensions, the last one fastest.
Owned empty_in_order(std::span<const std::int64_t> sizes, std::int32_t dtype, AtenTensorHandle like);
// torch.empty_like
Owned empty_like(AtenTensorHandle like);

}  // namespace onepass::libtorch
