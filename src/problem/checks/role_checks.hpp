// The tensors of a call one after the other, each by its row: dtype, rank, strides, and sizes that meet those of the
// tensors before it.
#pragma once
#include <array>
#include <cstdint>

#include "problem/roles.hpp"

namespace onepass {

class RoleChecks {
 public:
  RoleChecks(Op op, const Tensors& tensors, const Forms& forms)
      : op_(op), all_(tensors), forms_(forms), base_(row_of(op->base)) {}

  void check(const RoleRow& row, const ConstTensor& tensor);  // throws Error with one sentence
  std::int64_t operator[](Axis axis) const { return known_[static_cast<std::size_t>(axis)].size; }
  void set(Axis axis, std::int64_t size, const char* by) { known_[static_cast<std::size_t>(axis)] = {size, by}; }

 private:
  void check_dtype(const RoleRow& row, DType dtype) const;
  void check_gradient(const RoleRow& row, const ConstTensor& tensor) const;
  void meet(const RoleRow& row, const ConstTensor& tensor, int dimension, Axis axis);
  struct Known {
    std::int64_t size = 0;
    const char* by = nullptr;  // the first tensor that has such an axis
  };

  const Op op_;
  const Tensors& all_;
  const Forms forms_;
  const RoleRow& base_;  // the others have its device and dtype
  std::array<Known, kAxes> known_{};
};

}  // namespace onepass
