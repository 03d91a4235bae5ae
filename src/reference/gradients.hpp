// The textbook's gradients, dense: what every backward pass is tested against.
//
//   P_j = e^(s_j - LSE), 0 if hidden    D = sum_d dO_d O_d - dLSE    z: dropout's factor, x: the scaled score
//   product        dv_j = sum_i P_j z_j dO    dP_j = z_j (dO . v_j)    dS_j = P_j (dP_j - D)
//   entropy H      dS_j -= dH P_j (ln P_j + H)    dsink -= sum_i dH P_sink (ln P_sink + H)
//   score_mod f    dt = dS f'(t)    dbias = sum of dt over what it is repeated for    dslope = -sum dt |a(i) - j|
//   softcap c      dx = dt (1 - tanh^2(x / c))
//   scores         dq = scale sum_j dx_j k_j    dk_j = scale sum_i dx_j q    dsink = -sum_i e^(sink - LSE) D
//
// Dao et al., FlashAttention, appendix B.2, with the features of docs/reference/conventions.md.
#pragma once
#include <functional>

#include "problem/roles.hpp"
#include "reference/textbook.hpp"

namespace onepass::reference {

// A gradient, row-major, and beside each element the sum of the sizes of its terms: rounding is relative to these.
struct DenseGradient {
  std::vector<double> value, terms;
  // If the call has 16 bits or products of tf32: per element the sum of (sizes of the factors that are rounded to
  // these, times the rest)^2.
  std::vector<double> stored_squares;
  void resize(std::int64_t n, bool stored) {
    value.assign(static_cast<std::size_t>(n), 0);
    terms.assign(static_cast<std::size_t>(n), 0);
    stored_squares.assign(static_cast<std::size_t>(stored ? n : 0), 0);
  }
};

// dq [batch, heads_q, seq_q, dim_qk] (packed [total_q, heads_q, dim_qk]); dk and dv alike with heads_kv and seq_k;
// dbias and dalibi_slopes have the shapes of bias and alibi_slopes; dsinks [heads_q]. Empty if there is no such input.
struct DenseGradients {
  DenseGradient dq, dk, dv, dbias, dsinks, dalibi_slopes;
  DenseGradient& of(Role role);
  const DenseGradient& of(Role role) const { return const_cast<DenseGradients&>(*this).of(role); }
};

// All 0, of a problem's shapes. stored: with stored_squares.
DenseGradients zero_gradients(const Problem& p, const Tensors& a, bool stored);

// look(offset in t, index in the dense gradient) for every number of a gradient `t` that a call writes: not for packed
// tokens of no sequence.
void each_number(const Problem& p, const Tensors& a, const RoleRow& row, const Tensor& t,
                 const std::function<void(std::int64_t offset, std::int64_t index)>& look);

// Gradients of a backward problem from its out, lse, dout and dlse, which may be merged from several forwards.
DenseGradients oracle_gradients(const Problem& p, const Tensors& a, Executor& executor = serial_executor());
// In the problem's own precision, P, dP and dS rounded as they would be stored: the base of the rule.
DenseGradients base_gradients(const Problem& p, const Tensors& a, Executor& executor = serial_executor());

// Gradients of a forward problem; the oracle computes out and lse first. d_out: fp32/fp16/bf16 of the shape of out.
DenseGradients oracle_backward(const Problem& p, const Tensors& a, const ConstTensor& d_out,
                               Executor& executor = serial_executor());

// The derivatives of a jvp problem's results along its tangents, dense as its out and lse: what forward mode is tested
// against. mu stands for the derivative of the LSE.
//   scores     dx_j = scale (tq . k_j + q . tk_j)    dS_j = f'(t) (dx_j (1 - tanh^2(x / c)) + tbias_j)
//   sums       mu = sum_j P_j dS_j + P_sink tsink    tO = sum_j P_j z_j (dS_j v_j + tv_j) - mu O
struct DenseTangents {
  DenseGradient tout, tlse;
  const DenseGradient& of(Role role) const { return role == Role::tout ? tout : tlse; }
};
DenseTangents oracle_tangents(const Problem& p, const Tensors& a, Executor& executor = serial_executor());
DenseTangents base_tangents(const Problem& p, const Tensors& a, Executor& executor = serial_executor());

// The derivatives of a backward_jvp problem's gradients along its tangents, from its out, lse, tout and tlse: what the
// forward mode of a backward is tested against. t: of P, dP, dS and x as above.
//   tP_j = P_j (tS_j - tLSE)    tdP_j = z_j (tdO . v_j + dO . tv_j)    tD = sum_d tdO_d O_d + dO_d tO_d - tdLSE
//   product        tdv_j = sum_i tP_j z_j dO + P_j z_j tdO
//   softmax        tdS_j = tP_j (dP_j - D) + P_j (tdP_j - tD)    tdbias, tdslope: as dbias and dslope, of tdS
//   score_mod f    tdt = tdS f'(t) + dS f''(t) tt; softcap alike, with f'' = -2 tanh(x / c) f' / c
//   scores         tdq = scale sum_j tdx_j k_j + dx_j tk_j    tdk_j = scale sum_i tdx_j q + dx_j tq
//   sink           tdsink = -sum_i e^(sink - LSE) ((tsink - tLSE) D + tD)
DenseGradients oracle_second(const Problem& p, const Tensors& a, Executor& executor = serial_executor());
DenseGradients base_second(const Problem& p, const Tensors& a, Executor& executor = serial_executor());
// The same with out, lse, tout and tlse as the oracle computes them.
DenseGradients oracle_double_backward(const Problem& p, const Tensors& a, Executor& executor = serial_executor());

}  // namespace onepass::reference
