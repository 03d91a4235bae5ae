// `onepass explain "<problem>"`: the ordered list of implementations with each one's decision.
#include <fmt/format.h>

#include "command.hpp"
#include "cuda/compile/program.hpp"
#include "cuda/host/pretended.hpp"
#include "cuda/target.hpp"
#include "onepass/attention.hpp"
#include "onepass/executor.hpp"
#include "onepass/explain.hpp"
#include "plan/implementations.hpp"
#include "problem/grammar/on.hpp"

namespace onepass::cli {
namespace {

struct Flags {
  std::vector<std::string> problem;
  std::string target;
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

void explain_command(const Flags& flags) {
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

void add_explain(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("explain", "Show which implementation a problem gets, and why the others are not chosen");
  auto flags = std::make_shared<Flags>();
  command
      ->add_option("problem", flags->problem,
                   "A problem line, such as \"fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right\"")
      ->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_option("--target", flags->target, "Explain the problem for a GPU of this architecture, such as sm_90")
      ->type_name("ARCH");
  command->callback([flags] { explain_command(*flags); });
}

}  // namespace onepass::cli
