// docs/reference/support.md lists the calls of support.txt that CUDA refuses or leaves to its plain kernels, with the
// reason of each tuned kernel.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/implementations.hpp"
#include "cuda/support_page.hpp"
#include "onepass/onepass.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/implementation.hpp"
#include "reference/reference.hpp"

namespace onepass::cuda {
namespace {

class Support : public testing::Test {
 protected:
  static void SetUpTestSuite() {  // its devices: cuda:0 has compute capability 9.0, cuda:1 has 8.0
    ASSERT_NE(dlopen(ONEPASS_FAKE_DRIVER, RTLD_NOW), nullptr) << dlerror();
  }
  struct Cell {
    std::string runs, reasons;  // the implementation, "no" if there is none; why those before it refuse
    bool tuned() const { return runs != "no" && !runs.starts_with("`cuda.plain"); }
  };
  // Implementations that have one reason are named together.
  static Cell cell(Problem p, int device) {
    p.device = {DeviceKind::cuda, device};
    std::vector<std::pair<std::string, std::string>> reasons;  // sentence, names
    Cell said{"no", ""};
    for (const Implementation* row : implementations()) {
      if (!computes(*row, p.op)) continue;
      const Decision d = decide(*row, p);
      const std::string name = text("`", row->name, "`");
      if (d) {
        said.runs = name;
        break;
      }
      const auto same = std::ranges::find(reasons, d.refusal, &std::pair<std::string, std::string>::first);
      if (same == reasons.end())
        reasons.emplace_back(d.refusal, name);
      else
        same->second += ", " + name;
    }
    if (reasons.size() > 1)  // a family for other head dims says nothing about the call
      std::erase_if(reasons, [](const auto& reason) {
        return reason.first.starts_with("head dims must be ") || reason.first.starts_with("requires packed q over a ");
      });
    for (const auto& [sentence, names] : reasons) said.reasons += text("; ", names, ": ", sentence);
    return said;
  }
};

TEST_F(Support, PageIsWhatTheBackendsSay) {
  std::string table = "| call | problem line | H100, H200 | others from 8.0 |\n|---|---|---|---|\n";
  std::ifstream calls(ONEPASS_SUPPORT_CALLS);
  for (std::string call; std::getline(calls, call);) {
    if (call.starts_with('#')) continue;
    const std::size_t colon = call.find(": ");
    ASSERT_NE(colon, call.npos) << call;
    const std::string title = call.substr(0, colon), line = call.substr(colon + 2);
    const Problem p = parse_problem(line);
    bool on_cpu = false;
    for (const Implementation* row : plan::implementations(p, 1, nullptr))
      on_cpu |= !reference::is_reference(*row) && decide(*row, p);
    EXPECT_TRUE(on_cpu) << line << " is refused on the CPU too";
    const Cell hopper = cell(p, 0), other = cell(p, 1);
    if (hopper.tuned() && other.tuned()) continue;
    table += text("| ", title, " | `", line, "` | ", hopper.runs, hopper.tuned() ? "" : hopper.reasons, " | ",
                  other.runs, hopper.tuned() ? "; the tuned kernel requires compute capability 9.0" : "", " |\n");
  }
  expect_on_support_page("support", table);
}

}  // namespace
}  // namespace onepass::cuda
