#include "problem/quantize/quantize_problem.hpp"

#include "algebra/philox.hpp"
#include "base/text.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/callers_layout.hpp"
#include "problem/problem_checks.hpp"
#include "problem/roles.hpp"
#include "problem/tensor_checks.hpp"

namespace onepass {
namespace {

// `t` has this shape, 1 standing for `sizes` where `or_one`.
void check_shape(const RoleRow& row, const ConstTensor& t, const Dims& sizes, bool or_one, const char* expected) {
  bool fits = t.rank == 3;
  for (int i = 0; fits && i < t.rank; ++i) fits = t.shape[i] == sizes[i] || (or_one && t.shape[i] == 1);
  want(fits, ErrorCode::bad_shape, row.name, " has shape ", ShownShape{t}, "; ", expected, " of ",
       ShownShape{ConstTensor(nullptr, DType::f32, {sizes[0], sizes[1], sizes[2]})}, " is expected");
}

void check(const Tensors& t, const Attention& a) {
  want(t.x.given(), ErrorCode::bad_shape, "x is missing");
  want(t.y.given(), ErrorCode::bad_shape, "y is missing");
  want(t.descale.given(), ErrorCode::bad_shape, "descale is missing");
  want(t.outs.empty() && t.lses.empty() && t.mod_buffers.empty(), ErrorCode::bad_value,
       "outs, lses or mod buffers are given beside descale; a quantize takes none");
  ConstTensor x = t.x;
  check_tensor("x", x);
  widen(x, kMaxRank);
  for_each_role(t, [&](const RoleRow& row, const auto& tensor) {
    want(!tensor.given() || use_of(row, Op::quantize) != Use::none, ErrorCode::bad_value, row.name,
         " is given beside descale; a quantize takes none");
    if (!tensor.given()) return;
    check_tensor(row.name, tensor);
    want(tensor.device == x.device, ErrorCode::bad_device, row.name, " is on ", ShownDevice{tensor.device},
         " but x is on ", ShownDevice{x.device});
    if (writes(row, Op::quantize)) check_output(row.name, tensor);
  });
  want(is_data(x.dtype), ErrorCode::bad_dtype, "x is ", name_of(x.dtype), "; fp32, fp16 and bf16 are accepted");
  want(t.y.dtype == DType::f8e4m3, ErrorCode::bad_dtype, "y is ", name_of(t.y.dtype), "; fp8_e4m3 is expected");
  want(t.y.rank == t.x.rank && t.y.shape == t.x.shape, ErrorCode::bad_shape, "y has shape ", PassedShape{"y", t.y},
       "; ", PassedShape{"x", t.x}, ", as x, is expected");
  for (const Role role : {Role::descale, Role::mean}) {
    const ConstTensor of = tensor_of(t, row_of(role));
    want(!of.given() || of.dtype == DType::f32, ErrorCode::bad_dtype, row_of(role).name, " is ", name_of(of.dtype),
         "; fp32 is expected");
  }
  check_shape(row_of(Role::descale), t.descale, {x.shape[0], x.shape[1], descale_blocks(x.shape[2])}, true,
              "[batch|1, heads|1, blocks of 128 rows|1]");
  if (t.mean.given())
    check_shape(row_of(Role::mean), t.mean, {x.shape[0], x.shape[1], x.shape[3]}, false, "[batch, heads, n]");
  Attention rest = a;
  rest.hadamard = false, rest.seed = 0;
  const Attention none;
  want(rest.band == none.band && !rest.scale && rest.softcap == 0 && rest.dropout_p == 0 && rest.score_mod.empty() &&
           rest.mask_mod.empty() && rest.max_seqlen_q == 0 && rest.max_seqlen_k == 0 && !rest.batch_invariant &&
           !rest.log,
       ErrorCode::bad_value, "a quantize takes hadamard and seed; what else is said is attention's");
}

}  // namespace

Problem quantize_problem_of(const Tensors& t, const Attention& a) {
  check(t, a);
  ConstTensor x = t.x;
  widen(x, kMaxRank);
  Problem p;
  p.op = Op::quantize;
  p.batch = x.shape[0];
  p.heads_q = x.shape[1];
  p.seq_q = x.shape[2];
  p.seq_k = x.shape[3];
  p.device = x.device;
  p.dtype = x.dtype;
  p.out_dtype = DType::f8e4m3;
  p.hadamard = a.hadamard;
  p.seed = a.seed;
  p.centered = t.mean.given();
  p.descale = {t.descale.shape[0] != 1, t.descale.shape[1] != 1, t.descale.shape[2] != 1};
  for (const RoleRow& row : kRoleTable) {
    if (!uses(p, row)) continue;
    ConstTensor tensor = tensor_of(t, row);
    widen(tensor, rank_of(row.axes));
    p.layout.*row.layout = layout_of(row, Form::batched, tensor);
    p.alignment[static_cast<std::size_t>(row.role)] = alignment_of(tensor);
  }
  validate(p);
  return p;
}

std::array<std::uint32_t, 8> rotation_signs(std::uint64_t seed) {
  const PhiloxKeys keys = PhiloxKeys::of(seed);
  std::array<std::uint32_t, 8> signs{};
  for (unsigned c = 0; c < 256; c += 4) {
    const PhiloxBlock block = philox(keys, c / 4, 0, 0, 0);
    for (unsigned i = 0; i < 4; ++i) signs[c / 32] |= (block.word[i] >> 31) << (c % 32 + i);
  }
  return signs;
}

void validate_quantize(const Problem& p) {
  validate_data("x", p.dtype);
  want(p.out_dtype == DType::f8e4m3, ErrorCode::bad_dtype, "y is ", name_of(p.out_dtype), "; fp8_e4m3 is expected");
  validate_device(p);
  want(p.seq_k >= 1 && p.seq_k <= 256, ErrorCode::bad_shape, "a row of x has ", p.seq_k,
       " numbers; 1 to 256 are accepted");
  want(!p.descale.blocks || ((p.descale.batch || p.batch <= 1) && (p.descale.heads || p.heads_q <= 1)),
       ErrorCode::bad_value, "a factor for every 128 rows is shared by heads or batch entries; it is of one head");
  want(p.hadamard || p.seed == 0, ErrorCode::bad_value, "seed is ", p.seed,
       " but there is no hadamard, whose signs it is of; 0 is accepted");
  validate_size("x", {p.batch, p.heads_q, p.seq_q, p.seq_k});
  validate_strides(p);
  validate_alignments(p);
}

}  // namespace onepass
