#include <cmath>

#include "base/text.hpp"
#include "ladder/sample.hpp"
#include "ladder/steps/block_softmax.hpp"
#include "ladder/steps/flash2_backward.hpp"
#include "ladder/steps/flash3_forward.hpp"
#include "ladder/steps/flash3_fp8.hpp"
#include "ladder/steps/flash_decoding_pp.hpp"
#include "ladder/steps/naive_softmax.hpp"
#include "ladder/steps/one_pass.hpp"
#include "ladder/steps/online_normalizer.hpp"
#include "ladder/steps/safe_softmax.hpp"
#include "ladder/steps/standard_backward.hpp"
#include "ladder/steps/tangents/second_derivatives.hpp"
#include "ladder/table.hpp"

namespace onepass::ladder {
namespace {

using M = Machine<float>;
using H = Head<float>;

double error_of(const std::vector<float>& x, const std::vector<double>& reference) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::abs(static_cast<double>(x[i]) - reference[i]);
    if (!(e <= worst)) worst = e;  // a NaN stays
  }
  return worst;
}
double error_of(const Gradients<float>& g, const reference::DenseGradients& reference) {
  return std::max({error_of(g.dq.outside(), reference.dq.value), error_of(g.dk.outside(), reference.dk.value),
                   error_of(g.dv.outside(), reference.dv.value)});
}
std::string tiles(TileShape t) { return text(t.rows, " x ", t.keys, " tiles"); }

class Ladder {
 public:
  Ladder(Index sram_bytes, const MeasureOptions& options, Index rungs)
      : sram_(sram_bytes), options_(options), rungs_(rungs) {}

  // work(machine, note) computes the rung and returns its error.
  template <class F>
  void rung(const char* group, const char* name, F&& work) {
    M machine(sram_);
    Row row{group, name, {}, 0, 0, 0, {}};
    try {
      row.error = work(machine, row.note);
    } catch (const Error& e) {
      throw Error(e.code(), text(name, " (", group, "): ", e.what()));
    }
    row.counts = machine.counts;
    row.extra_bytes = machine.extra_peak();
    row.fast_bytes = machine.fast_peak();
    rows.push_back(std::move(row));
    if (options_.progress) options_.progress(static_cast<Index>(rows.size()), rungs_);
  }
  std::vector<Row> rows;

 private:
  Index sram_;
  const MeasureOptions& options_;
  Index rungs_;
};

// The scores of the head, masked, and their softmax in float64.
struct ScoreMatrix {
  Slow<float> scores;
  std::vector<double> softmax;

  explicit ScoreMatrix(const H& head) : scores(head.seq_q(), head.seq_k(), head.q.format()) {
    M machine(0);
    const Tile<float> k = machine.load(head.k, 0, head.seq_k());
    for (Index row = 0; row < head.seq_q(); ++row) {
      Tile<float> s = scores_of(machine, head, machine.load(head.q, row, 1), k);
      hide(s, head.mask, row, 0);
      machine.store(s, scores, row);
    }
    for (auto from = scores.outside().begin(); from != scores.outside().end(); from += head.seq_k()) {
      double m = Arith<double>::neg_inf(), l = 0;
      for (auto x = from; x != from + head.seq_k(); ++x) m = std::max(m, static_cast<double>(*x));
      for (auto x = from; x != from + head.seq_k(); ++x)
        l += softmax.emplace_back(std::exp2(static_cast<double>(*x) - m));
      for (auto p = softmax.end() - head.seq_k(); p != softmax.end(); ++p) *p /= l;
    }
  }
};

void softmax_rungs(Ladder& ladder, const H& head) {
  const ScoreMatrix x(head);
  const auto rung = [&](const char* name, auto&& run) {
    ladder.rung("softmax", name, [&](M& machine, std::string&) {
      Slow<float> y(x.scores.rows(), x.scores.cols(), x.scores.format());
      run(machine, x.scores, y);
      return error_of(y.outside(), x.softmax);
    });
  };
  rung("naive softmax", [](auto&... a) { naive_softmax(a...); });
  rung("safe softmax", [](auto&... a) { safe_softmax(a...); });
  rung("online softmax", [](auto&... a) { online_softmax(a...); });
  rung("block softmax, merged", [&](auto&... a) { block_softmax(a..., std::max<Index>(1, x.scores.cols() / 8)); });
}

void forward_rungs(Ladder& ladder, const H& head, Index sram, const std::vector<double>& want) {
  const auto rung = [&](const char* name, auto&& run) {
    ladder.rung("forward", name,
                [&](M& machine, std::string& note) { return error_of(run(machine, note).o.outside(), want); });
  };
  rung("standard attention", [&](M& m, std::string&) { return standard_forward(m, head); });
  rung("two-pass attention", [&](M& m, std::string&) { return two_pass_attention(m, head); });
  rung("one-pass attention", [&](M& m, std::string&) { return one_pass_attention(m, head); });
  rung("FlashAttention-1", [&](M& m, std::string& note) {
    const TileShape t = flash1_forward_tiles(sram, sram, head);
    note = tiles(t);
    return flash1_forward(m, head, t);
  });
  rung("FlashAttention-2", [&](M& m, std::string& note) {
    const TileShape t = flash2_forward_tiles(sram, head);
    note = tiles(t);
    return flash2_forward(m, head, t);
  });
  const auto flash3 = [&](const char* name, Index warpgroups, Schedule schedule) {
    rung(name, [&](M& m, std::string& note) {
      const TileShape t = flash3_forward_tiles(sram, warpgroups, head);
      Timeline time(m.counts, warpgroups);
      Forward<float> f = flash3_forward(m, head, t, warpgroups, schedule, time);
      note = text(warpgroups > 1 ? text(warpgroups, " times ") : "", tiles(t), ", matrix unit busy ",
                  std::lround(100 * time.utilisation()), " %");
      return f;
    });
  };
  flash3("FlashAttention-3, serial", 1, Schedule::serial);
  flash3("FlashAttention-3, two-stage", 1, Schedule::two_stage);
  flash3("FlashAttention-3, ping-pong", 2, Schedule::ping_pong);
  const auto fp8 = [&](const char* name, const Fp8Options& how) {
    rung(name, [&](M& m, std::string& note) {
      const TileShape t = flash3_fp8_tiles(sram, head);
      note = tiles(t);
      return flash3_fp8_forward(m, head, t, how);
    });
  };
  fp8("FlashAttention-3, FP8 plain", {.per_tensor = true, .incoherent = false});
  fp8("FlashAttention-3, FP8 in full", {.per_tensor = false, .incoherent = true});
}

void backward_rungs(Ladder& ladder, const H& head, Index sram, const Slow<float>& d_o,
                    const reference::DenseGradients& want) {
  ladder.rung("backward", "standard attention", [&](M& machine, std::string&) {
    M before(sram);
    const StandardForward<float> f = standard_forward(before, head);
    return error_of(standard_backward(machine, head, f, d_o), want);
  });
  ladder.rung("backward", "FlashAttention-1", [&](M& machine, std::string& note) {
    M before(sram);
    const Forward<float> f = flash1_forward(before, head, flash1_forward_tiles(sram, sram, head));
    const TileShape t = flash1_backward_tiles(sram, sram, head);
    note = tiles(t);
    return error_of(flash1_backward(machine, head, f, d_o, t), want);
  });
  ladder.rung("backward", "FlashAttention-2", [&](M& machine, std::string& note) {
    M before(sram);
    const Forward<float> f = flash2_forward(before, head, flash2_forward_tiles(sram, head));
    const TileShape t = flash2_backward_tiles(sram, head);
    note = tiles(t);
    return error_of(flash2_backward(machine, head, f, d_o, t), want);
  });
}

void tangent_rungs(Ladder& ladder, const RandomHead& data, Index sram) {
  const H& head = data.head();
  const auto run = [&](M& machine, std::string& note) {
    const TileShape t = forward_mode_tiles(sram, head);
    note = tiles(t);
    return forward_mode(machine, head, data.tangents(), t);
  };
  ladder.rung("tangents", "forward mode", [&](M& machine, std::string& note) {
    return error_of(run(machine, note).o.outside(), data.forward_mode().tout.value);
  });
  ladder.rung("tangents", "second derivatives", [&](M& machine, std::string& note) {
    M before(sram);
    const ForwardMode<float> f = run(before, note);
    const TileShape t = second_tiles(sram, head);
    note = tiles(t);
    return error_of(second_derivatives(machine, head, f, {data.tangents(), data.d_o(), data.td_o()}, t),
                    data.second_derivatives());
  });
}

void decode_rungs(Ladder& ladder, const RandomHead& data, Index sram) {
  constexpr Index kSplits = 8;
  const H& head = data.head();
  const std::vector<double> want = data.forward().out;
  const Index keys = decode_tile_keys(sram, head);
  ladder.rung("decode", "Flash-Decoding", [&](M& machine, std::string& note) {
    note = text(kSplits, " splits");
    return error_of(flash_decoding(machine, head, kSplits, keys).o.outside(), want);
  });
  ladder.rung("decode", "FlashDecoding++", [&](M& machine, std::string& note) {
    const UnifiedMax<float> f = flash_decoding_pp(machine, head, kSplits, keys, 0.0);
    note = text(kSplits, " splits, phi = 0, ", f.recomputed_rows, " rows recomputed");
    return error_of(f.out.o.outside(), want);
  });
}

Problem problem_of(Index queries, Index keys, Index d, const MeasureOptions& options) {
  Problem p;
  p.seq_q = queries;
  p.seq_k = keys;
  p.dim_qk = p.dim_v = d;
  p.dtype = p.out_dtype = options.dtype;
  p.band.causal = options.causal;
  set_contiguous(p);
  validate(p);
  return p;
}

}  // namespace

std::vector<Row> measure(Index n, Index d, Index sram_bytes, const MeasureOptions& options) {
  constexpr Index kMaxN = 8192, kRungs = 21;
  if (n < 1 || n > kMaxN) {
    throw Error(ErrorCode::bad_value,
                text("n must be 1 to ", kMaxN, ", because standard attention keeps n x n matrices (got ", n, ")"));
  }
  if (sram_bytes < 1) throw Error(ErrorCode::bad_value, text("sram must be at least 1 byte (got ", sram_bytes, ")"));
  if (options.dtype != DType::f32 && options.dtype != DType::f16 && options.dtype != DType::bf16) {
    throw Error(ErrorCode::bad_dtype, text("dtype must be fp32, fp16 or bf16 (got ", name_of(options.dtype), ")"));
  }
  const RandomHead data(problem_of(n, n, d, options)), token(problem_of(1, n, d, options));
  const H& head = data.head();
  Ladder ladder(sram_bytes, options, kRungs);
  softmax_rungs(ladder, head);
  forward_rungs(ladder, head, sram_bytes, data.forward().out);
  backward_rungs(ladder, head, sram_bytes, data.d_o(), data.backward());
  tangent_rungs(ladder, data, sram_bytes);
  decode_rungs(ladder, token, sram_bytes);
  return std::move(ladder.rows);
}

}  // namespace onepass::ladder
