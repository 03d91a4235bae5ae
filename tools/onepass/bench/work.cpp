#include "tools/onepass/bench/work.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "check/draw/cache.hpp"
#include "problem/append/append.hpp"
#include "problem/attention/arguments.hpp"
#include "tools/onepass/bench/cell.hpp"

namespace onepass::bench {

Problem with_lengths(const Problem& p) {
  Problem known = p;
  if (p.seqused && p.lengths_k.empty()) {
    const std::uint64_t seed = p.device.kind == DeviceKind::cuda ? kDeviceSeed : kHostSeed;
    for (const std::int32_t length : check::draw_lengths(p, seed)) known.lengths_k.push_back(length);
  }
  return known;
}

double visible_pairs(const Problem& p) {
  double pairs = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto known = [&](const std::vector<std::int64_t>& lengths, std::int64_t most) {
      return lengths.empty() ? most : lengths[static_cast<std::size_t>(b)];
    };
    const std::int64_t seq_q = known(p.lengths_q, p.seq_q), seq_k = known(p.lengths_k, p.seq_k);
    const BandMask band = band_mask(p, seq_q, seq_k);
    for (std::int64_t i = 0; i < seq_q; ++i) {
      const Range r = band.keys_of(i);
      pairs += static_cast<double>(std::max<Index>(0, r.hi - r.lo));
    }
    if (p.lengths_q.empty() && p.lengths_k.empty()) return pairs * static_cast<double>(p.batch * p.heads_q);
  }
  return pairs * static_cast<double>(p.heads_q);
}

namespace {

double bytes_of(DType dtype) { return static_cast<double>(size_of(dtype)); }
double numbers_of(const Problem& p) { return static_cast<double>(p.batch * p.heads_q * p.seq_q * p.seq_k); }

Work attending(const Problem& p, std::int64_t inner_sizes) {
  const Problem known = with_lengths(p);
  const std::int64_t used = std::accumulate(known.lengths_k.begin(), known.lengths_k.end(), std::int64_t{0});
  const double tokens_k = static_cast<double>(p.packed_k() ? p.total_k : used > 0 ? used : p.batch * p.seq_k);
  return {.flops = 2.0 * static_cast<double>(inner_sizes) * visible_pairs(known),
          .bytes = tokens_k * static_cast<double>(p.heads_kv * (p.dim_qk + (p.v_in_k ? 0 : p.dim_v))) *
                   bytes_of(p.key_dtype()),
          .bound = p.seq_q * p.group() <= 64 ? Bound::reads : Bound::none};
}
// The products over the visible pairs: S and O, or those that the wanted gradients need.
Work forward(const Problem& p) { return attending(p, p.dim_qk + p.dim_v); }
Work backward(const Problem& p) {
  const Gradients& g = p.gradients;
  const int s = g.dq || g.dk || g.dv || g.dbias || g.dalibi_slopes, dp = g.dq || g.dk || g.dbias || g.dalibi_slopes;
  return attending(p, p.dim_qk * (s + g.dq + g.dk) + p.dim_v * (dp + g.dv));
}

// Six products for two: S and two for its derivative; O and two for its own.
Work jvp(const Problem& p) { return attending(p, 3 * (p.dim_qk + p.dim_v)); }

// Two products for S, two for dP and one more each with a tdO, and two for each result, of which tdV has one without
// it.
Work backward_jvp(const Problem& p) {
  const Gradients& g = p.gradients;
  return attending(p, p.dim_qk * (3 + 2 * g.dq + 2 * g.dk) + p.dim_v * (2 + p.tdout + g.dv * (1 + p.tdout)));
}

// The others read once and write once.
Work merge(const Problem& p) {
  const auto row = [&](DType t, bool lse) { return static_cast<double>(p.dim_v) * bytes_of(t) + (lse ? 4 : 0); };
  const double rows = static_cast<double>(p.batch * p.heads_q * p.seq_q);
  return {.flops = 2.0 * static_cast<double>(p.partials * p.dim_v) * rows,
          .bytes = rows * (static_cast<double>(p.partials) * row(p.dtype, true) + row(p.out_dtype, p.want_lse)),
          .bound = p.seq_q * p.group() <= 64 ? Bound::reads : Bound::none};
}
Work softmax(const Problem& p) {
  return {.flops = 4 * numbers_of(p),
          .bytes = numbers_of(p) * (bytes_of(p.dtype) + (p.lse_only ? 0 : bytes_of(p.out_dtype))),
          .bound = Bound::copies,
          .moves = true};
}
Work softmax_backward(const Problem& p) {
  return {.flops = 4 * numbers_of(p),
          .bytes = numbers_of(p) * (2 * bytes_of(p.out_dtype) + bytes_of(p.dtype)),
          .bound = Bound::copies,
          .moves = true};
}
Work quantize(const Problem& p) {
  return {.flops = numbers_of(p),
          .bytes = numbers_of(p) * (bytes_of(p.dtype) + bytes_of(p.out_dtype)),
          .bound = Bound::copies,
          .moves = true};
}
Work gemm(const Problem& p) {  // w, mostly
  return {.flops = 2.0 * static_cast<double>(p.m * p.n) * static_cast<double>(p.k),
          .bytes = static_cast<double>(p.n * p.k + p.m * p.k) * bytes_of(p.dtype) +
                   static_cast<double>(p.m * p.n) * bytes_of(p.out_dtype),
          .bound = Bound::reads,
          .moves = true};
}
Work append(const Problem& p) {
  const double tokens = static_cast<double>(new_tokens(p)),
               cached = static_cast<double>(p.heads_kv * (p.dim_qk + p.dim_v)),
               queries = static_cast<double>(p.heads_q * p.dim_qk);
  return {.flops = tokens * (cached + queries),
          .bytes = tokens * (cached * (bytes_of(p.dtype) + bytes_of(p.key_dtype())) + 2 * queries * bytes_of(p.dtype)),
          .bound = Bound::copies,
          .moves = true};
}

}  // namespace

Work work_of(const Problem& p) {
  static constexpr struct {
    Op op;
    Work (*work)(const Problem&);
  } kWork[]{{kForward, forward},
            {kMerge, merge},
            {kBackward, backward},
            {kJvp, jvp},
            {kBackwardJvp, backward_jvp},
            {kSoftmax, softmax},
            {kSoftmaxBackward, softmax_backward},
            {kQuantize, quantize},
            {kFlatGemm, gemm},
            {kLinear, gemm},
            {kAppend, append}};
  return row_of(kWork, p.op).work(p);
}

}  // namespace onepass::bench
