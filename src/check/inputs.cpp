#include "check/inputs.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "check/draw/side.hpp"
#include "check/operators.hpp"

namespace onepass::check {
namespace {

// The strides' reach below and above element 0.
struct Extent {
  std::int64_t below = 0, above = 0, elements = 1;
  template <class Data>
  explicit Extent(const BasicTensor<Data>& t) {
    for (int i = 0; i < t.rank; ++i) {
      elements *= t.shape[i];
      (t.stride[i] < 0 ? below : above) += std::max<std::int64_t>(0, t.shape[i] - 1) * t.stride[i];
    }
  }
  std::int64_t span() const { return elements == 0 ? 0 : above - below + 1; }
};

// Allocates all tensors in the layout of the problem and calls the functions that draw their elements.
class Maker {
 public:
  Maker(const Problem& problem, std::uint64_t seed, Distribution distribution, Placement placement)
      : p_(problem), seed_(seed), distribution_(distribution), placement_(placement) {}

  Inputs make() {
    allocate();
    checked(p_.op).draw(p_, in_.tensors, seed_, distribution_);
    if (p_.bool_mask) draw_mask(in_.tensors.bool_mask, seed_);
    finish();
    return std::move(in_);
  }

 private:
  template <class AnyTensor>
  void own(AnyTensor& t) {
    const Extent extent(t);
    in_.buffers.emplace_back(static_cast<std::size_t>(extent.span()) * size_of(t.dtype), placement_);
    t.data = in_.buffers.back().data() -
             (extent.elements == 0 ? 0 : extent.below) * static_cast<std::int64_t>(size_of(t.dtype));
  }
  // Row-major, with the rows 3 elements apart if the seed is odd.
  Tensor side_tensor(DType dtype, int rank, const Dims& shape) const {
    Tensor t;
    t.dtype = dtype;
    t.rank = rank;
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      t.shape[i] = shape[i];
      t.stride[i] = step;
      step = step * std::max<std::int64_t>(shape[i], 1) + (i == rank - 1 && rank > 1 && seed_ % 2 == 1 ? 3 : 0);
    }
    return t;
  }
  // The tensor that the problem describes. If the seed is odd, side tensors are padded and slopes have a batch
  // dimension.
  Tensor tensor_for(const RoleRow& row) const {
    const RoleShape shape = shape_of(p_, row);
    if (row.fit == Fit::leading_optional && seed_ % 2 == 0)
      return side_tensor(shape.dtype, shape.rank - 1, {shape.size[1], 1, 1, 1});
    if (!row.unit_last && !p_.op->described) return side_tensor(shape.dtype, shape.rank, shape.size);
    const ConstTensor as_described = described(p_, row);
    Tensor t;
    t.rank = as_described.rank;
    t.shape = as_described.shape;
    t.stride = as_described.stride;
    t.dtype = as_described.dtype;
    return t;
  }

  void allocate() {
    for_each_role(in_.tensors, [&](const RoleRow& row, auto& tensor) {
      if (!uses(p_, row)) return void(in_.buffers.emplace_back());
      tensor = tensor_for(row);
      if (row.role == Role::v && p_.v_in_k) {
        in_.buffers.emplace_back();
        tensor.data = const_cast<void*>(in_.tensors.k.data);
      } else {
        own(tensor);
      }
    });
    for (const ModBuffer& b : p_.mod_buffers) {
      in_.tensors.mod_buffers.push_back({b.name, side_tensor(b.dtype, b.rank, b.shape)});
      own(in_.tensors.mod_buffers.back().tensor);
    }
    if (p_.op->parts) make_parts();
  }

  // Every second part has rows before heads in memory.
  void make_parts() {
    const std::int64_t b = p_.batch, h = p_.heads_q, s = p_.seq_q;
    for (std::int64_t n = 0; n < p_.partials; ++n) {
      Tensor out = side_tensor(p_.dtype, 4, n % 2 == 0 ? Dims{b, h, s, p_.dim_v} : Dims{b, s, h, p_.dim_v}),
             lse = side_tensor(DType::f32, 3, n % 2 == 0 ? Dims{b, h, s, 1} : Dims{b, s, h, 1});
      in_.tensors.outs.push_back(n % 2 == 0 ? out : out.permuted({0, 2, 1, 3}));
      own(in_.tensors.outs.back());
      in_.tensors.lses.push_back(n % 2 == 0 ? lse : lse.permuted({0, 2, 1}));
      own(in_.tensors.lses.back());
    }
  }

  void finish() {
    in_.attention = attention_of(p_);
    in_.problem = problem_of(p_.op, in_.tensors, in_.attention);
    in_.changed();
    if (placement_ == Placement::middle) return;
    for (std::size_t i = 0; i < in_.buffers.size(); ++i) {
      if (i >= kRoles || !writes(kRoleTable[i], p_.op)) in_.buffers[i].make_read_only();
    }
  }

  const Problem& p_;
  std::uint64_t seed_;
  Distribution distribution_;
  Placement placement_;
  Inputs in_;
};

}  // namespace

std::string_view name_of(Distribution distribution) {
  constexpr std::string_view kNames[] = {"normal", "rising", "one_hot", "huge"};
  return kNames[static_cast<std::size_t>(distribution)];
}

Inputs make_inputs(const Problem& problem, std::uint64_t seed, Distribution distribution, Placement placement) {
  validate(problem);
  if (problem.device.kind != DeviceKind::cpu)
    throw Error(ErrorCode::bad_device,
                text("inputs of a check must be on the CPU (got ", to_string(problem.device), ")"));
  if (problem.varlen && static_cast<std::int64_t>(problem.lengths_q.size()) != problem.batch) {
    throw Error(ErrorCode::bad_value,
                text("\"", to_string(problem), "\" must give the lengths of its sequences: varlen=..."));
  }
  // The oracle and the rule visit each of them, also where there is nothing to compute.
  constexpr std::int64_t kMostVisited = 1 << 26;
  const std::int64_t heads = problem.batch * std::max(problem.heads_q, problem.heads_kv);
  const std::int64_t visited = std::max({heads, problem.m, problem.n});
  want(visited <= kMostVisited, ErrorCode::unsupported, "a problem to check must have at most ", kMostVisited,
       " heads in all sequences, and rows of a matrix (got ", visited, ")");
  return Maker(problem, seed, distribution, placement).make();
}

}  // namespace onepass::check
