// The contents of an XLA call frame in the library's types: attributes, buffers, and the device with its stream and
// memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/text.hpp"
#include "onepass/onepass.hpp"
#include "xla_ffi.hpp"

namespace onepass::python {

// The options of a call by name, as jax.py passes them.
class Options {
 public:
  explicit Options(const xla::Attributes& attributes) : attributes_(attributes) {}

  std::string_view string(std::string_view name) const {
    const auto* bytes = static_cast<const xla::Bytes*>(value(name, xla::AttributeKind::string));
    return {bytes->data, bytes->size};
  }
  bool boolean(std::string_view name) const { return scalar<bool>(name, xla::Type::pred); }
  std::int64_t integer(std::string_view name) const { return scalar<std::int64_t>(name, xla::Type::s64); }
  double number(std::string_view name) const { return scalar<double>(name, xla::Type::f64); }

 private:
  const void* value(std::string_view name, xla::AttributeKind kind) const {
    for (std::int64_t i = 0; i < attributes_.size; ++i) {
      const xla::Bytes& found = *attributes_.names[i];
      if (std::string_view(found.data, found.size) == name && attributes_.kinds[i] == kind)
        return attributes_.values[i];
    }
    throw Error(ErrorCode::internal, text("the custom call has no attribute ", name, " of the expected kind"));
  }
  template <class T>
  T scalar(std::string_view name, xla::Type type) const {
    const auto* found = static_cast<const xla::Scalar*>(value(name, xla::AttributeKind::scalar));
    want(found->dtype == type, ErrorCode::internal, "attribute ", name, " is of XLA's type ", int(found->dtype));
    T result;
    std::memcpy(&result, found->value, sizeof result);
    return result;
  }

  const xla::Attributes& attributes_;
};

inline DType dtype_of(std::string_view name, xla::Type type) {
  switch (type) {
    case xla::Type::f32: return DType::f32;
    case xla::Type::f16: return DType::f16;
    case xla::Type::bf16: return DType::bf16;
    case xla::Type::f8e4m3fn: return DType::f8e4m3;
    case xla::Type::pred: return DType::boolean;
    case xla::Type::s32: return DType::i32;
    default:
      throw Error(ErrorCode::bad_dtype, text(name, " has XLA type ", int(type), ", which onepass does not support"));
  }
}

inline Tensor view_of(std::string_view name, const xla::Buffer& buffer, Device device) {
  want(buffer.rank > 0 && buffer.rank <= kMaxRank, ErrorCode::bad_shape, name, " must have 1 to ", kMaxRank,
       " dimensions (got ", buffer.rank, ")");
  Tensor view;
  view.data = buffer.data;
  view.rank = static_cast<int>(buffer.rank);
  view.dtype = dtype_of(name, buffer.dtype);
  view.device = device;
  std::int64_t step = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.shape[i] = buffer.dims[i];
    view.stride[i] = step;
    step *= std::max<std::int64_t>(buffer.dims[i], 1);
  }
  return view;
}

// Calls with(name, view) for each of a call's buffers and the word of `names` that names it.
template <class With>
void for_each_buffer(std::string_view names, const xla::Buffers& given, Device device, const With& with) {
  for (std::int64_t i = 0; i < given.size; ++i) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    with(name, view_of(name, *static_cast<const xla::Buffer*>(given.buffers[i]), device));
  }
}

// Services of XLA on a device.
class Runtime {
 public:
  explicit Runtime(const xla::CallFrame& frame) : api_(*frame.api), context_(frame.context) {}
  ~Runtime() {
    if (!memory_.data()) return;
    xla::MemoryFree free{{sizeof free, nullptr}, context_, memory_.size(), memory_.data()};
    if (xla::Error* error = api_.memory_free(&free)) message_of(error);
  }
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Device device() const {
    want(api_.head.struct_size >= sizeof(xla::Api) && api_.device_get, ErrorCode::bad_device,
         "this jaxlib does not say on which device it calls; 0.6 and later do");
    xla::DeviceGet device{{sizeof device, nullptr}, context_, 0};
    check(api_.device_get(&device));
    return {DeviceKind::cuda, device.ordinal};
  }
  void* stream() const {
    xla::StreamGet stream{{sizeof stream, nullptr}, context_, nullptr};
    check(api_.stream_get(&stream));
    return stream.stream;
  }
  // Given back when the call has been enqueued: XLA reuses memory in the order of its stream. It promises no alignment
  // beyond kXlaAlignment, and refuses to be asked for more (0.10.2).
  std::span<std::byte> workspace(std::size_t bytes) {
    constexpr std::size_t kXlaAlignment = 16, kAlignment = 256;
    if (bytes == 0) return {};
    const std::size_t size = bytes + kAlignment - kXlaAlignment;
    xla::MemoryAllocate memory{{sizeof memory, nullptr}, context_, size, kXlaAlignment, nullptr};
    check(api_.memory_allocate(&memory), ErrorCode::out_of_memory);
    memory_ = {static_cast<std::byte*>(memory.data), size};
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory.data) % kAlignment;
    return memory_.subspan(past == 0 ? 0 : kAlignment - past, bytes);
  }

 private:
  std::string message_of(xla::Error* error) const {
    xla::ErrorGetMessage get{{sizeof get, nullptr}, error, nullptr, 0};
    api_.error_get_message(&get);
    const std::string message = get.message ? get.message : "";
    xla::ErrorDestroy destroy{{sizeof destroy, nullptr}, error};
    api_.error_destroy(&destroy);
    return message;
  }
  void check(xla::Error* error, ErrorCode code = ErrorCode::device_failure) const {
    if (error) throw Error(code, text("XLA: ", message_of(error)));
  }

  const xla::Api& api_;
  xla::Context* context_;
  std::span<std::byte> memory_;
};

}  // namespace onepass::python
