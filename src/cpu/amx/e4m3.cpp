#include "cpu/amx/e4m3.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "algebra/numerics.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "base/workspace.hpp"
#include "problem/attention/key_value_view.hpp"
#include "problem/roles.hpp"

namespace onepass::cpu::amx {
namespace {

constexpr std::int64_t kTaskRows = 4 * kDescaleRows;  // of one head: whole blocks of factors

// Row-major, of the same shape.
Dims row_major(const ConstTensor& t) {
  Dims stride{};
  std::int64_t next = 1;
  for (int i = t.rank - 1; i >= 0; --i) stride[i] = next, next *= t.shape[i];
  return stride;
}
ConstTensor converted(const ConstTensor& t, const void* data) {
  ConstTensor c = t;
  c.data = data, c.dtype = DType::bf16, c.stride = row_major(t);
  return c;
}

// The largest power of 2 that is at most |factor|.
float power_of(float factor) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(factor) & 0x7f800000u); }

// All e4m3 numbers times a factor, in bf16.
class Table {
 public:
  const std::uint16_t* of(float factor) {
    if (factor_ == factor && made_) return bits_.data();
    for (unsigned x = 0; x < 256; ++x)
      bits_[x] = from_float<bf16>(to_float(f8e4m3{static_cast<std::uint8_t>(x)}) * factor).bits;
    factor_ = factor, made_ = true;
    return bits_.data();
  }

 private:
  std::array<std::uint16_t, 256> bits_;
  float factor_ = 0;
  bool made_ = false;
};

class State final : public PlanState {
 public:
  State(const Request& request, std::shared_ptr<PlanState> inner)
      : PlanState(request.problem), inner_(std::move(inner)) {
    Workspace count;
    (void)book(count);
    workspace_bytes = count.bytes();
  }
  std::string describe() const override { return inner_->describe() + "; fp8_e4m3 converted to bf16"; }
  void run(const Tensors& a, void* memory, Executor& executor, void* stream) const override {
    Workspace w(memory);
    const Books books = book(w);
    Tensors t = a;
    t.v_descale = {};
    if (problem->dtype == DType::f8e4m3) t.q = convert(a, a.q, a.q_descale, books.q, problem->heads_q, executor);
    t.k = convert(a, a.k, a.k_descale, books.k, problem->heads_kv, executor);
    t.v = convert(a, a.v, a.v_descale, books.v, problem->heads_kv, executor);
    t.q_descale = rest(a.q_descale, books.q_rest), t.k_descale = rest(a.k_descale, books.k_rest);
    inner_->run(t, books.inner, executor, stream);
  }

 private:
  struct Books {
    std::uint16_t *q, *k, *v;
    float *q_rest, *k_rest;
    std::byte* inner;
  };
  Books book(Workspace& w) const {
    const Problem& p = *problem;
    const auto rows = [&](std::int64_t packed, std::int64_t seq, bool is_packed) {
      return is_packed ? packed : p.batch * seq;
    };
    const std::int64_t q = p.dtype == DType::f8e4m3 ? rows(p.total_q, p.seq_q, p.varlen) * p.heads_q * p.dim_qk : 0,
                       k = rows(p.total_k, p.seq_k, p.packed_k()) * p.heads_kv;
    return {w.take<std::uint16_t>(q),
            w.take<std::uint16_t>(k * p.dim_qk),
            w.take<std::uint16_t>(k * p.dim_v),
            w.take<float>(p.q_descale ? p.batch * p.heads_q * descale_blocks(p.seq_q) : 0),
            w.take<float>(p.k_descale ? p.batch * p.heads_kv * descale_blocks(p.seq_k) : 0),
            w.take<std::byte>(static_cast<std::int64_t>(inner_->workspace_bytes))};
  }

  // The part of the factors of q and k that bf16 would round, 1 to 2, is left to the scores. It is 1 for powers of 2.
  static ConstTensor rest(const ConstTensor& descale, float* to) {
    if (!descale.given() || !to) return {};  // booked where it is given
    ConstTensor t = descale;
    t.data = to, t.stride = row_major(descale);
    bool any = false;
    const std::int64_t sizes[] = {descale.shape[0], descale.rank > 1 ? descale.shape[1] : 1,
                                  descale.rank > 2 ? descale.shape[2] : 1};
    for (std::int64_t i = 0; i < sizes[0] * sizes[1] * sizes[2]; ++i) {
      const std::int64_t at = i / (sizes[1] * sizes[2]) * descale.stride[0] +
                              (descale.rank > 1 ? i / sizes[2] % sizes[1] * descale.stride[1] : 0) +
                              (descale.rank > 2 ? i % sizes[2] * descale.stride[2] : 0);
      const float factor = static_cast<const float*>(descale.data)[at], power = power_of(factor);
      to[i] = power == 0 ? 1.0f : factor / power;
      any = any || to[i] != 1.0f;
    }
    return any ? t : ConstTensor{};
  }

  // The keys and values that a sequence has; q in the same way.
  ConstTensor convert(const Tensors& a, const ConstTensor& from, const ConstTensor& descale, std::uint16_t* to,
                      std::int64_t heads, Executor& executor) const {
    const ConstTensor result = converted(from, to);
    const bool of_q = &from == &a.q, of_v = &from == &a.v;
    struct Part {
      std::int64_t sequence, begin, count, end;  // tasks up to and with it
    };
    std::vector<Part> parts;
    std::int64_t tasks = 0;
    for (std::int64_t b = 0; b < problem->batch; ++b) {
      const Sequence s = sequence_of(*problem, a, b);
      const std::int64_t count = of_q ? s.seq_q : s.seq_k;
      tasks += heads * ceil_div(count, kTaskRows);
      parts.push_back({b, of_q ? s.q_begin : s.k_begin, count, tasks});
    }
    const std::int64_t dim = from.shape[from.rank - 1];
    parallel(executor, tasks, [&](std::int64_t task, int) {
      const Part& part =
          *std::upper_bound(parts.begin(), parts.end(), task, [](std::int64_t t, const Part& x) { return t < x.end; });
      const std::int64_t left = part.end - 1 - task, head = left % heads, first = left / heads * kTaskRows;
      const Descale factors(descale, part.sequence);
      Table table;
      for (std::int64_t i = first; i < std::min(part.count, first + kTaskRows); ++i) {
        const float factor = factors.at(head, i);
        const std::uint16_t* const bits = table.of(of_v ? factor : power_of(factor));
        const auto at = [&](const ConstTensor& t) { return row_offset(t, part.sequence, head, part.begin + i); };
        const auto* const x = static_cast<const std::uint8_t*>(from.data) + at(from);
        std::uint16_t* const y = to + at(result);
        for (std::int64_t c = 0; c < dim; ++c) y[c] = bits[x[c]];
      }
    });
    return result;
  }

  const std::shared_ptr<PlanState> inner_;
};

}  // namespace

std::string refuses_e4m3(const Problem& p) {
  if (p.paged()) return "does not support pages of fp8_e4m3";
  if (p.v_mean) return "does not support v_mean, which bf16 would round";
  if (p.kv_dtype && p.dtype != DType::bf16)
    return text("requires q in bf16 or fp8_e4m3 (got ", name_of(p.dtype), "), because tiles multiply bf16");
  if (p.out_dtype == DType::f16) return "requires out in bf16 or fp32 (got fp16)";
  return {};
}

Problem in_bf16(const Problem& problem) {
  Problem p = problem;
  const auto contiguous = [&](Dims& stride, std::int64_t heads, std::int64_t seq, std::int64_t dim, bool packed) {
    stride = packed ? Dims{0, dim, heads * dim, 1} : Dims{heads * seq * dim, seq * dim, dim, 1};
  };
  if (p.dtype == DType::f8e4m3) contiguous(p.layout.q, p.heads_q, p.seq_q, p.dim_qk, p.varlen);
  contiguous(p.layout.k, p.heads_kv, p.seq_k, p.dim_qk, p.packed_k());
  contiguous(p.layout.v, p.heads_kv, p.seq_k, p.dim_v, p.packed_k());
  p.dtype = DType::bf16;
  p.kv_dtype.reset(), p.q_descale.reset(), p.k_descale.reset(), p.v_descale.reset();
  p.layout.q_descale = p.layout.k_descale = p.layout.v_descale = {};
  p.accumulation = Accumulation::exact;
  p.v_in_k = false;
  return p;
}

Decision with_e4m3(const Request& request, Decision inner) {
  if (!inner) return inner;
  return {{}, std::make_shared<State>(request, std::move(inner.state))};
}

}  // namespace onepass::cpu::amx
