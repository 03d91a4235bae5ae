#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/checked_problem.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/problem.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// Strides of a row-major tensor whose dimensions lie in memory in the given order; size-1 dimensions get 0.
Dims strides_in_order(const Dims& shape, std::initializer_list<int> order) {
  Dims s{};
  std::int64_t step = shape[3];
  s[3] = 1;
  for (int i : order) {
    s[i] = shape[i] > 1 ? step : 0;
    step *= shape[i];
  }
  return s;
}

void set_layout(Problem& p, std::initializer_list<int> order) {
  p.layout = {};
  for (const RoleRow& row : kRoleTable) {
    if (!uses(p, row)) continue;
    if (!row.unit_last) {
      p.layout.*row.layout = row_major(p, row);
      continue;
    }
    // [batch, heads, tokens, dim], packed sequences one behind the other
    Dims shape{};
    for (std::size_t i = 0; i < kMaxRank; ++i) shape[i] = size_of(row.axes[i], p);
    const Form form = forms_of(p).of(row);
    if (form == Form::packed) shape[0] = 1, shape[2] = size_of(row.packed[0], p);
    if (form == Form::paged) shape[0] = p.pages, shape[2] = p.page_size;
    // Packed and paged tensors are row-major as [.., tokens, heads, dim].
    p.layout.*row.layout = form == Form::batched ? strides_in_order(shape, order) : strides_in_order(shape, {1, 2, 0});
  }
  if (p.v_in_k) p.layout.v = p.layout.k;
}

}  // namespace

double Problem::effective_scale() const {
  if (!scale) return op->unit_scale ? 1.0 : 1.0 / std::sqrt(static_cast<double>(dim_qk));
  return op->unit_scale || std::abs(*scale) >= 0x1p-126 ? *scale : 0.0;
}

void set_contiguous(Problem& p) { set_layout(p, {2, 1, 0}); }
void set_bshd(Problem& p) { set_layout(p, {1, 2, 0}); }

void validate(const Problem& p) { (void)checked_mods(p); }

Mods checked_mods(const Problem& p) {
  for (const auto& [name, n] : {std::pair{"batch", p.batch},
                                {"heads_q", p.heads_q},
                                {"heads_kv", p.heads_kv},
                                {"seq_q", p.seq_q},
                                {"seq_k", p.seq_k},
                                {"total_q", p.total_q},
                                {"total_k", p.total_k}}) {
    want(n >= 0, ErrorCode::bad_shape, name, " must be 0 or more (got ", n, ")");
  }
  const Operator& op = *p.op.row;
  const auto has = [&](Role role) { return use_of(row_of(role), p.op) != Use::none; };
  want(is_said(op.words, "log") || (!p.log && !p.lse_only && !p.row_lse), ErrorCode::bad_value, op.call,
       " does not support log, lse_only or row_lse; softmax does");
  want(has(Role::descale) || (p.descale == DescaleSpec{} && !p.hadamard && !p.centered), ErrorCode::bad_value, op.call,
       " does not support descale, hadamard or mean; quantize does");
  want(op.matrices || (p.m == 0 && p.n == 0 && p.k == 0 && !p.column_bias), ErrorCode::bad_value, op.call,
       " does not support m, n, k or column_bias; flat_gemm and linear do");
  want(has(Role::k_new) || !(p.rotary || p.with_q || p.interleaved || p.rotary_dim != 0 || p.positions != 0),
       ErrorCode::bad_value, op.call, " does not support rotary; append_kv does");
  want(is_said(op.words, "fp8") || !p.fp8, ErrorCode::bad_value, op.call, " does not support fp8; attention does");
  want(has(Role::row_max) || !p.want_row_max, ErrorCode::bad_value, op.call,
       " does not support row_max; attention does");
  want(has(Role::entropy) || !p.entropy, ErrorCode::bad_value, op.call,
       " does not support entropy; attention and attention_backward do");
  want(has(Role::dentropy) || !p.dentropy, ErrorCode::bad_value, op.call,
       " does not support dentropy; attention_backward does");
  want(has(Role::tq) || !(p.tbias || p.tsinks || p.want_tlse), ErrorCode::bad_value, op.call,
       " does not support tbias, tsinks or tlse; jvp does");
  want(has(Role::tdout) || !(p.tdout || p.tdlse), ErrorCode::bad_value, op.call,
       " does not support tdout or tdlse; backward_jvp does");
  validate_unified_max(p);
  Mods mods = op.validate(p);
  if (!has(Role::dq) && !has(Role::tdq))
    want(p.gradients == Gradients{} && p.grad_dtype == DType::f32 && !p.dlse && !p.deterministic, ErrorCode::bad_value,
         op.call, " does not support gradients, grad_dtype, dlse or deterministic; attention_backward does");
  return mods;
}

constinit const std::array<const Operator*, 11> kOperators{&kForward,     &kMerge,   &kBackward,        &kJvp,
                                                           &kBackwardJvp, &kSoftmax, &kSoftmaxBackward, &kQuantize,
                                                           &kFlatGemm,    &kLinear,  &kAppend};

}  // namespace onepass
