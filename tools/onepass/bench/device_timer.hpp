// Seconds on a CUDA device: events around every launch, L2 flushed before it.
#pragma once
#include <functional>
#include <vector>

#include "tools/onepass/bench/device_inputs.hpp"

namespace onepass::bench {

class DeviceTimer {
 public:
  explicit DeviceTimer(const cuda::DeviceFacts& device);  // throws Error
  ~DeviceTimer();
  DeviceTimer(const DeviceTimer&) = delete;
  DeviceTimer& operator=(const DeviceTimer&) = delete;

  cuda::Stream stream() const { return stream_; }
  // Warms up for 15 ms, then times `enqueue` as often as fits into `seconds`, 3 to 1000 times. `enqueue` only puts work
  // on stream(); nothing of it is left running on return.
  std::vector<double> times(double seconds, const std::function<void()>& enqueue);
  // Seconds of one of `calls` calls of `enqueue` in a row, with L2 as they leave it.
  double in_a_row(std::size_t count, const std::function<void()>& enqueue);

 private:
  void flush();

  const cuda::DeviceFacts& device_;
  std::size_t flush_bytes_;
  DeviceMemory flushed_;  // twice L2: writing it leaves nothing else there
  cuda::Stream stream_ = nullptr;
};

}  // namespace onepass::bench
