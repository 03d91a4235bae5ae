// `onepass explain "<problem>"`: the ordered list of implementations with each one's decision.
#include <fmt/format.h>

#include "command.hpp"
#include "onepass/attention.hpp"
#include "onepass/executor.hpp"
#include "plan/implementations.hpp"

namespace onepass::cli {
namespace {

struct Flags {
  std::vector<std::string> problem;
  bool json = false;
};

nlohmann::ordered_json as_json(const Problem& problem) {
  nlohmann::ordered_json j{{"problem", to_string(problem)}, {"implementations", nlohmann::ordered_json::array()}};
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

}  // namespace

void add_explain(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("explain", "Show which implementation a problem gets, and why the others refuse");
  auto flags = std::make_shared<Flags>();
  command->add_option("problem", flags->problem, "Such as \"fwd b2 h16/4 s1024x2048 d128 bf16 causal_bottom_right\"")
      ->required();
  command->add_flag("--json", flags->json, "Print JSON");
  command->callback([flags] {
    const Problem problem = problem_from(flags->problem);
    flags->json ? print_json(as_json(problem)) : fmt::print("{}", explain(problem));
  });
}

}  // namespace onepass::cli
