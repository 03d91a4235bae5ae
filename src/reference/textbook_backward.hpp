// The textbook's gradients, dense and in float64: what every backward pass is tested against.
//
//   w_j = P_j z_j (z: dropout factor)     O = sum_j w_j v_j          dv_j = w_j dO
//   dP_j = z_j (dO . v_j)                 D = sum_j P_j dP_j         ds_j = P_j (dP_j - D)
//   through softcap c tanh(x / c): dx = ds (1 - tanh^2)              dq = scale sum_j dx_j k_j, dk_j = scale dx_j q
//   dbias = ds summed over the dimensions it is repeated along       dsink = -P_sink D
#pragma once
#include "reference/textbook.hpp"

namespace onepass::reference {

// Row-major: dq [batch, heads_q, seq_q, dim_qk] (packed [total_q, heads_q, dim_qk]); dk and dv alike with heads_kv and
// seq_k; dbias has the bias tensor's own shape; dsinks [heads_q]. dbias and dsinks are empty if there is none.
struct DenseGradients {
  std::vector<double> dq, dk, dv, dbias, dsinks;
};
// d_out: fp32/fp16/bf16 of the shape of out. Serial if there is a bias or sink gradient to add up.
DenseGradients oracle_backward(const Problem& p, const Tensors& a, const ConstTensor& d_out,
                               Executor& executor = serial_executor());

}  // namespace onepass::reference
