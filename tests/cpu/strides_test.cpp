// Biases, masks, slopes, sinks, prefix sums and LSEs may have any strides too.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "check/check.hpp"
#include "plan/implementations.hpp"
#include "support/cpu_kernels.hpp"

namespace onepass::check {
namespace {

// Gives `t` new strides: dimension order[0] outermost, all of them times `step`, NaN in between.
void move(Tensors& tensors, const RoleRow& row, Buffer& owner, const std::vector<int>& order, std::int64_t step) {
  ConstTensor t = tensor_of(tensors, row);
  const ConstTensor old = t;
  const std::int64_t size = static_cast<std::int64_t>(size_of(t.dtype));
  Buffer fresh(static_cast<std::size_t>(t.elements() * step * size));
  for (std::size_t i = order.size(); i-- > 0;) {
    t.stride[order[i]] = step;
    step *= t.shape[order[i]];
  }
  t.data = fresh.data();
  const Dims& n = t.shape;
  for (std::int64_t e = 0; e < t.elements(); ++e) {
    std::int64_t from = 0, to = 0, rest = e;
    for (int i = t.rank - 1; i >= 0; rest /= n[i--])
      from += rest % n[i] * old.stride[i], to += rest % n[i] * t.stride[i];
    std::copy_n(static_cast<const std::byte*>(old.data) + from * size, size, fresh.data() + to * size);
  }
  owner = std::move(fresh);
  const auto put = [&](auto& into) {
    into.data = owner.data();
    into.stride = t.stride;
  };
  row.output ? put(tensors.*row.output) : put(tensors.*row.input);
}

TEST(Strides, OfSideInputs) {
  struct Case {
    const char* line;
    Role role;
    std::vector<int> order;
    std::int64_t step;
  };
  constexpr const char* kAll = "b2 h4/2 s{}x133 d40 fp32 bias=bf16:bhqk mask=bhqk alibi sinks lse";
  const Case cases[] = {
      {kAll, Role::bias, {0, 1, 3, 2}, 1},
      {kAll, Role::bias, {3, 2, 1, 0}, 2},
      {kAll, Role::bool_mask, {0, 1, 3, 2}, 1},
      {kAll, Role::bool_mask, {2, 3, 0, 1}, 3},
      {kAll, Role::alibi_slopes, {1, 0}, 2},
      {kAll, Role::sinks, {0}, 5},
      {kAll, Role::lse, {2, 1, 0}, 2},
      {"h4/2 d40 bf16 varlen=3,0,70/5,9,133 alibi lse", Role::cu_seqlens_q, {0}, 3},
      {"h4/2 d40 bf16 varlen=3,0,70/5,9,133 alibi lse", Role::cu_seqlens_k, {0}, 2},
      {"h4/2 d40 bf16 varlen=1,2,1/5,9,1330 alibi lse", Role::lse, {1, 0}, 3},
  };
  for (const Case& c : cases) {
    for (const char* rows : {"2", "70"}) {
      std::string line = c.line;
      if (const std::size_t at = line.find("{}"); at != line.npos) line.replace(at, 2, rows);
      Inputs inputs = make_inputs(parse_problem(line), 1);  // odd: slopes per batch entry
      move(inputs.tensors, row_of(c.role), inputs.buffer(c.role), c.order, c.step);
      inputs.problem = problem_of(inputs.tensors, inputs.attention);
      test::expect_all_right(plan::implementations(), inputs, row_of(c.role).name);
    }
  }
}

// A bias or mask whose shape is whole and whose strides are 0 is a broadcast one.
TEST(Strides, OfZeroBroadcast) {
  for (const char* line : {"b2 h4/2 s2x133 d40 fp32 bias=fp32:bhqk mask=bhqk lse",
                           "b2 h4/2 s70x133 d40 bf16 bias=fp32:bhqk mask=bhqk lse"}) {
    for (int dimension = 0; dimension < 4; ++dimension) {
      Inputs inputs = make_inputs(parse_problem(line), 2);
      for (ConstTensor* t : {&inputs.tensors.bias, &inputs.tensors.bool_mask}) t->stride[dimension] = 0;
      inputs.problem = problem_of(inputs.tensors, inputs.attention);
      test::expect_all_right(plan::implementations(), inputs, text("dimension ", dimension));
    }
  }
}

}  // namespace
}  // namespace onepass::check
