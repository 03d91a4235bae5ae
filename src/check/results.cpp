// The outputs of a call: their poison, the bytes that must stay untouched, and the reference results.
#include <algorithm>

#include "base/text.hpp"
#include "check/inputs.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/key_value_view.hpp"

namespace onepass::check {

void Inputs::forget() {
  oracle_.reset(), base_.reset(), oracle_gradients_.reset(), base_gradients_.reset(), quantized_.reset();
  exact_.reset();
  oracle_tangents_.reset(), base_tangents_.reset(), oracle_second_.reset(), base_second_.reset();
}

void Inputs::changed() {
  forget();
  if (problem.op == kBackward) onepass::attention(tensors_of(kForward, tensors), attention);
  if (problem.op == kBackwardJvp) onepass::jvp(tensors_of(kJvp, tensors), attention);
}

Inputs& Inputs::exact() {
  if (exact_) return *exact_;
  exact_ = std::make_shared<Inputs>();
  exact_->problem = problem;
  exact_->problem.precision = Precision::fp32;
  exact_->tensors = tensors;
  exact_->attention = attention_of(exact_->problem);
  return *exact_;
}

void Inputs::poison_outputs() {
  for (const RoleRow& row : kRoleTable)
    if (writes(row, problem.op)) buffer(row.role).poison();
}

namespace {

// Calls f(offset, count) for every run of elements that a call writes.
template <class F>
void each_written(const Problem& p, const Tensors& tensors, const RoleRow& row, F f) {
  const Tensor& t = tensors.*row.output;
  if (p.op->described) {
    const Dims n = shape_of(p, row).size;
    for (std::int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; ++i)
      f(i / (n[1] * n[2] * n[3]) * t.stride[0] + i / (n[2] * n[3]) % n[1] * t.stride[1] +
            i / n[3] % n[2] * t.stride[2] + i % n[3] * t.stride[3],
        1);
  } else if (row.role == Role::k_cache || row.role == Role::v_cache) {  // the places of new tokens
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, tensors, b);
      const KeyValueView view(t, seq);
      for (std::int64_t h = 0; h < p.heads_kv; ++h)
        for (std::int64_t i = 0; i < seq.seq_q; ++i)
          if (const NewToken token = new_token(tensors, seq, i); !token.skipped())
            f(view.offset(h, token.key), t.shape[t.rank - 1]);
    }
  } else if (row.axes[2] != Axis::seq_q && row.axes[2] != Axis::seq_k) {  // one element a head
    for (std::int64_t i = 0; i < t.shape[0]; ++i)
      for (std::int64_t j = 0; j < t.shape[1]; ++j) f(i * t.stride[0] + j * t.stride[1], 1);
  } else if (row.fit == Fit::broadcast) {
    const Dims& n = t.shape;
    for (std::int64_t i = 0; i < n[0] * n[1] * n[2] * n[3]; ++i)
      f(i / (n[1] * n[2] * n[3]) * t.stride[0] + i / (n[2] * n[3]) % n[1] * t.stride[1] +
            i / n[3] % n[2] * t.stride[2] + i % n[3] * t.stride[3],
        1);
  } else {  // tokens: those that belong to no sequence stay as they are
    const bool of_keys = row.axes[2] == Axis::seq_k;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const Sequence seq = sequence_of(p, tensors, b);
      const std::int64_t begin = of_keys ? seq.k_begin : seq.q_begin;
      for (std::int64_t h = 0; h < size_of(row.axes[1], p); ++h)
        for (std::int64_t i = 0; i < (of_keys ? seq.seq_k : seq.seq_q); ++i)
          row.unit_last ? f(row_offset(t, seq.batch, h, begin + i), t.shape[t.rank - 1])
                        : f(lse_offset(t, seq.batch, h, begin + i), 1);
    }
  }
}

}  // namespace

std::string Inputs::touched() const {
  for (const RoleRow& row : kRoleTable) {
    const Buffer& memory = buffer(row.role);
    if (!writes(row, problem.op) || !(tensors.*row.output).given() || memory.sparse()) continue;
    const Tensor& t = tensors.*row.output;
    if (!memory.guards_untouched()) return text("bytes around ", row.name, " were written");
    Buffer rest = memory.copy();  // with every row taken out, only gaps are left
    const std::int64_t size = static_cast<std::int64_t>(size_of(t.dtype));
    std::byte* const zero = rest.data() + (static_cast<std::byte*>(t.data) - memory.data());
    each_written(problem, tensors, row, [&](std::int64_t at, std::int64_t count) {
      std::fill_n(zero + at * size, count * size, std::byte{Buffer::kPoison});
    });
    if (!rest.all_poison()) return text("a gap between the rows of ", row.name, " was written");
  }
  return "";
}

namespace {

template <class Result, class Compute>
const Result& once(std::shared_ptr<const Result>& kept, Compute compute, const Inputs& in, Executor& executor) {
  if (!kept) kept = std::make_shared<const Result>(compute(in.problem, in.tensors, executor));
  return *kept;
}

}  // namespace

const reference::Dense& Inputs::oracle(Executor& executor) { return once(oracle_, reference::oracle, *this, executor); }
const reference::Dense& Inputs::base(Executor& executor) { return once(base_, reference::base, *this, executor); }
const reference::DenseGradients& Inputs::oracle_gradients(Executor& executor) {
  return once(oracle_gradients_, reference::oracle_gradients, *this, executor);
}
const reference::DenseGradients& Inputs::base_gradients(Executor& executor) {
  return once(base_gradients_, reference::base_gradients, *this, executor);
}
const reference::DenseGradients& Inputs::oracle_second(Executor& executor) {
  return once(oracle_second_, reference::oracle_second, *this, executor);
}
const reference::DenseGradients& Inputs::base_second(Executor& executor) {
  return once(base_second_, reference::base_second, *this, executor);
}
const reference::DenseTangents& Inputs::oracle_tangents(Executor& executor) {
  return once(oracle_tangents_, reference::oracle_tangents, *this, executor);
}
const reference::DenseTangents& Inputs::base_tangents(Executor& executor) {
  return once(base_tangents_, reference::base_tangents, *this, executor);
}

}  // namespace onepass::check
