// docs/reference/support.md lists the calls of support.txt that CUDA refuses or leaves to its plain kernels, with the
// reason of each tuned kernel.
// With ONEPASS_WRITE_SUPPORT=1 the test writes the page instead of comparing.
#include <gtest/gtest.h>

#include <dlfcn.h>
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/implementations.hpp"
#include "onepass/onepass.hpp"
#include "plan/implementations.hpp"
#include "plan/plan.hpp"
#include "problem/implementation.hpp"
#include "reference/reference.hpp"

namespace onepass::cuda {
namespace {

constexpr const char* kPage = ONEPASS_SUPPORT_PAGE;
constexpr const char* kCommand =
    "ONEPASS_WRITE_SUPPORT=1 build/release/tests/cuda/test_cuda_plan --gtest_filter='Support.*'";

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
  std::ifstream file(kPage);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  const std::string begin = "<!-- support -->\n", end = "<!-- end -->";
  const std::size_t from = page.find(begin), to = page.find(end);
  ASSERT_TRUE(from != page.npos && to != page.npos) << kPage << " has no table";
  const std::string wanted = page.substr(0, from + begin.size()) + table + page.substr(to);
  if (std::getenv("ONEPASS_WRITE_SUPPORT")) {
    std::ofstream(kPage) << wanted;
    return;
  }
  EXPECT_EQ(page, wanted) << "if the new sentences are right, run\n  " << kCommand;
}

}  // namespace
}  // namespace onepass::cuda
