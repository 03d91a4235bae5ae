// The numbers that the CPU quantizes an FP8 attention's q, k and v to.
#include <array>
#include <cstddef>
#include <vector>

#include "check/inputs.hpp"
#include "onepass/quantize.hpp"
#include "problem/attention/fp8.hpp"

namespace onepass::check {

Inputs& Inputs::quantized() {
  if (quantized_) return *quantized_;
  const Fp8Problems problems = fp8_problems(problem);
  quantized_ = std::make_shared<Inputs>();
  Inputs& in = *quantized_;
  in.problem = problems.attention;
  in.tensors = tensors;
  in.attention = attention_of(problems.attention);
  quantized_memory_.clear();
  const auto memory_for = [&](const Problem& p, Role role) {
    const ConstTensor shape = described(p, row_of(role));
    std::int64_t elements = 1;
    for (int i = 0; i < shape.rank; ++i) elements += std::max<std::int64_t>(0, shape.shape[i] - 1) * shape.stride[i];
    return static_cast<void*>(
        quantized_memory_.emplace_back(static_cast<std::size_t>(elements) * size_of(shape.dtype), std::byte{0xff})
            .data());
  };
  const auto tensor = [&](const Problem& p, Role role, void* data) {
    const ConstTensor shape = described(p, row_of(role));
    Tensor t;
    t.data = data, t.dtype = shape.dtype, t.rank = shape.rank, t.shape = shape.shape, t.stride = shape.stride;
    return t;
  };
  struct Part {
    Role x, descale;
  };
  constexpr std::array<Part, 3> kParts{
      {{Role::q, Role::q_descale}, {Role::k, Role::k_descale}, {Role::v, Role::v_descale}}};
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    const Problem& q = problems.quantizes[i];
    const ConstTensor from = tensor_of(tensors, row_of(kParts[i].x));
    Tensor x = tensor(q, Role::x, const_cast<void*>(from.data)), y = tensor(q, Role::y, memory_for(q, Role::y)),
           descale = tensor(q, Role::descale, memory_for(q, Role::descale)), mean;
    if (q.centered) mean = tensor(q, Role::mean, memory_for(q, Role::mean));
    const ConstTensor& cu =
        i == 0 ? tensors.cu_seqlens_q : tensors.cu_seqlens_k;  // tokens behind the last do not count
    if (cu.given()) x.shape[2] = y.shape[2] = int32_at(cu, problem.batch);
    quantize(x, y, descale, mean, {q.hadamard, q.seed});
    const auto read = [&](Role role, void* data) {
      in.tensors.*row_of(role).input = tensor(problems.attention, role, data);
    };
    read(kParts[i].x, y.data);
    read(kParts[i].descale, descale.data);
    if (q.centered) read(Role::v_mean, mean.data);
  }
  return in;
}

}  // namespace onepass::check
