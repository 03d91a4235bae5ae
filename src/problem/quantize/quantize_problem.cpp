#include "problem/quantize/quantize_problem.hpp"

#include "algebra/philox.hpp"
#include "base/text.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

// `t` has this shape, 1 standing for `sizes` where `or_one`.
void check_shape(const RoleRow& row, const ConstTensor& t, const Dims& sizes, bool or_one, const char* expected) {
  bool fits = t.rank == 3;
  for (int i = 0; fits && i < t.rank; ++i) fits = t.shape[i] == sizes[i] || (or_one && t.shape[i] == 1);
  want(fits, ErrorCode::bad_shape, row.name, " must have shape ", expected, " = ",
       ShownShape{ConstTensor(nullptr, DType::f32, {sizes[0], sizes[1], sizes[2]})}, " (got ", ShownShape{t}, ")");
}

void check(const Tensors& t) {
  ConstTensor x = t.x;
  widen(x, kMaxRank);
  want(is_data(x.dtype), ErrorCode::bad_dtype, "x must be fp32, fp16 or bf16 (got ", name_of(x.dtype), ")");
  want(t.y.dtype == DType::f8e4m3, ErrorCode::bad_dtype, "y must be fp8_e4m3 (got ", name_of(t.y.dtype), ")");
  want(t.y.rank == t.x.rank && t.y.shape == t.x.shape, ErrorCode::bad_shape, "y must have shape ",
       PassedShape{"x", t.x}, ", as x (got ", PassedShape{"y", t.y}, ")");
  for (const Role role : {Role::descale, Role::mean}) {
    const ConstTensor of = tensor_of(t, row_of(role));
    want(!of.given() || of.dtype == DType::f32, ErrorCode::bad_dtype, row_of(role).name, " must be fp32 (got ",
         name_of(of.dtype), ")");
  }
  check_shape(row_of(Role::descale), t.descale, {x.shape[0], x.shape[1], descale_blocks(x.shape[2])}, true,
              "[batch|1, heads|1, blocks of 128 rows|1]");
  if (t.mean.given())
    check_shape(row_of(Role::mean), t.mean, {x.shape[0], x.shape[1], x.shape[3]}, false, "[batch, heads, n]");
}

// x [.., n] and y of one shape of rank 1 to 4, what is missing in front having size 1; descale [batch|1, heads|1,
// blocks|1] and mean [batch, heads, n].
Problem quantize_problem_of(Op op, const Tensors& t, const CallOptions& a, Mods*) {
  check(t);
  ConstTensor x = t.x;
  widen(x, kMaxRank);
  Problem p;
  p.op = op;
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
  take_layout(p, t);
  validate(p);
  return p;
}

Mods validate_quantize(const Problem& p) {
  validate_data("x", p.dtype);
  want(p.out_dtype == DType::f8e4m3, ErrorCode::bad_dtype, "y must be fp8_e4m3 (got ", name_of(p.out_dtype), ")");
  validate_device(p);
  want(p.seq_k >= 1 && p.seq_k <= 256, ErrorCode::bad_shape, "rows of x must have 1 to 256 elements (got ", p.seq_k,
       ")");
  want(!p.descale.blocks || ((p.descale.batch || p.batch <= 1) && (p.descale.heads || p.heads_q <= 1)),
       ErrorCode::bad_value, "scales of blocks of 128 rows cannot be shared across heads or batch entries");
  want(p.hadamard || p.seed == 0, ErrorCode::bad_value, "seed must be 0 without hadamard (got ", p.seed, ")");
  validate_size("x", {p.batch, p.heads_q, p.seq_q, p.seq_k});
  validate_strides(p);
  validate_alignments(p);
  return {};
}

void complete_quantize(Problem& p, Said) {
  complete_rows(p);
  p.out_dtype = DType::f8e4m3;
}

constexpr std::string_view kWords[] = {"operator", "b",    "h",      "s",     "dtype",
                                       "descale",  "seed", "device", "align", "hadamard"};

}  // namespace

constinit const Operator kQuantize{
    .word = "quantize",
    .call = "quantize",
    .base = Role::x,
    .uses = uses_of(
        {{Role::x, Use::needs}, {Role::y, Use::writes}, {Role::descale, Use::writes}, {Role::mean, Use::may_write}}),
    .words = kWords,
    .any_rank = true,
    .described = true,
    .problem_of = quantize_problem_of,
    .validate = validate_quantize,
    .complete = complete_quantize};

std::array<std::uint32_t, 8> rotation_signs(std::uint64_t seed) {
  const PhiloxKeys keys = PhiloxKeys::of(seed);
  std::array<std::uint32_t, 8> signs{};
  for (unsigned c = 0; c < 256; c += 4) {
    const PhiloxBlock block = philox(keys, c / 4, 0, 0, 0);
    for (unsigned i = 0; i < 4; ++i) signs[c / 32] |= (block.word[i] >> 31) << (c % 32 + i);
  }
  return signs;
}

}  // namespace onepass
