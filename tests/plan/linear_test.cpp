// A linear takes the kernel that the crossovers name, says why, and is right by each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include "algebra/numerics.hpp"
#include "base/cpu_info.hpp"
#include "base/text.hpp"
#include "check/check.hpp"
#include "plan/dataflow.hpp"
#include "plan/implementations.hpp"
#include "support/pokes.hpp"

namespace onepass {
namespace {

TEST(Linear, IsChosenByTheLineOfItsMachineDtypeAndWeights) {
  const std::vector<CrossoverRow> rows = {{"cpu, 2 threads", DType::bf16, 64, 32, {2, 8}},
                                          {"NVIDIA H200", DType::f32, 64, 32, {1, 1}}};
  const auto chosen = [&](const char* line, const char* machine) {
    return plan::choose_dataflow(parse_problem(line), machine, rows);
  };
  EXPECT_EQ(chosen("linear m1 n64 k32 bf16", "cpu, 2 threads").dataflow, Dataflow::gemv);
  EXPECT_EQ(chosen("linear m2 n64 k32 bf16", "cpu, 2 threads").dataflow, Dataflow::flat_gemm);
  EXPECT_EQ(chosen("linear m8 n64 k32 bf16", "cpu, 2 threads").dataflow, Dataflow::gemm);
  EXPECT_TRUE(chosen("linear m8 n64 k32 bf16", "cpu, 2 threads").measured);
  for (const char* other : {"linear m8 n64 k32 fp32", "linear m8 n32 k64 bf16", "linear m8 n64 k32 fp16"}) {
    EXPECT_FALSE(chosen(other, "cpu, 2 threads").measured) << other;
    EXPECT_EQ(chosen(other, "cpu, 2 threads").dataflow, Dataflow::flat_gemm) << other;
  }
  EXPECT_FALSE(chosen("linear m8 n64 k32 bf16", "cpu, 3 threads").measured);
}

// A line of another CPU with the same number of threads belongs to another machine.
TEST(Linear, AMachineIsItsCpuAndItsThreads) {
  const Problem p = parse_problem("linear m8 n64 k32 bf16");
  EXPECT_EQ(plan::machine_of(p, 1), text(cpu_name(), ", 1 thread"));
  const CrossoverRow row{plan::machine_of(p, 2), DType::bf16, 64, 32, {1, 9}};
  EXPECT_EQ(parse_crossovers(to_text({row}), "f").rows, std::vector{row});
}

// Opening a FIFO would wait for a writer, and a device has no end. The alarm ends a test that waits.
TEST(Linear, ACrossoverFileOfAnotherKindIsRefused) {
  alarm(60);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / text("crossovers", getpid());
  std::filesystem::create_directories(folder);
  const std::filesystem::path fifo = folder / "fifo", large = folder / "large";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(large) << "a line\n";
  std::filesystem::resize_file(large, std::uintmax_t{1} << 40);  // without blocks on the disk
  for (const auto& [file, why] : {std::pair{fifo, "it must be a regular file"},
                                  {folder, "it must be a regular file"},
                                  {"/dev/zero", "it must be a regular file"},
                                  {"/dev/full", "it must be a regular file"},
                                  {large, "it must have at most 1048576 bytes (got 1099511627776)"}}) {
    const Crossovers read = plan::read_crossovers(file);
    EXPECT_EQ(read.refusal, text(file.string(), " cannot be read: ", why));
    EXPECT_TRUE(read.rows.empty());
  }
  EXPECT_EQ(plan::read_crossovers(folder / "none").refusal, "");
  std::filesystem::remove_all(folder);
  alarm(0);
}

TEST(Linear, TheChosenComeFirstAndFlatGemmHasItsOwnAlone) {
  std::string why;
  const Problem p = parse_problem("linear m8 n64 k32 fp32");
  const auto rows = plan::implementations(p, 2, &why);
  EXPECT_EQ(rows.size(), plan::implementations(kLinear).size());
  EXPECT_TRUE(std::ranges::is_partitioned(
      rows, [&](const Implementation* row) { return row->dataflow == rows.front()->dataflow; }));
  EXPECT_EQ(why.find(name_of(rows.front()->dataflow)), 0u) << why;
  EXPECT_NE(explain(p).find(why.substr(0, why.find(','))), std::string::npos) << explain(p);
  for (const Implementation* row : plan::implementations(kFlatGemm))
    EXPECT_TRUE(row->dataflow == Dataflow::flat_gemm || row->dataflow == Dataflow::none) << row->name;
  EXPECT_THROW((void)make_plan(parse_problem("flat_gemm m8 n64 k32 fp32"), "cuda.gemv"), Error);
}

TEST(Linear, EveryImplementationIsRight) {
  int judged = 0;
  for (const char* line :
       {"linear m1 n70 k40 fp32 column_bias", "linear m5 n33 k8 bf16", "linear m70 n40 k65 fp16 out=fp32",
        "linear m3 n5 k7 fp32 x_strides=9,1 w_strides=8,1 y_strides=6,1 column_bias", "linear m0 n5 k7 fp32",
        "linear m2 n5 k0 fp32 column_bias"}) {
    check::Inputs inputs = check::make_inputs(parse_problem(line), 3);
    for (const Implementation* row : plan::implementations(kLinear)) {
      const check::Verdict v = check::check(*row, inputs, serial_executor());
      if (!v.accepted) continue;
      EXPECT_TRUE(v.right) << line << " " << row->name << ": " << v.sentence;
      ++judged;
    }
  }
  EXPECT_GE(judged, 6);
}

TEST(Linear, NanAndInfinityReachTheirRowsAndColumns) {
  int judged = 0;
  for (const char* line : {"m7 n70 k131 bf16 column_bias", "m5 n41 k40 fp16 out=fp32", "m6 n33 k65 fp32",
                           "m4 n39 k50 bf16 x_strides=1,4 w_strides=1,39 y_strides=1,5"}) {
    for (const Op op : {kFlatGemm, kLinear}) {
      check::Inputs inputs = check::make_inputs(parse_problem(text(op == kLinear ? "linear " : "flat_gemm ", line)), 3);
      test::poke_gemm(inputs);
      for (const Implementation* row : plan::implementations(op)) {
        const check::Verdict v = check::check(*row, inputs, serial_executor());
        if (!v.accepted) continue;
        EXPECT_TRUE(v.right) << line << " " << row->name << ": " << v.sentence;
        const Tensor& y = inputs.tensors.y;
        const auto at = [&](std::int64_t m, std::int64_t n) {
          return load_element(y.data, y.dtype, m * y.stride[0] + n * y.stride[1]);
        };
        const std::int64_t columns = inputs.problem.n;
        for (std::int64_t n = 0; n < columns; ++n) {
          EXPECT_TRUE(std::isnan(at(0, n))) << row->name;
          EXPECT_EQ(std::isfinite(at(1, n)), n != columns / 2 && n != columns - 1) << row->name << " " << n;
        }
        ++judged;
      }
    }
  }
  EXPECT_GE(judged, 8);
}

}  // namespace
}  // namespace onepass
