// The commands beside `run` on valid input.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "cuda/driver/api.hpp"
#include "onepass/attention.hpp"
#include "onepass/context_parallel.hpp"
#include "onepass/version.h"
#include "plan/plan.hpp"
#include "problem/problem.hpp"
#include "tools/cli.hpp"

namespace onepass::test {
namespace {

using nlohmann::json;

TEST(Cli, Info) {
  const Result r = onepass({"info"});
  EXPECT_EQ(r.status, 0);
  for (const char* word :
       {"version  ", "\ncpu  ", "\nthreads  ", "\nsimd  ", "\ncaches  ", "\ncuda  ", "\nnvrtc  ", "\n  reference "}) {
    EXPECT_NE(r.out.find(word), r.out.npos) << word;
  }
  const json j = json::parse(onepass({"info", "--json"}).out);
  ASSERT_GE(j["calls"].size(), 15u);  // five kinds of call in three dtypes, for each kind of device
  for (const json& call : j["calls"]) {
    const std::string name = call["implementation"];
    EXPECT_TRUE(r.out.find(name) != std::string::npos && name != "none") << call;
    EXPECT_EQ(call["call"] == "gradients", name.find("backward") != std::string::npos) << call;
    EXPECT_EQ(call["call"] == "a serving step", name.find("mixed") != std::string::npos) << call;
  }
  const std::vector<std::string> simd = j["simd"];
  for (const json& row : j["implementations"]) {
    if (row["name"] == "cpu.flash.avx2") {
      EXPECT_EQ(row["usable"], std::ranges::count(simd, "AVX2") == 1) << j["simd"];
    }
  }
  EXPECT_GE(j["threads"], 1);
  EXPECT_EQ(j["implementations"].back()["name"], "reference");
  EXPECT_EQ(j["implementations"].back()["usable"], true);
}

TEST(Cli, InfoSaysWhyACompiledKernelIsNotTaken) {
  const Folder folder;
  setenv("ONEPASS_CACHE", folder("").c_str(), 1);
  folder.write("x.cubin", "no kernel");
  const Result entry = onepass({"info"});
  EXPECT_NE(entry.out.find("x.cubin is not used: it is truncated or not a kernel\n"), entry.out.npos) << entry.out;
  const json j = json::parse(onepass({"info", "--json"}).out);
  EXPECT_EQ(j["compiled_kernels"]["cache"]["kernels"], 0);
  EXPECT_EQ(j["compiled_kernels"]["cache"]["refused"].size(), 1u);
  chmod(folder("").c_str(), 01777);
  const Result directory = onepass({"info"});
  EXPECT_NE(directory.out.find("is not used: it is writable by everybody\n"), directory.out.npos) << directory.out;
  unsetenv("ONEPASS_CACHE");
}

TEST(Cli, Explain) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"explain", "b2 s7 d32"}, {"explain", "b2", "s7", "d32"}}) {
    const Result r = onepass(words);
    EXPECT_EQ(r.status, 0);
    EXPECT_EQ(r.out, explain(parse_problem("b2 s7 d32")));
  }
  const json j = json::parse(onepass({"explain", "b2 s7 d576/512 cuda", "--json"}).out);
  EXPECT_EQ(j["problem"], "fwd b2 h1 s7 d576/512 fp32 cuda:0");
  EXPECT_EQ(j["chosen"], nullptr);
  EXPECT_EQ(j["implementations"].back()["why_not"], "requires tensors on the CPU");
}

TEST(Cli, ExplainOfRanks) {
  const std::string line = "fwd b1 h4/2 s64 d32 bf16 causal_bottom_right";
  const context_parallel::Layout layout = context_parallel::Layout::contiguous(64, 4);
  const Result r = onepass({"explain", line, "--ranks", "4", "--layout", "contiguous"});
  EXPECT_EQ(r.out, context_parallel::explain(line, layout)) << r.err;
  const json j = json::parse(onepass({"explain", line, "--ranks", "2", "--json"}).out);
  EXPECT_EQ(j["ranks"][0]["runs"], json::parse("[[0, 16], [48, 64]]"));
  EXPECT_EQ(j["ranks"][0]["visible_pairs"], j["ranks"][1]["visible_pairs"]);
  EXPECT_EQ(j["schemes"].size(), 3u);
  EXPECT_EQ(onepass({"explain", line, "--ranks", "0"}).err, "onepass: ranks must be from 1 to 524288 (got 0)\n");
  EXPECT_EQ(onepass({"explain", line, "--ranks", "2", "--layout", "spiral"}).err,
            "onepass: layout must be contiguous, zigzag or documents (got spiral)\n");
}

TEST(Cli, Check) {
  const Result r =
      onepass({"check", "h2 s9x13 d8 causal_bottom_right lse", "--implementation", "reference", "--seed", "3"});
  EXPECT_EQ(r.status, 0) << r.err;
  for (const char* distribution : {"normal", "rising", "one_hot", "huge"}) {
    EXPECT_NE(r.out.find(std::string("reference              ") + distribution), r.out.npos) << r.out;
  }
  const Result one = onepass({"check", "s9 d8", "--implementation", "reference", "--distribution", "rising", "--json"});
  const json j = json::parse(one.out);
  EXPECT_EQ(j["right"], true);
  ASSERT_EQ(j["results"].size(), 1u);
  EXPECT_EQ(j["results"][0]["distribution"], "rising");
  EXPECT_LE(j["results"][0]["max_error"], j["results"][0]["max_allowed"]);
  EXPECT_EQ(j["results"][0]["compared"], true);
}

TEST(Cli, CheckSaysThatNothingWasCompared) {
  const auto said = [](const std::string& line) {
    return onepass({"check", line, "--implementation", "reference", "--distribution", "normal"}).out;
  };
  const std::string nothing = "the results have no finite number, so no error was compared";
  EXPECT_EQ(said("s9x13 d8").find(nothing), std::string::npos);
  for (const std::string pass : {"fwd", "bwd", "jvp"}) {
    const std::string line = pass + " h2 s9x13 d8 score_mod={log(score - 1000)}";
    EXPECT_NE(said(line).find(nothing), std::string::npos) << line;
  }
  // All weights are NaN and the gradients of the sinks alone are not.
  EXPECT_EQ(said("bwd h2 s9x13 d8 causal_bottom_right mask_mod={k_index > 20}").find(nothing), std::string::npos);
}

TEST(Cli, ProgressWhereItIsWanted) {
  const Result r = onepass({"check", kSecondsOfWork, "--implementation", "reference", "--distribution", "normal",
                            "--threads", "1", "--progress"});
  EXPECT_EQ(r.status, 0);
  EXPECT_NE(r.err.find("checking reference on normal  "), r.err.npos);
}

TEST(Cli, HelpOfEveryCommand) {
  EXPECT_EQ(onepass({"--version"}).out, "onepass " ONEPASS_VERSION "\n");
  EXPECT_EQ(onepass({"--help"}).status, 0);
  for (const char* command : {"info", "run", "check", "explain", "ladder", "bench"}) {
    const Result r = onepass({command, "--help"});
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.out.find("--json"), r.out.npos) << command;
  }
}

TEST(Cli, PrebuildCompilesOnceOrSaysThatItCannot) {
  const Folder folder;
  const std::vector<std::string> call = {"prebuild",      folder("kernels"), "--arch",      "sm_90", "--problem",
                                         "s100 d40 bf16", "--problem",       "s7 d40 bf16", "--json"};
  const Result first = onepass(call);
  if (!cuda::nvrtc()) {
    EXPECT_EQ(first.status, 2);
    EXPECT_NE(first.err.find("prebuild needs NVRTC: lib"), first.err.npos) << first.err;
    return;
  }
  ASSERT_EQ(first.status, 0) << first.err;
  const json j = json::parse(first.out);
  ASSERT_EQ(j["kernels"].size(), 1u);  // both problems need the same
  EXPECT_EQ(j["kernels"][0]["state"], "compiled");
  EXPECT_GT(folder.read("kernels/" + j["kernels"][0]["file"].get<std::string>()).size(), 10000u);
  EXPECT_EQ(json::parse(onepass(call).out)["kernels"][0]["state"], "was there");
}

TEST(Cli, TuneKeepsCrossoversThatExplainNames) {
  const Folder folder;
  const std::string file = folder("new/linear.txt"), set = "ONEPASS_DATAFLOW=" + quoted(file) + " ";
  const Result first = shell(set + "$onepass tune --shape 40x24 --dtype fp32 --rows 2 --rounds 1 --seconds 0");
  ASSERT_EQ(first.status, 0) << first.err;
  const std::string kept = folder.read("new/linear.txt");
  EXPECT_NE(kept.find(" | fp32 | 40 | 24 | 1 | "), kept.npos) << kept;
  const Result explained = shell(set + "$onepass explain linear m2 n40 k24 fp32");
  const std::size_t line = kept.rfind('\n', kept.size() - 2) + 1;
  const std::string machine = kept.substr(line, kept.find(" | ", line) - line);
  EXPECT_NE(machine.find(" thread"), machine.npos) << machine;
  EXPECT_NE(explained.out.find("as `onepass tune` measured it on " + machine + ": "), kept.npos)
      << explained.out << explained.err;
  // Measured again it is the same line; another shape is another.
  ASSERT_EQ(shell(set + "$onepass tune --shape 40x24 --shape 8x8 --dtype fp32 --rows 1 --rounds 1 --seconds 0").status,
            0);
  const std::string again = folder.read("new/linear.txt");
  EXPECT_EQ(std::ranges::count(again, '\n'), std::ranges::count(kept, '\n') + 1) << again;
  folder.write("new/linear.txt", "nonsense\n");
  const Result wrong = shell(set + "$onepass explain linear m2 n40 k24 fp32");
  EXPECT_EQ(wrong.status, 0) << wrong.err;
  EXPECT_NE(wrong.out.find("line 1 of " + file + " cannot be read; "), wrong.out.npos) << wrong.out;
  EXPECT_NE(wrong.out.find("`onepass tune` measures again\n"), wrong.out.npos) << wrong.out;
  // Said before anything is measured: a shape of this size would take minutes and more memory than there is.
  const Result early = shell("$onepass tune --shape 2000000x2000000 --file " + quoted(file));
  EXPECT_NE(early.err.find("line 1 of " + file), early.err.npos) << early.err;
  EXPECT_NE(shell("$onepass tune --shape 8x8 --file " + quoted(folder(""))).err.find(" cannot be read"),
            std::string::npos);
  EXPECT_NE(shell("$onepass tune --model gpt5").err.find("--model must be one of llama2-7b"), std::string::npos);
  EXPECT_NE(
      shell("$onepass tune --shape 5").err.find("--shape must be columns x row length, such as 4096x11008 (got '5')"),
      std::string::npos);
}

// A lambda is more than the CPU reads; the lines of prebuild and of bench --device cuda are for CUDA without saying so.
TEST(Cli, LinesForCudaNeedNotSaySo) {
  const Folder folder;
  const std::string line = "s64 d64 bf16 score_mod={[&](float x) { return 2 * x; }(score)}";
  folder.write("suite.txt", line + "\n1 | - | " + line + " cuda:0\n");
  const Result problem = onepass({"prebuild", folder("a"), "--arch", "sm_80", "--problem", line}),
               suite = onepass({"prebuild", folder("b"), "--arch", "sm_80", "--suite", folder("suite.txt")});
  for (const Result& r : {problem, suite}) {
    EXPECT_TRUE(r.status == 0 || !cuda::nvrtc()) << r.err;
    EXPECT_EQ(r.err.find("score_mod"), r.err.npos) << r.err;
  }
  const Result bench = onepass({"bench", "--device", "cuda", "--problem", line, "--rounds", "1", "--seconds", "0"});
  EXPECT_EQ(bench.err.find("score_mod, "), bench.err.npos) << bench.err;
}

}  // namespace
}  // namespace onepass::test
