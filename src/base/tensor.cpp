#include "onepass/tensor.hpp"

#include <algorithm>
#include <iterator>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"

namespace onepass::inline v0 {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr DTypeRow kDTypes[] = {
    {DType::f32, "fp32", 4},     {DType::f16, "fp16", 2},  {DType::bf16, "bf16", 2}, {DType::f8e4m3, "fp8_e4m3", 1},
    {DType::boolean, "bool", 1}, {DType::i32, "int32", 4}, {DType::i64, "int64", 8},
};
const DTypeRow& row_of(DType dtype) {
  const auto at = static_cast<std::size_t>(dtype);
  if (at >= std::size(kDTypes))
    throw Error(ErrorCode::bad_dtype,
                text("dtype must be a value of DType, 0 to ", std::size(kDTypes) - 1, " (got ", at, ")"));
  return kDTypes[at];
}

// Every function of a Tensor comes here before it walks over the dimensions.
int rank_of(const ConstTensor& t) {
  if (t.rank < 0 || t.rank > kMaxRank)
    throw Error(ErrorCode::bad_shape, text("a tensor must have 0 to ", kMaxRank, " dimensions (got ", t.rank, ")"));
  return t.rank;
}

}  // namespace

std::size_t size_of(DType dtype) { return row_of(dtype).size; }
std::string_view name_of(DType dtype) { return row_of(dtype).name; }
DType dtype_from_name(std::string_view name) {
  const auto* row =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const DTypeRow& r) { return r.name == name; });
  if (row == std::end(kDTypes)) {
    throw Error(ErrorCode::bad_dtype,
                text("dtype must be fp32, fp16, bf16, fp8_e4m3, bool, int32 or int64 (got '", shown(name), "')"));
  }
  return row->dtype;
}

std::string to_string(Device device) {
  if (device.kind > DeviceKind::cuda)
    throw Error(ErrorCode::bad_device,
                text("the device kind must be cpu or cuda (got ", static_cast<int>(device.kind), ")"));
  return device.kind == DeviceKind::cpu ? "cpu" : text("cuda:", device.index);
}

template <class Data>
BasicTensor<Data>::BasicTensor(Data* data_, DType dtype_, std::initializer_list<std::int64_t> shape_, Device device_)
    : data(data_), rank(static_cast<int>(shape_.size())), dtype(dtype_), device(device_) {
  if (shape_.size() > kMaxRank)
    throw Error(ErrorCode::bad_shape,
                text("a tensor must have at most ", kMaxRank, " dimensions (got ", shape_.size(), ")"));
  std::copy(shape_.begin(), shape_.end(), shape.begin());
  std::int64_t step = 1;
  for (int i = rank - 1; i >= 0; --i) {
    stride[i] = step;
    step *= shape[i];
  }
}

template <class Data>
BasicTensor<Data>::BasicTensor(Data* data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                               std::initializer_list<std::int64_t> stride_, Device device_)
    : BasicTensor(data_, dtype_, shape_, device_) {
  if (stride_.size() != shape_.size()) {
    throw Error(ErrorCode::bad_shape, text("a tensor must have one stride for each of its ", shape_.size(),
                                           " sizes (got ", stride_.size(), ")"));
  }
  std::copy(stride_.begin(), stride_.end(), stride.begin());
}

template <class Data>
std::int64_t BasicTensor<Data>::elements() const {
  std::int64_t n = given() ? 1 : 0;
  for (int i = 0; i < rank_of(*this); ++i) n *= shape[i];
  return n;
}

template <class Data>
BasicTensor<Data> BasicTensor<Data>::permuted(std::initializer_list<int> order) const {
  if (static_cast<int>(order.size()) != rank_of(*this)) {
    throw Error(ErrorCode::bad_shape,
                text("a permutation must name all ", rank, " dimensions (got ", order.size(), ")"));
  }
  BasicTensor out = *this;
  int i = 0;
  unsigned seen = 0;
  for (int from : order) {
    if (from < 0 || from >= rank || (seen >> from & 1u)) {
      throw Error(ErrorCode::bad_value,
                  text("a permutation must name each dimension from 0 to ", rank - 1, " once (got ", from, ")"));
    }
    seen |= 1u << from;
    out.shape[i] = shape[from];
    out.stride[i++] = stride[from];
  }
  return out;
}

template struct BasicTensor<void>;
template struct BasicTensor<const void>;

std::string shape_text(const ConstTensor& tensor) {
  std::string s = "[";
  for (int i = 0; i < rank_of(tensor); ++i) s += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  return s + "]";
}

}  // namespace onepass::inline v0
