// The ladder as a table: every rung run on one head of random data, metered, and compared with the float64 oracle.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "ladder/meter.hpp"
#include "onepass/tensor.hpp"

namespace onepass::ladder {

struct Row {
  std::string group;  // "softmax", "forward", "backward", "tangents", "decode"
  std::string rung;
  Counts counts;          // what it computed and moved
  Index extra_bytes = 0;  // slow memory beside inputs and outputs, at its peak
  Index fast_bytes = 0;   // fast memory, at its peak
  double error = 0;       // max |result - oracle|
  std::string note;       // tiles, splits, overlap
};

struct MeasureOptions {
  bool causal = false;
  DType dtype = DType::f32;  // how Q, K, V, O, S, P and gradients are stored: fp32, fp16 or bf16; arithmetic is fp32
  std::function<void(Index done, Index all)> progress;  // after every rung
};

// n queries and keys, head dim d, sram_bytes of fast memory. Softmax rungs take the n x n scores, decode rungs one
// query. Throws bad_value if a size is out of range or a rung cannot work in so little fast memory. About 1 s for n =
// 1024.
std::vector<Row> measure(Index n, Index d, Index sram_bytes, const MeasureOptions& options = {});

// Plain text, a line per row.
std::string table_text(const std::vector<Row>& rows);

// The row of the FlashAttention-1 paper that every talk shows: GPT-2 medium (N = 1024, d = 64, 16 heads, batch 64),
// forward and backward with mask and dropout, fp16. One head is metered and counted 1024 times.
struct PaperRow {
  std::string name;
  Counts counts;          // all heads
  Index extra_bytes = 0;  // one head
  double paper_gflops = 0, paper_gbytes = 0;
  // Matrix products for one head in 16, everything else for all: the only count that gives the paper's column
  // (docs/derivation.md).
  double gflops_as_in_paper() const;
};
struct PaperOptions {
  Index sram_bytes = 192 * 1024;  // M of Bc = ceil(M / 4d): an A100's L1 and shared memory
  Index fast_bytes = 448 * 1024;  // what must hold everything: the same and the register file
  std::function<void(Index done, Index all)> progress;
};
std::vector<PaperRow> measure_paper(const PaperOptions& options = {});
std::string paper_text(const std::vector<PaperRow>& rows);

// The error of FP8, and the effect of FlashAttention-3's mitigations.
struct Fp8Study {
  // Root mean square error on N(0, 1) + N(0, 100) x Bernoulli(0.001), 4096 keys, d = 128.
  struct Rmse {
    std::string how;
    double here = 0, in_paper = 0;
  };
  // By how much O is too small with V of mean 1, per accumulator of P V (fp8.hpp): Hopper's, Hopper's emptied into a
  // second one in fp32 every 256 keys, and fp32 throughout; and what a real H100 did.
  struct Loss {
    Index keys = 0;
    double narrow = 0, emptied = 0, wide = 0, h100 = 0;
  };
  std::vector<Rmse> rmse;
  std::vector<Loss> loss;
};
Fp8Study measure_fp8(const std::function<void(Index done, Index all)>& progress = {});
std::string fp8_text(const Fp8Study& study);

}  // namespace onepass::ladder
