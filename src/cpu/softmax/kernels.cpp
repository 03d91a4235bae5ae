// Softmax over rows and its backward, compiled once per instruction set.
//
// A piece of a row is read into scratch as fp32, chunk by chunk: maximum, weights, sum (the online softmax, with a
// chunk as its tile). The weights stay, each chunk's by its own reference, so that what is left of a row that is kept
// is one factor per chunk.
#include "cpu/common/targets.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/softmax/kernels.cpp"
#include <hwy/foreach_target.h>

#include "cpu/softmax/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kChunks = kKeptNumbers / kRowChunk;
static_assert(kRowChunk % kLanes == 0 && kKeptNumbers % kRowChunk == 0 && kChunks <= kRowChunk);

// Two floats a chunk behind the numbers: its reference.
float* references(float* scratch) { return scratch + kKeptNumbers; }

// The chunk of a row that begins at `from`, in its scores' unit, into s; returns lane by lane the largest.
VF read_scores(const SoftmaxJob& job, std::int64_t row, std::int64_t from, std::int64_t count, float* s) {
  const std::int64_t stride = job.p.layout.x[3];
  VF most = take(job.t.x.data, job.p.dtype, job.x(row) + from * stride, stride, count, kHidden, s);
  if (job.first == 1.0f && !job.p.bool_mask) return most;
  if (job.first != 1.0f) {
    const VF first = splat(job.first);
    for (std::int64_t i = 0; i < count; i += kLanes) {  // an entry of -inf stays one, whatever the sign
      const VF x = hn::LoadU(DF(), s + i);
      hn::StoreU(Arith<VF>::if_neg_inf(x, x, x * first), DF(), s + i);
    }
  }
  if (job.p.bool_mask) {
    const std::int64_t step = job.p.layout.bool_mask[3];
    hide(static_cast<const std::uint8_t*>(job.t.bool_mask.data) + job.mask(row) + from * step, step, count, s);
  }
  most = Arith<VF>::neg_inf();
  for (std::int64_t i = 0; i < count; i += kLanes) most = Arith<VF>::max(most, hn::LoadU(DF(), s + i));
  return most;
}

PieceState reduce_scores(const SoftmaxJob& job, std::int64_t row, std::int64_t piece, float* scratch) {
  const float factor = job.factor;
  const bool keeps_weights = !job.p.log && !job.p.lse_only && job.pieces == 1;
  onepass::RowState<float> state;
  double l = 0;  // of the whole piece, by the reference state.m
  for (std::int64_t from = 0; from < job.count(piece); from += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, job.count(piece) - from), end = whole_vectors(count);
    float* const s = scratch + from;
    const VF most = read_scores(job, row, job.begin(piece) + from, count, s);
    const onepass::Step<float> step = onepass::advance_exactly(state, hn::GetLane(hn::MaxOfLanes(DF(), most)), factor);
    const Step<VF> r{splat(1.0f), splat(step.before), splat(step.after)};
    VF sum = hn::Zero(DF());
    if (keeps_weights) {
      for (std::int64_t i = 0; i < end; i += kLanes) {
        const VF w = weight(hn::LoadU(DF(), s + i), splat(factor), r);
        hn::StoreU(w, DF(), s + i);
        sum = sum + w;
      }
      references(scratch)[from / kRowChunk] = state.m;
    } else {
      for (std::int64_t i = 0; i < end; i += kLanes) sum = sum + weight(hn::LoadU(DF(), s + i), splat(factor), r);
    }
    l = l * double{step.alpha} + double{hn::GetLane(hn::SumOfLanes(DF(), sum))};
  }
  return {state.m, l};
}

// y of one chunk of scores, by the row's state, or by the LSE that is given.
class Finish {
 public:
  Finish(const SoftmaxJob& job, std::int64_t row, const PieceState& state) : job_(job) {
    float m = state.m, lse = 0;
    if (job.p.row_lse) {
      lse = static_cast<const float*>(job.t.row_lse.data)[job.row_lse(row)];
      empty_ = saw_nothing(lse);
      step_ = refer_to_lse(lse, double{job.unit});
      inverse_ = 1;
      before_ = 0, after_ = -lse;
    } else {
      empty_ = state.l == 0;
      step_ = onepass::refer_exactly_to(m);
      inverse_ = empty_ ? 0.0f : static_cast<float>(1.0 / state.l);
      before_ = -onepass::finite_ref(m), after_ = static_cast<float>(-std::log(state.l));
    }
  }
  void scores(float* s, std::int64_t count) const {
    const std::int64_t end = whole_vectors(count);
    const VF hidden = splat(job_.p.log ? kHidden : 0.0f);
    if (empty_) {
      for (std::int64_t i = 0; i < end; i += kLanes) hn::StoreU(hidden, DF(), s + i);
    } else if (job_.p.log) {
      for (std::int64_t i = 0; i < end; i += kLanes) {
        const VF x = hn::LoadU(DF(), s + i);
        hn::StoreU(Arith<VF>::if_neg_inf(x, hidden, hn::MulAdd(x + splat(before_), splat(job_.unit), splat(after_))),
                   DF(), s + i);
      }
    } else if (job_.p.row_lse) {  // any LSE: powers of 2 from 128 on, which weight() is not for, are infinite
      const Step<VF> r{splat(1.0f), splat(step_.before), splat(step_.after)};
      for (std::int64_t i = 0; i < end; i += kLanes) {
        const VF x = hn::LoadU(DF(), s + i);
        const VF power = hn::MulAdd(x + splat(step_.before), splat(job_.factor), splat(step_.after));
        const VF w = hn::IfThenElse(hn::Ge(power, splat(128.0f)), splat(-kHidden), weight(x, splat(job_.factor), r));
        hn::StoreU(Arith<VF>::if_neg_inf(x, hidden, w), DF(), s + i);
      }
    } else {
      const Step<VF> r{splat(1.0f), splat(step_.before), splat(step_.after)};
      for (std::int64_t i = 0; i < end; i += kLanes) {
        const VF x = hn::LoadU(DF(), s + i);
        hn::StoreU(Arith<VF>::if_neg_inf(x, hidden, weight(x, splat(job_.factor), r) * splat(inverse_)), DF(), s + i);
      }
    }
  }
  // The factor from weights by the reference m to y.
  float factor_of(float m) const { return onepass::moved(m, job_.factor, step_) * inverse_; }

 private:
  const SoftmaxJob& job_;
  onepass::Step<float> step_;
  bool empty_;
  float inverse_, before_, after_;
};

void write_y(const SoftmaxJob& job, std::int64_t row, std::int64_t from, std::int64_t count, float factor,
             const float* s) {
  const std::int64_t stride = job.p.layout.y[3];
  put(job.t.y.data, job.p.out_dtype, job.y(row) + from * stride, stride, count, job.stream, factor, s);
}

void write_scores(const SoftmaxJob& job, std::int64_t row, std::int64_t piece, const PieceState& state,
                  float* scratch) {
  const Finish finish(job, row, state);
  for (std::int64_t from = job.begin(piece), end = from + job.count(piece); from < end; from += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, end - from);
    read_scores(job, row, from, count, scratch);
    finish.scores(scratch, count);
    write_y(job, row, from, count, 1.0f, scratch);
  }
  if (job.stream) hwy::FlushStream();
}

void write_kept_scores(const SoftmaxJob& job, std::int64_t row, const PieceState& state, float* scratch) {
  // A row with a NaN: its weights of 0 are not all hidden ones.
  if (!job.p.log && !is_finite(state.l)) return write_scores(job, row, 0, state, scratch);
  const Finish finish(job, row, state);
  for (std::int64_t from = 0; from < job.n; from += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, job.n - from);
    float* const s = scratch + from;
    if (job.p.log) finish.scores(s, count);
    write_y(job, row, from, count, job.p.log ? 1.0f : finish.factor_of(references(scratch)[from / kRowChunk]), s);
  }
  if (job.stream) hwy::FlushStream();
}

// ---- backward: y in the first half of scratch, dy in the second

float* second_half(float* scratch) { return scratch + kSoftmaxScratch / 2; }
void read_gradients(const SoftmaxJob& job, std::int64_t row, std::int64_t from, std::int64_t count, float* y,
                    float* dy) {
  const Layout& l = job.p.layout;
  take(job.t.y.data, job.p.out_dtype, job.y(row) + from * l.y[3], l.y[3], count, job.p.log ? kHidden : 0.0f, y);
  take(job.t.dy.data, job.p.out_dtype, job.dy(row) + from * l.dy[3], l.dy[3], count, 0.0f, dy);
}
// x where y was seen, else 0.
VF where_seen(const SoftmaxJob& job, VF y, VF x) {
  return job.p.log ? Arith<VF>::if_neg_inf(y, hn::Zero(DF()), x) : Arith<VF>::if_zero(y, hn::Zero(DF()), x);
}

PieceState reduce_gradients(const SoftmaxJob& job, std::int64_t row, std::int64_t piece, float* scratch) {
  double sum = 0;
  for (std::int64_t from = 0; from < job.count(piece); from += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, job.count(piece) - from);
    float *const y = scratch + from, *const dy = second_half(scratch) + from;
    read_gradients(job, row, job.begin(piece) + from, count, y, dy);
    VF chunk = hn::Zero(DF());
    for (std::int64_t i = 0; i < whole_vectors(count); i += kLanes) {
      const VF a = hn::LoadU(DF(), y + i), b = hn::LoadU(DF(), dy + i);
      chunk = chunk + where_seen(job, a, job.p.log ? b : a * b);
    }
    sum += double{hn::GetLane(hn::SumOfLanes(DF(), chunk))};
  }
  return {0, sum};
}

void write_chunk(const SoftmaxJob& job, std::int64_t row, std::int64_t from, std::int64_t count, float sum, float* y,
                 const float* dy) {
  const VF all = splat(sum), scale = splat(job.scale);
  for (std::int64_t i = 0; i < whole_vectors(count); i += kLanes) {
    const VF a = hn::LoadU(DF(), y + i), b = hn::LoadU(DF(), dy + i);
    const VF g = job.p.log ? hn::NegMulAdd(natural_weight(a), all, b) : a * (b - all);
    hn::StoreU(where_seen(job, a, g * scale), DF(), y + i);
  }
  const std::int64_t stride = job.p.layout.dx[3];
  put(job.t.dx.data, job.p.dtype, job.dx(row) + from * stride, stride, count, job.stream, 1.0f, y);
}

void write_gradients(const SoftmaxJob& job, std::int64_t row, std::int64_t piece, const PieceState& state,
                     float* scratch) {
  for (std::int64_t from = job.begin(piece), end = from + job.count(piece); from < end; from += kRowChunk) {
    const std::int64_t count = std::min(kRowChunk, end - from);
    read_gradients(job, row, from, count, scratch, second_half(scratch));
    write_chunk(job, row, from, count, static_cast<float>(state.l), scratch, second_half(scratch));
  }
  if (job.stream) hwy::FlushStream();
}
void write_kept_gradients(const SoftmaxJob& job, std::int64_t row, const PieceState& state, float* scratch) {
  for (std::int64_t from = 0; from < job.n; from += kRowChunk)
    write_chunk(job, row, from, std::min(kRowChunk, job.n - from), static_cast<float>(state.l), scratch + from,
                second_half(scratch) + from);
  if (job.stream) hwy::FlushStream();
}

}  // namespace

SoftmaxKernels softmax_kernels_of(std::int64_t target, bool backward) {
  return backward ? SoftmaxKernels{target, reduce_gradients, write_kept_gradients, write_gradients}
                  : SoftmaxKernels{target, reduce_scores, write_kept_scores, write_scores};
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onepass::cpu {

const SoftmaxKernels& softmax_kernels(std::int64_t target, bool backward) {
#define ONEPASS_ROW(ns, target, isa) ns::softmax_kernels_of(target, false), ns::softmax_kernels_of(target, true),
  static const SoftmaxKernels kernels[] = {ONEPASS_FOR_EACH_ISA(ONEPASS_ROW)};
#undef ONEPASS_ROW
  const SoftmaxKernels* row = kernels;
  while (row->target != target) row += 2;
  return row[backward ? 1 : 0];
}

}  // namespace onepass::cpu
#endif
