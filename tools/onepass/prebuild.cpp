// `onepass prebuild`: compiles kernels into a directory that machines without NVRTC run from. Needs no GPU.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "base/text.hpp"
#include "cuda/compile/cubin_cache.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/prebuild.hpp"
#include "onepass/error.hpp"
#include "onepass/executor.hpp"
#include "problem/grammar/on.hpp"
#include "tools/onepass/bench/cell.hpp"
#include "tools/onepass/command.hpp"

namespace onepass::cli {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};  // every line is for one, whether it says so or not

struct Flags {
  std::string directory, arch, suite;
  std::vector<std::string> problems;
  bool tables = false, json = false;
  int threads = 0;
};

struct Job {
  std::string problem;  // the first that needs it
  cuda::TargetKernel kernel;
  std::string key, state;  // "compiled", "was there", or a sentence
  double seconds = 0;
};

// Calls that most models make: every row of the kernels' tables is among them.
std::vector<std::string> common_problems() {
  std::vector<std::string> lines;
  for (const char* dims : {"d64", "d80", "d96", "d128", "d192/128", "d256"}) {
    for (const char* dtype : {"bf16", "fp16", "fp32"}) {
      for (const char* mask : {"", "causal_bottom_right"}) {
        for (const char* sizes : {"s1024", "s16384", "varlen=1024x16"})
          lines.push_back(fmt::format("fwd h16 {} {} {} {}", sizes, dims, dtype, mask));
      }
    }
  }
  return lines;
}

std::vector<std::string> lines_of(const Flags& flags) {
  std::vector<std::string> lines = flags.problems;
  if (flags.tables) {
    const std::vector<std::string> common = common_problems();
    lines.insert(lines.end(), common.begin(), common.end());
  }
  if (!flags.suite.empty()) {
    std::ifstream file(flags.suite);
    if (!file) throw Error(ErrorCode::bad_file, text("the suite '", flags.suite, "' cannot be read"));
    for (std::string line; std::getline(file, line);) {
      if (const auto cell = bench::parse_cell(line, kGpu)) lines.push_back(to_string(cell->problem));
    }
  }
  if (lines.empty())
    throw Error(ErrorCode::bad_value, "nothing to compile: give --problem \"...\", --suite FILE or --tables");
  return lines;
}

// One job for each kernel; a problem that no kernel computes ends the command before anything is written.
std::vector<Job> jobs_of(const Flags& flags) {
  cuda::typical_device(flags.arch);  // a wrong architecture is said before a wrong problem
  std::vector<Job> jobs;
  std::set<std::string> keys;
  for (const std::string& line : lines_of(flags)) {
    const Problem problem = parse_problem_on(kGpu, line);
    for (cuda::TargetKernel& kernel : cuda::kernels_on(flags.arch, problem)) {
      Job job{to_string(problem), std::move(kernel), "", "", 0};
      job.key = cuda::key_of(job.kernel.program);
      if (keys.insert(job.key).second) jobs.push_back(std::move(job));
    }
  }
  return jobs;
}

void make(Job& job, const std::string& directory) {
  if (cuda::read_cubin(directory, job.key, cuda::compiler_version())) {
    job.state = "was there";
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  try {
    const cuda::Cubin cubin = cuda::compile(job.kernel.program);
    std::string why;
    job.state = cuda::write_cubin(directory, job.key, cuda::compiler_version(), cubin, &why) ? "compiled" : why;
  } catch (const Error& e) {
    job.state = e.what();
  }
  job.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool good(const Job& job) { return job.state == "compiled" || job.state == "was there"; }

void report(const Flags& flags, const std::vector<Job>& jobs) {
  const auto made = std::count_if(jobs.begin(), jobs.end(), [](const Job& j) { return j.state == "compiled"; });
  if (!flags.json) {
    fmt::print("{} {}, {} compiled now by NVRTC {}, in {}; use them with ONEPASS_PREBUILT={}\n", jobs.size(),
               jobs.size() == 1 ? "kernel" : "kernels", made, cuda::compiler_version(), flags.directory,
               flags.directory);
    return;
  }
  nlohmann::ordered_json j{{"directory", flags.directory},
                           {"nvrtc", cuda::compiler_version()},
                           {"kernels", nlohmann::ordered_json::array()}};
  for (const Job& job : jobs) {
    j["kernels"].push_back({{"problem", job.problem},
                            {"implementation", job.kernel.implementation},
                            {"arch", job.kernel.program.arch},
                            {"file", job.key + ".cubin"},
                            {"state", job.state},
                            {"seconds", job.seconds}});
  }
  print_json(j);
}

void prebuild(const Flags& flags) {
  std::vector<Job> jobs = jobs_of(flags);
  if (std::string why; !cuda::nvrtc(&why)) throw Error(ErrorCode::unsupported, text("prebuild needs NVRTC: ", why));
  const int threads =
      std::min<int>(flags.threads > 0 ? flags.threads : default_executor().workers(), static_cast<int>(jobs.size()));
  std::atomic<std::size_t> next{0};
  std::mutex printing;
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      make(jobs[i], flags.directory);
      const std::lock_guard lock(printing);
      if (flags.json || !good(jobs[i])) continue;
      const std::string line = fmt::format("{:<10} {:>5.2f} s  {:<10} {}\n", jobs[i].state, jobs[i].seconds,
                                           jobs[i].kernel.implementation, jobs[i].problem);
      std::fputs(line.c_str(), stdout);  // which does not throw: a failure is told at the end
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& t : pool) t.join();
  for (const Job& job : jobs) {
    if (!good(job)) throw Error(ErrorCode::bad_file, text("\"", job.problem, "\": ", job.state));
  }
  report(flags, jobs);
}

}  // namespace

void add_prebuild(const Command& app) {
  const Command c = app.subcommand("prebuild", "Compile CUDA kernels into a directory, for machines without NVRTC");
  auto flags = std::make_shared<Flags>();
  c.option("directory", flags->directory,
           "Directory of the kernels, created if missing; machines that use it set ONEPASS_PREBUILT to it")
      .required();
  c.option("--arch", flags->arch, "Architecture of the GPU that will run the kernels, such as sm_90").required();
  c.option("--problem", flags->problems,
           "Problem to compile for; may be repeated. Dtypes, head dims and options select the kernels, sizes hardly");
  c.option("--suite", flags->suite, "File of problem lines, as for bench");
  c.flag("--tables", flags->tables,
         "Compile for common head dims in bf16, fp16 and fp32, with and without a causal mask");
  c.option("--threads", flags->threads, "Number of kernels compiled at a time; default: all cores").range(1, 1024);
  c.flag("--json", flags->json, "Print JSON");
  c.on_run([flags] { prebuild(*flags); });
}

}  // namespace onepass::cli
