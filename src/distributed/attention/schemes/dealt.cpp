#include "distributed/attention/schemes/dealt.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "distributed/attention/schemes/deal.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

Range shifted(Range range, Index by) { return {range.begin + by, range.end + by}; }

class Dealt {
 public:
  Dealt(const Job& job, const OfHeads& compute) : job_(job), compute_(compute), deal_(job) {}

  void forward() {
    const AttentionTensors& t = job_.tensors;
    const auto whole = deal_.to_heads({{t.q}, {t.k, Heads::key_value}, {t.v, Heads::key_value}});
    const Tensor out = deal_.memory(t.out.dtype, Heads::query, t.out.shape[3]);
    const auto column = [&](const Tensor& x) {
      return x.given() ? deal_.memory(DType::f32, Heads::query, 1) : Tensor{};
    };
    const Tensor lse = column(t.lse), row_max = column(t.row_max);
    each_call(whole, [&](const Job& job, const Keys& keys, const HeadShare& call) {
      const RowResults into{heads_of(out, call), heads_of(without_column(lse), call),
                            heads_of(without_column(row_max), call)};
      compute_.forward(job, keys, into);
    });
    std::vector<Deal::Results> results{{out, t.out}};
    if (t.lse.given()) results.push_back({lse, as_column(t.lse)});
    if (t.row_max.given()) results.push_back({row_max, as_column(t.row_max)});
    deal_.to_rows(results);
  }

  void backward() {
    const AttentionTensors& t = job_.tensors;
    std::vector<Deal::Rows> rows{{t.q},    {t.k, Heads::key_value},        {t.v, Heads::key_value}, {t.out},
                                 {t.dout}, {as_column(ConstTensor(t.lse))}};
    if (t.dlse.given()) rows.push_back({as_column(t.dlse)});
    const auto whole = deal_.to_heads(rows);
    const Tensor dq = t.dq.given() ? deal_.memory(DType::f32, Heads::query, t.q.shape[3]) : Tensor{};
    const std::array<Tensor, 2> keys_grad{sum_of(t.dk), sum_of(t.dv)};
    each_call(whole, [&](const Job& job, const Keys& keys, const HeadShare& call) {
      KeyGradients into;
      for (std::size_t x = 0; x < 2; ++x) into[x] = slice(keys_grad[x], 1, call.heads_kv);
      compute_.backward(job, keys, heads_of(dq, call), into);
    });
    home(dq, keys_grad);
  }

 private:
  template <class AnyTensor>
  static AnyTensor heads_of(const AnyTensor& t, const HeadShare& call) {
    return slice(t, 1, call.heads);
  }

  // f(job, keys, heads) of each of this rank's calls, whose tensors have all rows of the call's heads.
  template <class F>
  void each_call(const std::vector<ConstTensor>& whole, const F& f) {
    const AttentionTensors& t = job_.tensors;
    const Range mine = deal_.mine(Heads::query), read = deal_.mine(Heads::key_value);
    for (const HeadShare& call : head_calls(t.q.shape[1], t.k.shape[1], job_.ranks(), job_.me())) {
      const Range heads = shifted(call.heads, mine.begin);
      AttentionTensors tensors = of_heads(t, heads, shifted(call.heads_kv, read.begin));
      tensors.q = heads_of(whole[0], call);
      if (whole.size() > 3) {
        tensors.out = writable(heads_of(whole[3], call)), tensors.dout = heads_of(whole[4], call);
        tensors.lse = writable(heads_of(without_column(whole[5]), call));
      }
      if (whole.size() > 6) tensors.dlse = heads_of(without_column(whole[6]), call);
      f(job_.on(tensors, heads.begin), Keys{slice(whole[1], 1, call.heads_kv), slice(whole[2], 1, call.heads_kv)},
        call);
    }
  }
  // out and lse are results of the forward, which the backward reads.
  static Tensor writable(const ConstTensor& t) {
    Tensor same;
    same.data = const_cast<void*>(t.data);
    same.dtype = t.dtype, same.device = t.device, same.rank = t.rank, same.shape = t.shape, same.stride = t.stride;
    return same;
  }

  // fp32 sums of the gradients of this rank's K/V heads: 0.
  Tensor sum_of(const Tensor& gradient) {
    if (!gradient.given()) return {};
    if (!zeros_) zeros_.emplace(std::max(job_.tensors.k.shape[3], job_.tensors.v.shape[3]), job_.device(), job_.launch);
    const Tensor sum = deal_.memory(DType::f32, Heads::key_value, gradient.shape[3]);
    copy(zeros_->like(sum), sum, job_.launch);
    return sum;
  }

  // Gradients that no other rank adds to travel rounded: half the bytes.
  void home(const Tensor& dq, const std::array<Tensor, 2>& sums) {
    const AttentionTensors& t = job_.tensors;
    std::vector<Deal::Results> results;
    if (t.dq.given()) results.push_back({rounded(dq, t.dq.dtype, Heads::query), t.dq});
    const std::array<Tensor, 2> into{t.dk, t.dv};
    std::array<std::optional<Owned>, 2> totals;
    for (std::size_t x = 0; x < 2; ++x) {
      if (!into[x].given()) continue;
      if (!deal_.shared()) {
        results.push_back({rounded(sums[x], into[x].dtype, Heads::key_value), into[x], Heads::key_value});
        continue;
      }
      const auto& shape = into[x].shape;
      const Tensor total =
          totals[x]
              .emplace(DType::f32, std::initializer_list<Index>{shape[0], shape[1], shape[2], shape[3]}, job_.device(),
                       job_.launch)
              .tensor();
      copy(zeros_->like(total), total, job_.launch);
      results.push_back({sums[x], total, Heads::key_value, true});
    }
    deal_.to_rows(results);
    for (std::size_t x = 0; x < 2; ++x)
      if (totals[x]) copy(totals[x]->tensor(), into[x], job_.launch);
  }
  Tensor rounded(const Tensor& t, DType dtype, Heads kind) {
    if (dtype == t.dtype) return t;
    const Tensor narrow = deal_.memory(dtype, kind, t.shape[3]);
    copy(t, narrow, job_.launch);
    return narrow;
  }

  const Job& job_;
  const OfHeads& compute_;
  Deal deal_;
  std::optional<Zeros> zeros_{};
};

}  // namespace

void dealt_forward(const Job& job, const OfHeads& compute) { Dealt(job, compute).forward(); }

void dealt_backward(const Job& job, const OfHeads& compute) { Dealt(job, compute).backward(); }

}  // namespace onepass::inline v0::context_parallel
