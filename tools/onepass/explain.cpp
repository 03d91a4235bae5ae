// `onepass explain "<problem>"`: the ordered list of implementations with each one's decision.
#include <optional>

#include <fmt/format.h>

#include "cuda/compile/program.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/target.hpp"
#include "onepass/attention.hpp"
#include "onepass/context_parallel.hpp"
#include "onepass/executor.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/grammar/on.hpp"
#include "tools/onepass/command.hpp"

namespace onepass::cli {
namespace {

struct Flags {
  std::vector<std::string> problem;
  std::string target, layout = "zigzag";
  std::optional<std::int64_t> ranks;
  bool json = false;
};

nlohmann::ordered_json as_json(const Problem& problem) {
  nlohmann::ordered_json j{{"problem", to_string(problem)}};
  if (const cuda::DeviceFacts* device = cuda::pretended_device()) {
    j["target"] = {
        {"name", device->name}, {"arch", cuda::arch_of(*device)}, {"multiprocessors", device->multiprocessors}};
  }
  j["implementations"] = nlohmann::ordered_json::array();
  std::string why;
  const auto rows = plan::implementations(problem, default_executor().workers(), &why);
  if (!why.empty()) j["dataflow"] = why;
  for (const Implementation* row : rows) {
    const Decision decision = decide(*row, problem);
    nlohmann::ordered_json item{{"name", row->name}, {"accepts", static_cast<bool>(decision)}};
    if (decision)
      item["config"] = decision.state->describe();
    else
      item["why_not"] = decision.refusal;
    j["implementations"].push_back(std::move(item));
  }
  try {
    const Plan plan = make_plan(problem);
    j["chosen"] = plan.name();
    j["workspace_bytes"] = plan.workspace_bytes();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    j["chosen"] = nullptr;
  }
  return j;
}

nlohmann::ordered_json as_json(const Problem& problem, const context_parallel::Layout& layout) {
  namespace cp = context_parallel;
  const std::string line = to_string(problem);
  const cp::Visibility visibility = cp::visibility_of(line);
  const cp::Shape shape = cp::shape_of(line);
  nlohmann::ordered_json j{{"problem", line}};
  const std::vector<std::int64_t> pairs = cp::work(layout, visibility);
  for (std::int64_t r = 0; r < layout.ranks(); ++r) {
    nlohmann::ordered_json runs = nlohmann::ordered_json::array();
    for (const cp::Piece& run : layout.runs(r)) runs.push_back({run.positions.begin, run.positions.end});
    j["ranks"].push_back(
        {{"positions", layout.count(r)}, {"runs", runs}, {"visible_pairs", pairs[static_cast<std::size_t>(r)]}});
  }
  for (const cp::Estimate& e : cp::estimates(layout, visibility, shape)) {
    j["schemes"].push_back({{"name", cp::name_of(e.scheme)},
                            {"forward_s", e.forward},
                            {"backward_s", e.backward},
                            {"ideal_s", e.ideal},
                            {"memory_bytes", e.memory},
                            {"forward_bytes", cp::traffic(e.scheme, layout, visibility, shape, false)},
                            {"backward_bytes", cp::traffic(e.scheme, layout, visibility, shape, true)}});
  }
  return j;
}

void explain_ranks(const Flags& flags) {
  const Problem problem = problem_from(flags.problem);
  const context_parallel::Layout layout = context_parallel::layout_from_name(flags.layout, problem.seq_k, *flags.ranks);
  flags.json ? print_json(as_json(problem, layout))
             : fmt::print("{}", context_parallel::explain(to_string(problem), layout));
}

void explain_command(const Flags& flags) {
  if (flags.ranks) return explain_ranks(flags);
  if (flags.target.empty()) {
    const Problem problem = problem_from(flags.problem);
    return flags.json ? print_json(as_json(problem)) : fmt::print("{}", explain(problem));
  }
  const Problem problem = parse_problem_on({DeviceKind::cuda, 0}, line_of(flags.problem));
  if (!flags.json) return fmt::print("{}", explain_for(flags.target, problem));
  const cuda::PretendedDevice pretended(cuda::typical_device(flags.target));
  print_json(as_json(cuda::as_called(problem)));
}

}  // namespace

void add_explain(const Command& app) {
  const Command command =
      app.subcommand("explain", "Show which implementation a problem gets, and why the others are not chosen");
  auto flags = std::make_shared<Flags>();
  command
      .option("problem", flags->problem,
              "A problem line, such as \"fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right\"")
      .required();
  command.flag("--json", flags->json, "Print JSON");
  const Option target =
      command.option("--target", flags->target, "Explain the problem for a GPU of this architecture, such as sm_90")
          .type_name("ARCH");
  const Option ranks = command.option(
      "--ranks", flags->ranks, "Explain the sequence sharded between this many ranks: layout, work, bytes, schemes");
  ranks.excludes(target);
  command.option("--layout", flags->layout, "With --ranks: contiguous, zigzag or documents")
      .shows_default()
      .needs(ranks);
  command.on_run([flags] { explain_command(*flags); });
}

}  // namespace onepass::cli
