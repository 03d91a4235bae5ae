#include "libtorch/values.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/text.hpp"

// From PyTorch 2.13 on.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace onepass::libtorch {

void check(AOTITorchError error, const char* call) {
  if (error == TORCH_SUCCESS) return;
  const char* const said =
      torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace() : nullptr;
  throw Error(ErrorCode::internal, text("PyTorch: ", said ? said : "a call failed", " (", call, ")"));
}
#define CHECK(call) check(call, #call)

// ------------------------------------------------------------------------------------------------------ arguments
namespace {

void release(Kind kind, StableIValue value) {
  using torch::stable::detail::to;
  switch (kind) {
    case Kind::tensor: aoti_torch_delete_tensor_object(to<AtenTensorHandle>(value)); break;
    case Kind::text: torch_delete_string(to<StringHandle>(value)); break;
    case Kind::tensors: {
      const auto list = to<StableListHandle>(value);
      std::size_t size = 0;
      torch_list_size(list, &size);
      for (std::size_t i = 0; i < size; ++i) {
        StableIValue item = 0;
        if (torch_list_get_item(list, i, &item) == TORCH_SUCCESS) release(Kind::tensor, item);
      }
      torch_delete_list(list);
      break;
    }
    case Kind::integers:
    case Kind::booleans: torch_delete_list(to<StableListHandle>(value)); break;
    default: break;
  }
}

}  // namespace

Arguments::Arguments(const StableIValue* stack, std::span<const Item> items) : items_(items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    given_[i] = true;
    values_[i] = stack[i];
    if (!items[i].optional()) continue;
    auto* const held = torch::stable::detail::to<StableIValue*>(stack[i]);
    given_[i] = held != nullptr;
    if (held) values_[i] = *held;
    delete held;
  }
}

Arguments::~Arguments() {
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (given_[i]) release(items_[i].kind(), values_[i]);
}

std::vector<StableIValue> Arguments::list(int i) const {
  std::size_t size = 0;
  CHECK(torch_list_size(as<StableListHandle>(i), &size));
  std::vector<StableIValue> all(size);
  for (std::size_t n = 0; n < size; ++n) CHECK(torch_list_get_item(as<StableListHandle>(i), n, &all[n]));
  return all;
}

std::vector<AtenTensorHandle> Arguments::tensors(int i) const {
  std::vector<AtenTensorHandle> all;
  if (given(i))
    for (const StableIValue x : list(i)) all.push_back(torch::stable::detail::to<AtenTensorHandle>(x));
  return all;
}

std::vector<std::int64_t> Arguments::integers(int i) const {
  std::vector<std::int64_t> all;
  const bool flags = items_[static_cast<std::size_t>(i)].kind() == Kind::booleans;
  if (given(i))
    for (const StableIValue x : list(i))
      all.push_back(flags ? torch::stable::detail::to<bool>(x) : torch::stable::detail::to<std::int64_t>(x));
  return all;
}

std::optional<std::string_view> Arguments::text(int i) const {
  if (!given(i)) return {};
  std::size_t size = 0;
  const char* data = nullptr;
  CHECK(torch_string_length(as<StringHandle>(i), &size));
  CHECK(torch_string_c_str(as<StringHandle>(i), &data));
  return std::string_view(data, size);
}

StableIValue result(const Owned& tensor) { return torch::stable::detail::from(tensor); }

// -------------------------------------------------------------------------------------------------------- tensors
namespace {

struct Code {
  std::int32_t code;
  const char* name;
  std::optional<DType> dtype;  // none: the library does not have it
};
const std::vector<Code>& codes() {
  static const std::vector<Code> all = {{aoti_torch_dtype_float32(), "float32", DType::f32},
                                        {aoti_torch_dtype_bfloat16(), "bfloat16", DType::bf16},
                                        {aoti_torch_dtype_float16(), "float16", DType::f16},
                                        {aoti_torch_dtype_float8_e4m3fn(), "float8_e4m3fn", DType::f8e4m3},
                                        {aoti_torch_dtype_int32(), "int32", DType::i32},
                                        {aoti_torch_dtype_int64(), "int64", DType::i64},
                                        {aoti_torch_dtype_bool(), "bool", DType::boolean},
                                        {aoti_torch_dtype_float64(), "float64", {}},
                                        {aoti_torch_dtype_uint8(), "uint8", {}},
                                        {aoti_torch_dtype_int8(), "int8", {}},
                                        {aoti_torch_dtype_int16(), "int16", {}},
                                        {aoti_torch_dtype_complex64(), "complex64", {}},
                                        {aoti_torch_dtype_complex128(), "complex128", {}},
                                        {aoti_torch_dtype_float8_e5m2(), "float8_e5m2", {}}};
  return all;
}
const Code& code_of(std::int32_t code) {
  static const Code unknown{-1, "another dtype", {}};
  for (const Code& known : codes())
    if (known.code == code) return known;
  return unknown;
}

std::int32_t device_type(AtenTensorHandle tensor) {
  std::int32_t type = 0;
  CHECK(aoti_torch_get_device_type(tensor, &type));
  return type;
}
std::int32_t device_index(AtenTensorHandle tensor) {
  std::int32_t index = 0;
  CHECK(aoti_torch_get_device_index(tensor, &index));
  return index;
}

Device device_of(const char* name, AtenTensorHandle tensor) {
  static const std::int32_t cpu = aoti_torch_device_type_cpu(), cuda = aoti_torch_device_type_cuda();
  const std::int32_t type = device_type(tensor);
  if (type == cuda) return {DeviceKind::cuda, device_index(tensor)};
  if (type != cpu && !is_meta(tensor))
    throw Error(ErrorCode::bad_device,
                text(name, " must be in CPU or CUDA memory (got PyTorch's device type ", type, ")"));
  return {};
}

}  // namespace

std::int32_t code_of(DType dtype) {
  for (const Code& known : codes())
    if (known.dtype == dtype) return known.code;
  throw Error(ErrorCode::internal, "a dtype has no code of PyTorch's");
}

bool is_meta(AtenTensorHandle tensor) {
  static const std::int32_t meta = aoti_torch_device_type_meta();
  return device_type(tensor) == meta;
}
std::int32_t dtype_of(AtenTensorHandle tensor) {
  std::int32_t code = 0;
  CHECK(aoti_torch_get_dtype(tensor, &code));
  return code;
}
const char* dtype_name(AtenTensorHandle tensor) { return code_of(dtype_of(tensor)).name; }
static std::size_t rank_of(AtenTensorHandle tensor) {
  std::int64_t rank = 0;
  CHECK(aoti_torch_get_dim(tensor, &rank));
  return static_cast<std::size_t>(rank);
}
std::span<const std::int64_t> sizes_of(AtenTensorHandle tensor) {
  std::int64_t* sizes = nullptr;
  CHECK(aoti_torch_get_sizes(tensor, &sizes));
  return {sizes, rank_of(tensor)};
}
std::span<const std::int64_t> strides_of(AtenTensorHandle tensor) {
  std::int64_t* strides = nullptr;
  CHECK(aoti_torch_get_strides(tensor, &strides));
  return {strides, rank_of(tensor)};
}

Tensor view_of(const char* name, AtenTensorHandle tensor, const char* accepted, bool writable) {
  const auto sizes = sizes_of(tensor), strides = strides_of(tensor);
  want(!sizes.empty() && sizes.size() <= kMaxRank, ErrorCode::bad_shape, name, " must have 1 to ", kMaxRank,
       " dimensions (got ", sizes.size(), ")");
  Tensor view;
  const Code& code = code_of(dtype_of(tensor));
  want(code.dtype && (code.dtype != DType::i64 || std::string_view(accepted).ends_with("int64")), ErrorCode::bad_dtype,
       name, " must be ", accepted, " (got ", code.name, ")");
  view.dtype = *code.dtype;
  view.device = device_of(name, tensor);
  view.rank = static_cast<int>(sizes.size());
  std::ranges::copy(sizes, view.shape.begin());
  std::ranges::copy(strides, view.stride.begin());
  if (view.elements() == 0) {  // such strides may say that it overlaps itself
    for (std::int64_t i = view.rank - 1, step = 1; i >= 0; step *= std::max<std::int64_t>(view.shape[i--], 1))
      view.stride[i] = step;
  }
  if (is_meta(tensor)) return view;
  if (writable) {
    CHECK(torch_get_mutable_data_ptr(tensor, &view.data));
  } else {
    const void* data = nullptr;
    CHECK(torch_get_const_data_ptr(tensor, &data));
    view.data = const_cast<void*>(data);  // becomes a ConstTensor
  }
  return view;
}

Owned kept(AtenTensorHandle tensor) {
  AtenTensorHandle another = nullptr;
  CHECK(aoti_torch_new_tensor_handle(tensor, &another));
  return Owned(another);
}

Owned empty(std::span<const std::int64_t> sizes, std::span<const std::int64_t> strides, std::int32_t dtype,
            AtenTensorHandle like) {
  std::vector<std::int64_t> steps(strides.begin(), strides.end());
  if (steps.empty()) {
    steps.resize(sizes.size());
    std::int64_t step = 1;
    for (std::size_t i = sizes.size(); i-- > 0; step *= std::max<std::int64_t>(sizes[i], 1)) steps[i] = step;
  }
  AtenTensorHandle made = nullptr;
  CHECK(aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), steps.data(), dtype,
                                 device_type(like), device_index(like), &made));
  return Owned(made);
}

Owned empty_in_order(std::span<const std::int64_t> sizes, std::int32_t dtype, AtenTensorHandle like) {
  const auto given = strides_of(like);
  if (given.size() != sizes.size() || std::ranges::find(given, 0) != given.end()) return empty(sizes, {}, dtype, like);
  std::vector<std::size_t> order(sizes.size());  // from the slowest to the fastest
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end() - 1,
                   [&](std::size_t a, std::size_t b) { return std::abs(given[a]) > std::abs(given[b]); });
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0; step *= std::max<std::int64_t>(sizes[order[i]], 1))
    strides[order[i]] = step;
  return empty(sizes, strides, dtype, like);
}

Owned empty_like(AtenTensorHandle like) {
  bool contiguous = false;
  CHECK(aoti_torch_is_contiguous(like, &contiguous));
  return contiguous ? empty(sizes_of(like), {}, dtype_of(like), like) : torch::stable::empty_like(kept(like));
}

}  // namespace onepass::libtorch
