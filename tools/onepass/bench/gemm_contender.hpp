// Linear layers timed as a decoder calls them: one call behind the other, on CUDA in a graph, each with weights that no
// cache holds.
#pragma once
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "onepass/executor.hpp"
#include "problem/implementation.hpp"
#include "tools/onepass/bench/device_inputs.hpp"
#include "tools/onepass/bench/device_timer.hpp"
#include "tools/onepass/bench/sample.hpp"

namespace onepass::bench {

// x of the most rows, y, column_bias, and enough copies of w, read in turn, that no cache holds one.
class Matrices {
 public:
  explicit Matrices(const Problem& most);  // throws Error
  Tensors of_rows(std::int64_t m);         // the next copy of w
  std::size_t copies() const { return weights_.size(); }

 private:
  Tensors tensors_;
  std::vector<const void*> weights_;
  std::size_t turn_ = 0;
  std::list<std::vector<std::byte>> on_host_;
  std::list<DeviceMemory> on_device_;
};

// Seconds of one contender's calls, ready to be taken in turn with the others'.
class GemmContender {
 public:
  // By the name of an implementation, "" for the plan's choice. timer: of the device, null on the CPU. Throws Error.
  GemmContender(const Problem& p, const std::string& name, Matrices& matrices, Executor& executor, DeviceTimer* timer);
  void collect(double seconds);
  const Sample& sample() const { return sample_; }
  double median() const { return sample_.median(); }
  const Plan& plan() const { return plan_; }
  const std::string& note() const { return note_; }  // on CUDA, if it was not timed in a graph

 private:
  void call();

  Plan plan_;
  std::int64_t m_;
  Matrices& matrices_;
  Executor& executor_;
  DeviceTimer* timer_;
  std::unique_ptr<DeviceMemory> memory_;
  std::vector<std::byte> host_;
  Launch launch_;
  Sample sample_;
  std::string note_;
};

// A kernel that reads the weights and does nothing else: what a linear layer of few rows is measured by.
class ReadContender {
 public:
  ReadContender(const Problem& p, Matrices& matrices, DeviceTimer& timer);
  void collect(double seconds);
  double median() const { return sample_.median(); }
  const std::string& note() const { return note_; }

 private:
  void call();

  const cuda::DeviceFacts& device_;
  const cuda::Kernel& kernel_;
  std::size_t bytes_;
  Matrices& matrices_;
  DeviceTimer& timer_;
  Sample sample_;
  std::string note_;
};

}  // namespace onepass::bench
