// Launches recorded once and run as one CUDA graph: no host stands between them.
#pragma once
#include <cstddef>
#include <functional>

#include "cuda/driver/api.hpp"

namespace onepass::bench {

class DeviceGraph {
 public:
  // `count` calls of `enqueue`, which puts work on the stream and nothing else. Throws Error. The device's context is
  // current here, in run() and at the end.
  DeviceGraph(cuda::Stream stream, std::size_t count, const std::function<void()>& enqueue);
  ~DeviceGraph();
  DeviceGraph(const DeviceGraph&) = delete;
  DeviceGraph& operator=(const DeviceGraph&) = delete;
  void run() const;  // enqueues it

 private:
  cuda::Stream stream_;
  struct Graph* graph_ = nullptr;
  struct Exec* exec_ = nullptr;
};

}  // namespace onepass::bench
