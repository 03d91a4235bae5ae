// Every CUDA implementation on every line of tests/shapes, judged by the rule of docs/conventions.md, with poison around
// everything. Needs a GPU and says so where there is none; `./dev gpu` runs it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "check/mirror.hpp"
#include "cuda/implementations.hpp"
#include "shapes/shapes.hpp"

namespace onepass::check {
namespace {

// One thread for each core: compiling and the float64 oracle take most of the time.
template <class Body>
void in_parallel(std::size_t tasks, const Body& body) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> pool;
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < threads; ++i) {
    pool.emplace_back([&] {
      for (std::size_t n = next++; n < tasks; n = next++) body(n);
    });
  }
  for (std::thread& t : pool) t.join();
}

struct Summary {
  std::mutex mutex;
  std::map<std::string, int> right;
  std::vector<std::string> wrong, refused;  // refused: by every implementation
};

// Normal scores and one other distribution, in turn, as on the CPU.
void judge_line(const std::string& line, std::size_t n, Summary& summary) {
  Problem on_device = parse_problem(line);
  on_device.device = {DeviceKind::cuda, 0};
  std::vector<const Implementation*> takers;
  for (const Implementation* row : cuda::implementations()) {
    if (row->why_not(on_device).empty()) takers.push_back(row);
  }
  for (const Distribution distribution : {Distribution::normal, kDistributions[1 + n % 3]}) {
    if (takers.empty()) break;
    Inputs inputs = make_inputs(parse_problem(line), n, distribution);
    for (const Implementation* row : takers) {
      const Verdict verdict = check_on_device(*row, inputs, 0, serial_executor());
      const std::lock_guard lock(summary.mutex);
      if (verdict.right) ++summary.right[row->name];
      else if (verdict.accepted)
        summary.wrong.push_back(text(row->name, " \"", line, "\" seed ", n, " ", name_of(distribution), ": ",
                                     verdict.sentence));
    }
  }
  if (!takers.empty()) return;
  const std::lock_guard lock(summary.mutex);
  summary.refused.push_back(line);
}

class Device : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string why; !cuda::driver(&why)) GTEST_SKIP() << why;
  }
};

TEST_P(Device, EveryImplementationIsRight) {
  const auto lines = test::shapes(GetParam());
  Summary summary;
  in_parallel(lines.size(), [&](std::size_t n) {
    try {
      judge_line(lines[n], n, summary);
    } catch (const std::exception& e) {
      const std::lock_guard lock(summary.mutex);
      summary.wrong.push_back(lines[n] + ": " + e.what());
    }
  });
  for (std::size_t i = 0; i < summary.wrong.size() && i < 20; ++i) ADD_FAILURE() << summary.wrong[i];
  EXPECT_EQ(summary.wrong.size(), 0u);
  int all = 0;
  for (const auto& [name, count] : summary.right) {
    std::printf("  %s: %d right\n", name.c_str(), count);
    all += count;
  }
  EXPECT_GT(all, 0);
  if (!summary.refused.empty())
    std::printf("  no implementation takes %zu lines, such as \"%s\"\n", summary.refused.size(), summary.refused[0].c_str());
}

// huge.txt maps more memory than a device has, and is for `onepass check`, line by line.
INSTANTIATE_TEST_SUITE_P(Shapes, Device,
                         testing::Values("sizes.txt", "long.txt", "dims.txt", "heads.txt", "features.txt",
                                         "layouts.txt", "mods.txt"),
                         [](const auto& file) {
                           return std::string(file.param).substr(0, std::string(file.param).find('.'));
                         });

// The same bits every time, and nothing left behind for the next launch on the stream.
TEST(DeviceRepeats, AHundredTimesTheSameBits) {
  if (std::string why; !cuda::driver(&why)) GTEST_SKIP() << why;
  const cuda::DeviceFacts& device = cuda::device_facts(0);
  const cuda::ContextScope scope(device);
  int compared = 0;
  for (const std::string& line : test::shapes("determinism.txt")) {
    Inputs inputs = make_inputs(parse_problem(line), 3, Distribution::rising);
    DeviceMirror mirror(inputs, 0);
    const auto bytes_of = [&] {
      mirror.fetch_outputs();
      std::string bytes;
      for (const Buffer* b : {&inputs.buffers[3], &inputs.buffers[4]})
        bytes.append(reinterpret_cast<const char*>(b->data()), b->bytes());
      return bytes;
    };
    for (const Implementation* row : cuda::implementations()) {
      if (!row->why_not(mirror.problem()).empty()) continue;
      const cuda::DeviceScratch workspace(device, row->workspace_bytes(mirror.problem(), 1), nullptr);
      std::string first;
      for (int repeat = 0; repeat < 100; ++repeat, ++compared) {
        mirror.poison_outputs();
        row->run(mirror.problem(), mirror.tensors(), workspace.data(), serial_executor(), nullptr);
        std::string bytes = bytes_of();
        if (repeat == 0) first = std::move(bytes);
        else
          ASSERT_EQ(std::memcmp(bytes.data(), first.data(), first.size()), 0) << row->name << " \"" << line << "\"";
      }
    }
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace onepass::check
