// Shared by the tests that need a GPU.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "check/mirror.hpp"
#include "cuda/implementations.hpp"
#include "shapes/shapes.hpp"

namespace onepass::check {

// Skipped, with the driver's sentence, where there is no GPU.
template <class Test>
class OnDevice : public Test {
 protected:
  void SetUp() override {
    if (std::string why; !cuda::driver(&why)) GTEST_SKIP() << why;
  }
};

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

inline Problem on_device(Problem p, int device = 0) {
  p.device = {DeviceKind::cuda, device};
  return p;
}
inline Problem on_device(const std::string& line, int device = 0) { return on_device(parse_problem(line), device); }
inline std::vector<const Implementation*> takers_of(const Problem& p) {
  std::vector<const Implementation*> takers;
  for (const Implementation* row : cuda::implementations()) {
    if (why_not(*row, p).empty()) takers.push_back(row);
  }
  return takers;
}

// The findings of several threads.
class Findings {
 public:
  // Every implementation that takes the inputs' problem; `what` tells them from others. most: of the error, beside what
  // the rule allows.
  void judge(Inputs& inputs, const std::string& what, double most = INFINITY) {
    for (const Implementation* row : cuda::implementations()) {
      const Verdict verdict = check_on_device(*row, inputs, 0, serial_executor());
      if (!verdict.accepted) continue;
      if (verdict.right && verdict.max_error <= most)
        right(row->name);
      else
        wrong(text(row->name, " \"", what, "\": ", verdict.sentence));
    }
  }
  void right(const std::string& name) {
    const std::lock_guard lock(mutex_);
    ++right_[name];
  }
  void wrong(std::string sentence) {
    const std::lock_guard lock(mutex_);
    wrong_.push_back(std::move(sentence));
  }
  // Fails the test for what is wrong, and if nothing is right.
  void report() const {
    for (std::size_t i = 0; i < wrong_.size() && i < 20; ++i) ADD_FAILURE() << wrong_[i];
    EXPECT_EQ(wrong_.size(), 0u);
    EXPECT_FALSE(right_.empty());
    for (const auto& [name, count] : right_) std::printf("  %s: %d right\n", name.c_str(), count);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> right_;
  std::vector<std::string> wrong_;
};

// The outputs of a mirror's inputs, byte for byte.
inline std::string output_bytes(DeviceMirror& mirror, const Inputs& inputs) {
  mirror.fetch_outputs();
  std::string bytes;
  for (const RoleRow& row : kRoleTable) {
    const Buffer& b = inputs.buffer(row.role);
    if (writes(row, inputs.problem.op)) bytes.append(reinterpret_cast<const char*>(b.data()), b.bytes());
  }
  return bytes;
}

// Runs every implementation that takes the inputs a hundred times: the same bits every time, and nothing left behind
// for the next launch on the stream. How many runs were compared.
inline int expect_same_bits(Inputs& inputs) {
  const cuda::DeviceFacts& device = cuda::device_facts(0);
  DeviceMirror mirror(inputs, 0);
  int compared = 0;
  for (const Implementation* row : takers_of(mirror.problem())) {
    const Decision planned = decide(*row, mirror.problem());
    const cuda::DeviceScratch workspace(device, planned.state->workspace_bytes, nullptr);
    std::string first;
    for (int repeat = 0; repeat < 100; ++repeat, ++compared) {
      mirror.poison_outputs();
      planned.state->run(mirror.tensors(), workspace.data(), serial_executor(), nullptr);
      std::string bytes = output_bytes(mirror, inputs);
      if (repeat == 0)
        first = std::move(bytes);
      else if (bytes != first) {
        ADD_FAILURE() << row->name << " \"" << to_string(inputs.problem) << "\" repeat " << repeat;
        return compared;
      }
    }
  }
  return compared;
}

}  // namespace onepass::check
