// Rows to fp8_e4m3: what a factor or a mean is shared by is read first, then every 128 rows by themselves.
#include "cpu/quantize/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "algebra/descale.hpp"
#include "algebra/numerics.hpp"
#include "base/parallel.hpp"
#include "base/text.hpp"
#include "base/workspace.hpp"
#include "cpu/common/place.hpp"
#include "problem/attention/fp8.hpp"
#include "problem/quantize/quantize_problem.hpp"
#include "problem/roles.hpp"

namespace onepass::cpu {
namespace {

struct Job {
  const Problem& p;
  const Tensors& t;
  const std::int64_t all_rows;  // of each head; those behind them are left alone
  const std::array<std::uint32_t, 8> signs = rotation_signs(p.seed);
  const std::int64_t n = p.seq_k, together = rotated_together(n);
  const float root = 1 / std::sqrt(static_cast<float>(together));

  // Rows [first, first + count) of a head, of which pairs number them, as fp32.
  void load(std::int64_t pair, std::int64_t first, std::int64_t count, float* rows) const {
    const Dims& s = p.layout.x;
    const std::int64_t at = pair / p.heads_q * s[0] + pair % p.heads_q * s[1] + first * s[2];
    with_float_type(p.dtype, [&](auto zero) {
      const auto* from = static_cast<const decltype(zero)*>(t.x.data) + at;
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t c = 0; c < n; ++c) rows[i * n + c] = to_float(from[i * s[2] + c * s[3]]);
    });
  }
  void rotate(float* row) const {
    for (std::int64_t c = 0; c < n; ++c)
      if (signs[static_cast<std::size_t>(c / 32)] >> c % 32 & 1) row[c] = -row[c];
    for (std::int64_t step = 1; step < together; step *= 2) {
      for (std::int64_t c = 0; c < n; c += 2 * step) {
        for (std::int64_t i = c; i < c + step; ++i) {
          const float a = row[i], b = row[i + step];
          row[i] = a + b, row[i + step] = a - b;
        }
      }
    }
    for (std::int64_t c = 0; c < n; ++c) row[c] *= root;
  }

  // Into mean[n] the mean of what is finite, and how large a number can become.
  float amax_pass(std::int64_t pair, float* mean) const {
    std::vector<double> sums(static_cast<std::size_t>(n));
    std::vector<float> row(static_cast<std::size_t>(n));
    float most = 0;
    for (std::int64_t i = 0; i < all_rows; ++i) {
      load(pair, i, 1, row.data());
      float all = 0, largest = 0;  // of n numbers that are mixed, |x'| <= sum |x| / root n <= root n * max |x|
      for (std::int64_t c = 0; c < n; ++c) {
        const float x = std::isfinite(row[c]) ? row[c] : 0.0f;
        sums[c] += double{x};
        all += std::abs(x);
        largest = std::max(largest, std::abs(x));
      }
      most = std::max(most, p.hadamard ? std::min(all * root, largest / root) : largest);
    }
    for (std::int64_t c = 0; c < n; ++c)
      mean[c] = p.centered && all_rows > 0 ? static_cast<float>(sums[c] / static_cast<double>(all_rows)) : 0.0f;
    return p.centered ? 2 * most : most;  // a mean reaches no further than the numbers that it is of
  }

  // Returns the factor of the block, which is `factor` unless that is 0.
  float block(std::int64_t pair, std::int64_t first, const float* mean, float factor, float* rows) const {
    const std::int64_t count = std::min(kDescaleRows, all_rows - first);
    load(pair, first, count, rows);
    float most = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      float* const row = rows + i * n;
      for (std::int64_t c = 0; p.centered && c < n; ++c) row[c] -= mean[c];
      if (p.hadamard) rotate(row);
      for (std::int64_t c = 0; c < n; ++c) most = std::isfinite(row[c]) ? std::max(most, std::abs(row[c])) : most;
    }
    if (factor == 0) factor = descale_for(most);
    const Dims& s = p.layout.y;
    auto* const to = static_cast<f8e4m3*>(t.y.data) + pair / p.heads_q * s[0] + pair % p.heads_q * s[1] + first * s[2];
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = 0; c < n; ++c) {
        const float x = rows[i * n + c] * (1 / factor);
        to[i * s[2] + c * s[3]] = from_float<f8e4m3>(x + (x - x));  // an infinity becomes NaN: e4m3 has none
      }
    }
    return factor;
  }

  float& descale(std::int64_t batch, std::int64_t head, std::int64_t block) const {
    const Dims& s = p.layout.descale;
    return static_cast<float*>(t.descale.data)[batch * s[0] + head * s[1] + block * s[2]];
  }
  float& mean(std::int64_t i) const {  // of all elements of the mean
    const Dims& s = p.layout.mean;
    return static_cast<float*>(t.mean.data)[i / n / p.heads_q * s[0] + i / n % p.heads_q * s[1] + i % n * s[2]];
  }
};

class State final : public PlanState {
 public:
  explicit State(const Request& request) : PlanState(request.problem) {
    const Problem& p = *problem;
    Workspace w;
    book(p, w, request.workers);
    workspace_bytes = w.bytes();
  }
  std::string describe() const override {
    if (!needs_amax_pass(*problem)) return "reads each block of 128 rows once";
    return text("reads each head for its ",
                !problem->centered        ? "amax"
                : problem->descale.blocks ? "mean"
                                          : "mean and amax",
                ", then each block of 128 rows");
  }
  void run(const Tensors& t, void* memory, Executor& executor, void*) const override {
    run(t, memory, executor, problem->seq_q);
  }
  // The first `rows` rows of each head.
  void run(const Tensors& t, void* memory, Executor& executor, std::int64_t rows) const {
    const Problem& p = *problem;
    const Job job{p, t, rows};
    if (rows == 0 || is_empty(p)) return without_rows(job);
    const std::int64_t pairs = p.batch * p.heads_q, blocks = descale_blocks(rows), n = p.seq_k;
    Workspace w(memory);
    const Memory m = book(p, w, executor.workers());
    if (needs_amax_pass(p)) {
      parallel(executor, pairs,
               [&](std::int64_t pair, int) { m.most[pair] = job.amax_pass(pair, m.means + pair * n); });
      for (std::int64_t i = 0; p.centered && i < pairs * n; ++i) job.mean(i) = m.means[i];
    }
    if (!p.descale.blocks) {
      std::fill_n(m.factors, pairs, 0.0f);
      const auto first = [&](std::int64_t pair) {  // of those that share its factor
        return (p.descale.batch ? pair / p.heads_q * p.heads_q : 0) + (p.descale.heads ? pair % p.heads_q : 0);
      };
      for (std::int64_t i = 0; i < pairs; ++i) m.factors[first(i)] = std::max(m.factors[first(i)], m.most[i]);
      for (std::int64_t i = 0; i < pairs; ++i)
        m.factors[i] = first(i) == i ? (job.descale(i / p.heads_q, i % p.heads_q, 0) = descale_for(m.factors[i]))
                                     : m.factors[first(i)];
    }
    parallel(executor, pairs * blocks, [&](std::int64_t task, int worker) {
      const std::int64_t pair = task / blocks, block = task % blocks;
      const float factor = job.block(pair, block * kDescaleRows, m.means + pair * n,
                                     p.descale.blocks ? 0.0f : m.factors[pair], m.rows + worker * kDescaleRows * n);
      if (p.descale.blocks) job.descale(pair / p.heads_q, pair % p.heads_q, block) = factor;
    });
  }

 private:
  struct Memory {
    float *means, *most, *factors, *rows;
  };
  static bool is_empty(const Problem& p) { return std::min({p.batch, p.heads_q, p.seq_q}) == 0; }
  // Writes what there is of factors and means. The number of heads that share a factor does not matter.
  static void without_rows(const Job& job) {
    const Problem& p = job.p;
    for (std::int64_t i = 0; p.centered && i < p.batch * p.heads_q * job.n; ++i) job.mean(i) = 0;
    for (std::int64_t b = 0; !p.descale.blocks && b < (p.descale.batch ? p.batch : 1); ++b)
      for (std::int64_t h = 0; h < (p.descale.heads ? p.heads_q : 1); ++h) job.descale(b, h, 0) = descale_for(0);
  }
  static bool needs_amax_pass(const Problem& p) { return p.centered || !p.descale.blocks; }
  static Memory book(const Problem& p, Workspace& w, int workers) {
    const std::int64_t pairs = is_empty(p) ? 0 : p.batch * p.heads_q;
    return {w.take<float>(needs_amax_pass(p) ? pairs * p.seq_k : 0), w.take<float>(needs_amax_pass(p) ? pairs : 0),
            w.take<float>(p.descale.blocks ? 0 : pairs), w.take<float>(workers * kDescaleRows * p.seq_k)};
  }
};

class Quantizer final : public Fp8Quantizer {
 public:
  explicit Quantizer(const std::array<Request, 3>& requests)
      : states_{State(requests[0]), State(requests[1]), State(requests[2])} {}
  const PlanState& state(std::size_t i) const override { return states_[i]; }
  void run(const std::array<QuantizeCall, 3>& calls, Executor& executor, void*) const override {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const std::int64_t rows = states_[i].problem->seq_q, used = calls[i].used ? *calls[i].used : rows;
      states_[i].run(calls[i].tensors, calls[i].workspace, executor, std::clamp<std::int64_t>(used, 0, rows));
    }
  }

 private:
  const std::array<State, 3> states_;
};

}  // namespace

Decision quantized_first(const Request& request, const Implementation& attention) {
  const auto make = [](const std::array<Request, 3>& requests) -> MadeQuantizer {
    if (std::string why = why_elsewhere(*requests[0].problem); !why.empty()) return refuse(why);
    return {std::make_unique<const Quantizer>(requests)};
  };
  return onepass::quantized_first(request, attention, make);
}

constinit const Implementation kQuantizeImplementation{"cpu.quantize", plan_here<State>, kQuantize};

}  // namespace onepass::cpu
