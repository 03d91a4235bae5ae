// cpu.decode.*: every instruction set of this machine, every feature, against the oracle by the rule of the
// conventions.
#include "cpu/decode/decode.hpp"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "algebra/numerics.hpp"
#include "check/check.hpp"

namespace onepass::cpu {
namespace {

using check::Distribution;
using check::Inputs;
using check::Placement;

std::vector<const Implementation*> here() {
  std::vector<const Implementation*> rows;
  for (const Implementation& row : decode_implementations()) {
    if (why_not(row, parse_problem("fwd b1 h1 s1 d8 fp32")).empty()) rows.push_back(&row);
  }
  return rows;
}

void expect_right(const std::string& line, Distribution distribution = Distribution::normal,
                  Placement placement = Placement::middle, std::uint64_t seed = 0) {
  Inputs inputs = check::make_inputs(parse_problem(line), seed, distribution, placement);
  for (const Implementation* row : here()) {
    const check::Verdict verdict = check::check(*row, inputs);
    EXPECT_TRUE(verdict.accepted && verdict.right)
        << row->name << ", " << line << ", " << name_of(distribution) << ": " << verdict.sentence;
  }
}

void expect_right_everywhere(const std::string& line) {
  for (const char* dtype : {" fp32", " fp16", " bf16"}) {
    for (Distribution distribution : check::kDistributions) expect_right(line + dtype + " lse", distribution);
  }
}

TEST(Decode, ThereIsARowForEveryInstructionSet) {
  ASSERT_GE(decode_implementations().size(), 1u);
  EXPECT_FALSE(here().empty());
}

// One to sixteen rows per K/V head, from queries, from the group and from both.
TEST(Decode, RowGroups) {
  for (const char* shape : {"h2 s1x70", "h4/2 s1x70", "h3/1 s1x70", "h8/2 s1x70", "h5/1 s1x70", "h6/1 s1x70",
                            "h14/2 s1x70", "h8/1 s1x70", "h2 s2x70", "h4/2 s2x70", "h3 s3x70", "h4/2 s4x70",
                            "h6/2 s2x70", "h1 s5x70", "h1 s7x70", "h1 s8x70", "h16/1 s1x70", "h6/2 s5x70"}) {
    expect_right_everywhere(std::string("fwd b2 ") + shape + " d64");
  }
}

TEST(Decode, HeadDims) {
  for (const char* dims :
       {"d1",   "d3",       "d8",      "d15",    "d16",  "d17",  "d32",  "d40",     "d59",     "d64",
        "d72",  "d80",      "d88",     "d96",    "d111", "d128", "d160", "d192",    "d224",    "d255",
        "d256", "d192/128", "d64/256", "d31/33", "d288", "d511", "d512", "d40/512", "d576/512"}) {
    expect_right_everywhere(std::string("fwd b3 h8/2 s1x77 ") + dims);
  }
}

TEST(Decode, KeyCounts) {
  for (int keys : {0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 203, 255, 257, 1023, 1024, 2049}) {
    const std::string shape = " s1x" + std::to_string(keys) + " d64";
    expect_right("fwd b1 h4/1" + shape + " fp32 lse", Distribution::rising);
    expect_right("fwd b1 h2" + shape + " bf16 lse", Distribution::one_hot);
    expect_right("fwd b1 h8/2" + shape + " fp32 lse layout=bshd", Distribution::one_hot);
    expect_right("fwd b1 h4/2" + shape + " fp16 lse layout=bshd", Distribution::rising);
  }
}

TEST(Decode, SizesOfZero) {
  for (const char* line :
       {"fwd b0 h4/2 s1x8 d16 fp32 lse", "fwd b2 h0/2 s1x8 d16 fp32 lse", "fwd b2 h4/2 s0x8 d16 fp32 lse",
        "fwd b2 h4/2 s1x0 d16 bf16 sinks lse", "fwd b2 h4/2 s2x0 d16 fp32 layout=bshd causal_top_left lse"}) {
    expect_right(line);
  }
}

TEST(Decode, MasksAndFeatures) {
  for (const char* feature :
       {"causal_bottom_right",
        "causal_top_left",
        "window=5:3",
        "window=40:0",
        "window=0:0",
        "window=-1:2 aligned_top_left",
        "window=16:-1 causal_bottom_right",
        "mask=bhqk",
        "mask=11qk",
        "mask=b11k",
        "mask=1hq1",
        "bias=fp32:bhqk",
        "bias=bf16:1h1k",
        "bias=fp16:11q1",
        "alibi",
        "alibi causal_bottom_right",
        "softcap=5",
        "softcap=30 sinks",
        "sinks",
        "sinks mask=bhqk",
        "dropout=0.3 seed=7",
        "dropout=1",
        "dropout=0.1 causal_bottom_right sinks",
        "causal_bottom_right window=33:-1 mask=bhqk bias=fp32:bhqk alibi softcap=20 sinks dropout=0.2 seed=3"}) {
    for (const char* shape : {"b2 h8/2 s1x300 d32", "b2 h4/2 s3x131 d40", "b1 h3 s5x3 d64", "b1 h2/1 s4x600 d64"}) {
      for (const char* dtype : {" fp32 lse ", " bf16 lse layout=bshd ", " fp16 lse "}) {
        expect_right(std::string("fwd ") + shape + dtype + feature, Distribution::normal, Placement::middle, 1);
        expect_right(std::string("fwd ") + shape + dtype + feature, Distribution::rising);
      }
    }
  }
}

TEST(Decode, RaggedLengths) {
  for (const char* feature : {"", " causal_bottom_right", " causal_top_left alibi sinks", " window=20:4",
                              " dropout=0.2 seed=5", " mask=bhqk bias=fp32:bhqk"}) {
    for (const char* dtype : {" fp32", " bf16"}) {
      expect_right(std::string("fwd b5 h4/2 s2x700 d64") + dtype + " lse varlen=1,0,2,2,1/700,9,0,1,130" + feature);
      expect_right(std::string("fwd b3 h2 s8x70 d24") + dtype + " lse varlen=8,3,5/70,3,2" + feature);
    }
  }
}

// From one split and from several, of which some rows see none; with values that are checked; one result per row.
TEST(Decode, Entropies) {
  for (const char* shape : {"b2 h8/2 s1x300 d32", "b1 h3/1 s1x3000 d40", "b2 h4/2 s3x131 d40 layout=bshd",
                            "b1 h2/1 s4x2600 d64 window=1500:0", "b1 h5/1 s1x70 d64", "b1 h7/1 s2x1200 d24",
                            "b3 h8/2 s1x2100 d64 kv=paged:16 seqused=2100,33,0", "b2 h4/2 s1x0 d16"}) {
    for (const char* feature : {"", " batch_invariant", " sinks causal_bottom_right", " mask=b11k softcap=5",
                                " bias=fp32:1h1k alibi batch_invariant", " dropout=0.3 seed=7"}) {
      for (const char* dtype : {" fp32", " bf16"}) {
        for (Distribution distribution : {Distribution::normal, Distribution::rising, Distribution::one_hot})
          expect_right(std::string("fwd ") + shape + dtype + feature + " lse entropy", distribution);
      }
    }
  }
}

TEST(Decode, ManySequences) { expect_right("fwd b65537 h1 s1x2 d8 fp32 lse"); }

TEST(Decode, StridesOfEveryKind) {
  // 2 x 3 heads, 77 keys, d 16: rows apart, heads backwards, K and V the same for all heads and batch entries
  expect_right("fwd b2 h6/3 s2x77 d16 fp32 lse strides=q:2000,-60,400;k:0,0,16;v:-5000,19,64;o:1000,-40,300");
  expect_right("fwd b2 h6/3 s2x77 d16 bf16 lse strides=q:192,32,16;k:3696,16,48;v:3696,-16,-48;o:192,32,16");
}

// Nothing is read past the end of a row: the tensor may end there, and so may its page.
TEST(Decode, ReadsNothingPastTheEndOfARow) {
  for (int dim : {1, 7, 16, 24, 33, 64, 72, 100, 128, 250}) {
    for (const char* dtype : {" fp32", " fp16", " bf16"}) {
      for (Placement placement : {Placement::page_end, Placement::page_start}) {
        expect_right("fwd b9 h4/2 s1x19 d" + std::to_string(dim) + dtype + " lse", Distribution::normal, placement);
        expect_right("fwd b9 h4/2 s2x50 d" + std::to_string(dim) + dtype +
                         " lse layout=bshd mask=bhqk bias=fp32:bhqk alibi sinks",
                     Distribution::normal, placement);
      }
    }
  }
}

// NaN and infinity reach exactly the rows that see them.
TEST(Decode, NanAndInfinityStayWithTheRowsThatSeeThem) {
  for (const char* line :
       {"fwd b1 h4/2 s4x90 d40 fp32 lse causal_bottom_right", "fwd b1 h4/2 s2x600 d64 bf16 lse mask=bhqk",
        "fwd b1 h2/1 s4x50 d64 fp16 lse window=9:0 layout=bshd",
        "fwd b1 h2/1 s4x50 d64 fp32 lse dropout=0.5 causal_top_left",
        "fwd b1 h4/2 s4x3000 d40 fp32 entropy causal_bottom_right"}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      for (const bool in_v : {true, false}) {
        Inputs inputs = check::make_inputs(parse_problem(line));
        const ConstTensor& t = in_v ? inputs.tensors.v : inputs.tensors.k;
        for (std::int64_t j : {std::int64_t{2}, inputs.problem.seq_k - 2})
          store_element(Inputs::writable<void>(t), t.dtype, row_offset(t, 0, 1, j) + 5, bad);
        inputs.changed();
        for (const Implementation* row : here()) {
          const check::Verdict verdict = check::check(*row, inputs);
          EXPECT_TRUE(verdict.right) << row->name << ", " << line << ", " << bad << (in_v ? " in v: " : " in k: ")
                                     << verdict.sentence;
        }
      }
    }
  }
}

std::vector<std::byte> bytes_of(const Inputs& inputs, const Tensor& t) {
  for (const check::Buffer& b : inputs.buffers) {
    if (b.data() == t.data) return {b.data(), b.data() + b.bytes()};
  }
  return {};
}

TEST(Decode, IsTheSameForAnyThreadCountAndEveryTime) {
  for (const char* line : {"fwd b1 h8/2 s1x4096 d64 fp32 lse", "fwd b2 h8/2 s2x3000 d64 bf16 lse layout=bshd",
                           "fwd b3 h4/2 s2x700 d32 fp32 lse varlen=1,0,2/700,9,3"}) {
    Inputs inputs = check::make_inputs(parse_problem(line));
    for (const Implementation* row : here()) {
      ASSERT_TRUE(check::run_on(*row, inputs, serial_executor()));
      const auto out = bytes_of(inputs, inputs.tensors.out), lse = bytes_of(inputs, inputs.tensors.lse);
      ASSERT_FALSE(out.empty());
      for (int threads : {1, 2, 3, 8}) {
        ASSERT_TRUE(check::run_on(*row, inputs, *make_executor(threads)));
        EXPECT_EQ(bytes_of(inputs, inputs.tensors.out), out) << row->name << " " << line << " " << threads;
        EXPECT_EQ(bytes_of(inputs, inputs.tensors.lse), lse) << row->name << " " << line << " " << threads;
      }
    }
  }
}

TEST(Decode, CutsByShapeOnly) {
  const auto cut = [](const char* line) {
    const Problem p = parse_problem(line);
    return decode_cut(p, {p.seq_q, p.seq_k});
  };
  EXPECT_EQ(cut("fwd b1 h32/8 s1x8192 d128 fp32").splits.count, 8);
  EXPECT_EQ(cut("fwd b64 h32/8 s1x8192 d128 fp32").splits.count, 1);
  EXPECT_FALSE(cut("fwd b1 h32/8 s1x8192 d128 fp32").keys_outer);
  EXPECT_TRUE(cut("fwd b1 h32/8 s1x8192 d128 fp32 layout=bshd").keys_outer);
  EXPECT_EQ(cut("fwd b1 h32/8 s1x8192 d128 fp32 layout=bshd").heads, 8);
  // a window leaves few keys to share
  EXPECT_EQ(cut("fwd b1 h1 s1x8192 d128 fp32 window=99:0").splits.count, 1);
  for (std::int64_t keys = 0; keys < 5000; keys += 37) {
    const DecodeCut c = cut(("fwd b1 h2 s1x" + std::to_string(keys) + " d64 bf16").c_str());
    EXPECT_EQ(c.chunk % c.tile, 0);
    EXPECT_GE(c.splits.count * c.splits.chunk, keys);
  }
}

TEST(Decode, RefusesManyRowsInASentence) {
  const Implementation& row = *here().front();
  EXPECT_EQ(why_not(row, parse_problem("fwd b1 h34/2 s1x64 d64 fp32")),
            "supports at most 16 rows (seq_q x heads_q / heads_kv) per K/V head (got 17)");
  EXPECT_EQ(why_not(row, parse_problem("fwd b1 h16/2 s2x64 d64 fp32")), "");
  EXPECT_EQ(why_not(row, parse_problem("fwd b1 h8/2 s2x64 d64 fp32 cuda")), "it computes on the CPU only");
}

}  // namespace
}  // namespace onepass::cpu
