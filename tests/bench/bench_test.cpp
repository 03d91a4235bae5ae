// The counts of the benchmark and its talk with peers. It times nothing: speed is shown by `onepass bench` itself.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "algebra/numerics.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"
#include "tools/onepass/bench/cell.hpp"
#include "tools/onepass/bench/device_inputs.hpp"
#include "tools/onepass/bench/peaks.hpp"
#include "tools/onepass/bench/report.hpp"
#include "tools/onepass/bench/work.hpp"

namespace onepass::bench {
namespace {

TEST(Bench, ReadsCells) {
  EXPECT_FALSE(parse_cell("  # a comment"));
  EXPECT_FALSE(parse_cell(""));
  const auto cell = parse_cell("2 | cpu.flash.avx2 | fwd b1 h2 s8 d16 fp32 ");
  ASSERT_TRUE(cell);
  EXPECT_EQ(cell->threads, 2);
  EXPECT_EQ(cell->implementation, "cpu.flash.avx2");
  EXPECT_EQ(cell->problem.heads_q, 2);
  EXPECT_EQ(parse_cell("1 | - | fwd b1 h1 s8 d8 fp32")->implementation, "");
  EXPECT_EQ(parse_cell("fwd b1 h1 s8 d8 fp32 cuda:1")->problem.device.index, 1);
  const std::string either = "fwd h1 s8 d8 fp32 mask_mod={q_index || k_index < 4}";  // these '|' separate nothing
  EXPECT_EQ(to_string(parse_cell(either)->problem), to_string(parse_cell("1 | - | " + either)->problem));
  for (const char* line : {"fwd b1 | -", "0 | - | fwd b1 h1 s8 d8 fp32", "1 | - | nonsense"})
    EXPECT_THROW(parse_cell(line), Error) << line;
}

TEST(Bench, ReadsPoisons) {
  const auto cell = parse_cell("1 | - | bwd b1 h1 s8 d8 fp32 with v=one dout=rows");
  ASSERT_EQ(cell->poisons.size(), 2u);
  EXPECT_EQ(cell->poisons[0].role, Role::v);
  EXPECT_EQ(cell->poisons[1].amount, Amount::rows);
  EXPECT_TRUE(cell->line().ends_with(" with v=one dout=rows")) << cell->line();
  EXPECT_TRUE(parse_cell("fwd b1 h1 s8 d8 fp32")->poisons.empty());
  for (const char* line : {"fwd b1 h1 s8 d8 fp32 with v", "fwd b1 h1 s8 d8 fp32 with v=few",
                           "fwd b1 h1 s8 d8 fp32 with bias=one", "fwd b1 h1 s8 d8 fp32 with dout=one"})
    EXPECT_THROW(parse_cell(line), Error) << line;
}

TEST(Bench, PoisonsAsManyElementsAsItSays) {
  constexpr std::int64_t kRows = 40, kDim = 24;
  for (const auto& [amount, count] : {std::pair{Amount::one, 1},
                                      {Amount::some, (kRows * kDim + 96) / 97},
                                      {Amount::rows, kRows},
                                      {Amount::all, kRows * kDim},
                                      {Amount::large, 0}}) {
    std::vector<float> x(kRows * 2 * kDim, 2.5f);
    ConstTensor t(x.data(), DType::f32, {kRows, kDim}, {2 * kDim, 1});
    poison(t, amount);
    std::int64_t nonfinite = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      nonfinite += !std::isfinite(x[i]);
      if (i % (2 * kDim) >= kDim) {
        EXPECT_EQ(x[i], 2.5f) << "between the rows";
      }
    }
    EXPECT_EQ(nonfinite, count);
    if (amount == Amount::large) {
      EXPECT_GT(x[0] * x[1], std::numeric_limits<float>::max());
    }
  }
}

TEST(Bench, EverySuiteCanBeRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ONEPASS_SUITES)) {
    std::ifstream file(entry.path());
    int cells = 0;
    for (std::string line; std::getline(file, line);) EXPECT_NO_THROW(cells += parse_cell(line).has_value()) << line;
    EXPECT_GT(cells, 0) << entry.path();
    ++files;
  }
  EXPECT_GE(files, 4);
}

TEST(Bench, DrawsNormalsOfEveryDtype) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    constexpr int kElements = 100001;  // no multiple of 4: the last draw is used in part
    std::vector<std::byte> bytes(kElements * size_of(dtype) + 4, std::byte{0x55});
    fill_random(bytes.data(), kElements * size_of(dtype), dtype, 7);
    double sum = 0, squares = 0, neighbours = 0;
    for (int i = 0; i < kElements; ++i) {
      const double x = load_element(bytes.data(), dtype, i);
      sum += x;
      squares += x * x;
      if (i > 0) neighbours += x * load_element(bytes.data(), dtype, i - 1);
    }
    EXPECT_NEAR(sum / kElements, 0, 0.02);
    EXPECT_NEAR(squares / kElements, 1, 0.03);
    EXPECT_NEAR(neighbours / kElements, 0, 0.02);
    for (std::size_t i = bytes.size() - 4; i < bytes.size(); ++i) EXPECT_EQ(bytes[i], std::byte{0x55});
  }
  std::vector<std::byte> bools(10000);
  fill_random(bools.data(), bools.size(), DType::boolean, 7);
  const auto ones = std::count(bools.begin(), bools.end(), std::byte{1});
  EXPECT_EQ(ones + std::count(bools.begin(), bools.end(), std::byte{0}), 10000);
  EXPECT_NEAR(static_cast<double>(ones), 5000, 300);
}

TEST(Bench, DeviceTensorsHaveTheProblemsLayout) {
  const Tensors a =
      shaped(parse_problem("fwd b2 h4/2 s10x7 d8/16 bf16 bias=fp32:1hqk mask=b11k sinks lse layout=bshd"));
  EXPECT_EQ(a.q.stride, (Dims{10 * 4 * 8, 8, 4 * 8, 1}));
  EXPECT_EQ(bytes_spanned(a.q), 2u * 2 * 10 * 4 * 8);
  EXPECT_EQ(a.v.shape, (Dims{2, 2, 7, 16}));
  EXPECT_EQ(a.out.shape, (Dims{2, 4, 10, 16}));
  EXPECT_EQ(bytes_spanned(a.bias), 4u * 4 * 10 * 7);
  EXPECT_EQ(a.bool_mask.shape, (Dims{2, 1, 1, 7}));
  EXPECT_EQ(bytes_spanned(a.lse), 4u * 2 * 4 * 10);
  EXPECT_FALSE(a.alibi_slopes.given());
  const Tensors packed = shaped(parse_problem("fwd h2 d8 fp32 varlen=3,5 lse"));
  EXPECT_EQ(packed.k.rank, 3);
  EXPECT_EQ(bytes_spanned(packed.k), 4u * 8 * 2 * 8);
  EXPECT_EQ(packed.cu_seqlens_k.shape[0], 3);
}

TEST(Bench, ReportsTheBestPeerOfADeviceCell) {
  CellResult r;
  r.spec.problem = parse_problem("fwd b1 h1 s8 d8 bf16 cuda");
  r.implementation = "cuda.some";
  r.median_s = 1e-3;
  r.flops = 5e11;
  r.peak_flops_per_s = 8e14;
  r.peers = {
      {"slow", "", 3e-3, true, 7}, {"fast", "asked otherwise", 2e-3, true, 0}, {"none", "refused: no", 0, false, 0}};
  const nlohmann::json j = to_json(r);
  EXPECT_EQ(j["best_peer"], "fast");
  EXPECT_DOUBLE_EQ(j["times_best_peer"], 2.0);
  EXPECT_DOUBLE_EQ(j["tflops"], 500.0);
  EXPECT_EQ(j["peers"]["fast"]["note"], "asked otherwise");
  EXPECT_EQ(j["peers"]["slow"]["extra_bytes"], 7.0);
  EXPECT_EQ(j["peers"]["none"]["missing"], "refused: no");
  EXPECT_FALSE(j.contains("threads"));
  r.peers.clear();
  EXPECT_EQ(best_peer(r), nullptr);
}

TEST(Bench, CountsTheWorkThatTheBandShows) {
  EXPECT_EQ(visible_pairs(parse_problem("fwd b2 h3 s10x7 d8 fp32")), 2 * 3 * 70);
  EXPECT_EQ(visible_pairs(parse_problem("fwd b1 h1 s8 d8 fp32 causal_top_left")), 36);
  EXPECT_EQ(visible_pairs(parse_problem("fwd b1 h1 s8 d8 fp32 window=1:1")), 8 * 3 - 2);
  EXPECT_EQ(visible_pairs(parse_problem("fwd h2 d8 fp32 varlen=3,0,5/2,4,5")), 2 * (6 + 0 + 25));
}

TEST(Bench, CountsTheProductsThatTheGradientsNeed) {
  for (const auto& [grads, dims] : {std::pair{"dq,dk,dv", 3 * 8 + 2 * 4},
                                    {"dq,dk,dv,dbias", 3 * 8 + 2 * 4},
                                    {"dv", 8 + 4},
                                    {"dbias", 8 + 4},
                                    {"dk", 2 * 8 + 4},
                                    {"dsinks", 0}}) {
    const Problem p = parse_problem(text("bwd h2 s10x7 d8/4 bias=fp32:11qk sinks grads=", grads));
    EXPECT_EQ(work_of(p).flops, 2.0 * dims * 2 * 70) << grads;
  }
}

TEST(Bench, KnowsWhosePeakToTake) {
  Isa isa;
  EXPECT_TRUE(isa_of("cpu.flash.avx2", isa));
  EXPECT_EQ(isa, Isa::avx2);
  EXPECT_TRUE(isa_of("cpu.amx.bf16", isa));
  EXPECT_EQ(isa, Isa::avx512);
  EXPECT_FALSE(isa_of("reference", isa));
}

TEST(Bench, MeasuresACellBesideAPeer) {
  PeerProcess peer(
      "while read line; do echo '{\"peer\": \"slow\", \"median_s\": 1.0}'; done");  // a second for everything
  const Effort effort{2, 0.001, {"slow"}};
  const CellResult r = run_cell({1, "reference", parse_problem("fwd b1 h1 s16 d8 fp32")}, effort, &peer);
  EXPECT_EQ(r.implementation, "reference");
  EXPECT_GT(r.median_s, 0);
  EXPECT_LE(r.best_s, r.median_s);
  EXPECT_EQ(r.flops, 2.0 * 16 * 16 * 16);
  EXPECT_EQ(r.bytes, 16.0 * 16 * 4);
  ASSERT_EQ(r.peers.size(), 1u);
  EXPECT_EQ(r.peers[0].median_s, 1.0);
}

TEST(Bench, SaysWhyAPeerHasNoNumber) {
  const CellSpec spec{1, "reference", parse_problem("fwd b1 h1 s4 d8 fp32")};
  const Effort effort{1, 0.001, {"p"}};
  PeerProcess refuses("while read line; do echo '{\"refused\": \"no such head dim\"}'; done");
  EXPECT_EQ(run_cell(spec, effort, &refuses).peers[0].note, "refused: no such head dim");
  PeerProcess gone("true");
  EXPECT_EQ(run_cell(spec, effort, &gone).peers[0].note, "the peer process ended");
  EXPECT_EQ(run_cell(spec, effort, nullptr).peers[0].note, "no peer process");
}

}  // namespace
}  // namespace onepass::bench
