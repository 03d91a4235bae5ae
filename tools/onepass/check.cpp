// `onepass check "<problem>"`: every implementation that accepts the problem against the float64 oracle.
#include "check/check.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "check/mirror.hpp"
#include "plan/implementations.hpp"
#include "tools/onepass/command.hpp"
#include "tools/onepass/progress.hpp"
#include "tools/onepass/seed.hpp"
#include "tools/onepass/streams.hpp"
#include "tools/onepass/target.hpp"

namespace onepass::cli {
namespace {

struct Flags {
  std::vector<std::string> problem;
  std::uint64_t seed = 0;
  std::string distribution = "all", implementation, target;
  int threads = 0;
  bool json = false, progress = false;
};

std::vector<const Implementation*> candidates(const Flags& flags, const Problem& problem) {
  std::vector<const Implementation*> all = plan::implementations(problem, 1);
  if (flags.implementation.empty()) return all;
  std::string names;
  for (const Implementation* row : all) {
    if (row->name == flags.implementation) return {row};
    names += (names.empty() ? "" : ", ") + std::string(row->name);
  }
  throw Error(ErrorCode::bad_value,
              text("--implementation must be one of ", names, " (got '", flags.implementation, "')"));
}

nlohmann::ordered_json as_json(const Implementation& row, check::Distribution distribution, const check::Verdict& v) {
  nlohmann::ordered_json j{
      {"implementation", row.name}, {"distribution", check::name_of(distribution)}, {"accepts", v.accepted}};
  if (!v.accepted) return j["why_not"] = v.sentence, j;
  j.update({{"distribution", check::name_of(distribution)},
            {"right", v.right},
            {"compared", v.compared},
            {"sentence", v.sentence}});
  j.update({{"max_error", v.max_error}, {"max_base", v.max_base}, {"max_allowed", v.max_allowed}});
  j.update({{"mean_error", v.mean_error},
            {"mean_base", v.mean_base},
            {"mean_allowed", v.mean_allowed},
            {"lse_error", v.lse_error}});
  return j;
}

void print_line(const Implementation& row, check::Distribution distribution, const check::Verdict& v, bool has_lse) {
  if (!v.accepted) return fmt::print("{:<22} refuses: {}\n", row.name, v.sentence);
  fmt::print("{:<22} {:<8} {:<6} max {:.2e} of {:.2e}  mean {:.2e} of {:.2e}{}\n", row.name,
             check::name_of(distribution), v.right ? "right" : "WRONG", v.max_error, v.max_allowed, v.mean_error,
             v.mean_allowed, has_lse ? fmt::format("  lse {:.2f} of 1", v.lse_error) : "");
  if (!v.right) fmt::print("  {}\n", v.sentence);
  if (v.right && !v.compared) fmt::print("  the results have no finite number, so no error was compared\n");
  flush_output();  // an error at once if stdout is closed
}

check::Verdict judged(const Implementation& row, check::Inputs& inputs, Device device, check::Distribution distribution,
                      Executor& executor, bool progress_wanted) {
  Progress progress(fmt::format("checking {} on {}", row.name, check::name_of(distribution)), progress_wanted);
  ProgressExecutor counting(executor, progress);
  return device.kind == DeviceKind::cuda ? check::check_on_device(row, inputs, device.index, counting)
                                         : check::check(row, inputs, counting);
}

int check_command(const Flags& flags) {
  const Problem problem = problem_from(flags.problem);
  const auto other = as_target(problem.device, flags.target);
  // Oracle, base and what they are compared with: doubles of every output.
  check_fits(problem, 24);
  const std::shared_ptr<Executor> executor = make_executor(flags.threads);
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::vector<std::pair<const Implementation*, std::string>> all;
  std::string refusals;
  for (const Implementation* row : candidates(flags, problem)) {
    all.emplace_back(row, why_not(*row, problem));
    if (!all.back().second.empty()) refusals += text("; ", row->name, ": ", all.back().second);
  }
  if (std::all_of(all.begin(), all.end(), [](const auto& row) { return !row.second.empty(); })) {
    throw Error(ErrorCode::unsupported, text("no implementation accepts \"", to_string(problem), "\"", refusals));
  }

  Problem on_host = problem;  // inputs and oracle; a device gets copies
  on_host.device = {};
  bool right = true, first = true;
  for (const check::Distribution distribution : check::kDistributions) {
    if (flags.distribution == "all" ? !check::can_judge(problem, distribution)
                                    : flags.distribution != check::name_of(distribution))
      continue;
    check::Inputs inputs = check::make_inputs(on_host, flags.seed, distribution);
    if (!flags.json && first) fmt::print("{}\n", to_string(problem));
    for (const auto& [row, refusal] : all) {
      if (!refusal.empty() && !first) continue;  // said once
      const check::Verdict verdict = refusal.empty()
                                         ? judged(*row, inputs, problem.device, distribution, *executor, flags.progress)
                                         : check::Verdict{.accepted = false, .sentence = refusal};
      right = right && (verdict.right || !verdict.accepted);
      flags.json ? results.push_back(as_json(*row, distribution, verdict))
                 : print_line(*row, distribution, verdict, problem.want_lse);
    }
    first = false;
  }
  if (flags.json) {
    print_json(
        {{"problem", to_string(problem)}, {"seed", flags.seed}, {"right", right}, {"results", std::move(results)}});
  }
  return right ? 0 : kWrongResult;
}

}  // namespace

void add_check(const Command& app) {
  const Command command =
      app.subcommand("check", "Compare every implementation that supports a problem with the float64 reference");
  auto flags = std::make_shared<Flags>();
  std::vector<std::string> names{"all"};
  for (const check::Distribution d : check::kDistributions) names.emplace_back(check::name_of(d));
  command
      .option("problem", flags->problem,
              "A problem line, such as \"fwd b1 h4/2 s100x300 d64 bf16 causal_bottom_right lse\"")
      .required();
  add_seed(command, flags->seed, "Seed of the random inputs");
  command.option("--distribution", flags->distribution, "Distribution of the scores; default: all").one_of(names);
  command.option("--implementation", flags->implementation, "Check only the named implementation");
  add_target(command, flags->target);
  command.option("--threads", flags->threads, "Number of threads; default: all cores").range(1, 1024);
  command.flag("--json", flags->json, "Print JSON");
  add_progress_flag(command, flags->progress);
  command.on_run([flags] {
    if (const int status = check_command(*flags); status != 0) exit_with(status);
  });
}

}  // namespace onepass::cli
