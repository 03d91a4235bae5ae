// The problems of a flat GEMM and of a linear.
#include "problem/gemm/flat_gemm_problem.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "problem/checks/problem_checks.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/operator.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

void check_dtype(const RoleRow& row, DType t, DType of_x) {
  want(t == DType::f32 || t == DType::f16 || t == DType::bf16, ErrorCode::bad_dtype, row.name,
       " must be fp32, fp16 or bf16 (got ", name_of(t), ")");
  if (row.role == Role::y)
    want(t == of_x || t == DType::f32, ErrorCode::bad_dtype, "y must be ", name_of(of_x), ", as x", or_fp32(of_x),
         " (got ", name_of(t), ")");
  else
    want(t == of_x, ErrorCode::bad_dtype, row.name, " must be ", name_of(of_x), ", as x (got ", name_of(t), ")");
}

// x [m, k], w [n, k], y [m, n] and column_bias [n], any strides.
Problem gemm_problem_of(Op op, const Tensors& t, const CallOptions&, Mods*) {
  Problem p;
  p.op = op;
  p.column_bias = t.column_bias.given();
  for (const RoleRow& row : kRoleTable) {
    const ConstTensor tensor = tensor_of(t, row);
    if (!uses(p, row)) continue;
    const int rank = rank_of(row.packed);
    want(tensor.rank == rank, ErrorCode::bad_shape, row.name, " must have shape ", form_text(row, Form::matrix),
         " (got ", ShownShape{tensor}, ")");
    check_dtype(row, tensor.dtype, t.x.dtype);
    if (row.role == Role::x) p.m = tensor.shape[0], p.k = tensor.shape[1], p.n = t.w.shape[0];
    for (int i = 0; i < rank; ++i) {
      const std::int64_t size = size_of(row.packed[i], p);
      want(tensor.shape[i] == size, ErrorCode::bad_shape, "the ", what_of(row.packed[i]), " of ", row.name, " must be ",
           size, " (got shape ", ShownShape{tensor}, ")");
    }
  }
  take_layout(p, t);
  p.dtype = t.x.dtype;
  p.out_dtype = t.y.dtype;
  p.device = t.x.device;
  validate(p);
  return p;
}

Mods validate_gemm(const Problem& p) {
  for (const auto& [name, size] : {std::pair{"m", p.m}, {"n", p.n}, {"k", p.k}})
    want(size >= 0, ErrorCode::bad_shape, name, " must be 0 or more (got ", size, ")");
  for (const auto& [name, t] : {std::pair{"x", p.dtype}, {"y", p.out_dtype}}) validate_data(name, t);
  want(p.out_dtype == p.dtype || p.out_dtype == DType::f32, ErrorCode::bad_dtype, "y must be ", name_of(p.dtype),
       ", as x", or_fp32(p.dtype), " (got ", name_of(p.out_dtype), ")");
  validate_device(p);
  validate_size("x", {p.m, p.k});
  validate_size("w", {p.n, p.k});
  validate_size("y", {p.m, p.n});
  validate_strides(p);
  validate_alignments(p);
  return {};
}

constexpr Uses kUses =
    uses_of({{Role::x, Use::needs}, {Role::w, Use::needs}, {Role::y, Use::writes}, {Role::column_bias, Use::takes}});
// n<number> is a number of columns here.
void complete_gemm(Problem& p, Said) { p.n = std::exchange(p.partials, 0); }

constexpr std::string_view kWords[] = {"operator", "m", "n", "k", "dtype", "out", "device", "align"};

}  // namespace

constinit const Operator kFlatGemm{.word = "flat_gemm",
                                   .call = "flat_gemm",
                                   .base = Role::x,
                                   .uses = kUses,
                                   .words = kWords,
                                   .matrices = true,
                                   .described = true,
                                   .problem_of = gemm_problem_of,
                                   .validate = validate_gemm,
                                   .complete = complete_gemm};
constinit const Operator kLinear{.word = "linear",
                                 .call = "linear",
                                 .base = Role::x,
                                 .uses = kUses,
                                 .words = kWords,
                                 .matrices = true,
                                 .described = true,
                                 .kernels_of = &kFlatGemm,
                                 .problem_of = gemm_problem_of,
                                 .validate = validate_gemm,
                                 .complete = complete_gemm};

std::int64_t row_step(const Dims& stride, std::int64_t rows, std::int64_t numbers) {
  if (numbers > 1 && stride[1] != 1) return 0;
  if (rows <= 1) return std::max<std::int64_t>(numbers, 1);
  return stride[0] >= std::max<std::int64_t>(numbers, 1) ? stride[0] : 0;
}

}  // namespace onepass
