#include "tools/onepass/bench/device_timer.hpp"

#include <algorithm>

#include "tools/onepass/bench/peaks.hpp"

namespace onepass::bench {
namespace {

using cuda::check_cuda;

constexpr double kWarmUp = 0.015;
constexpr unsigned kNonBlocking = 1;

struct Events {
  std::vector<cuda::Event> all;
  explicit Events(std::size_t n) : all(n) {
    for (cuda::Event& e : all) check_cuda(cuda::driver()->event_create(&e, 0), "cuEventCreate");
  }
  ~Events() {
    for (cuda::Event e : all) cuda::driver()->event_destroy(e);
  }
};

}  // namespace

DeviceTimer::DeviceTimer(const cuda::DeviceFacts& device)
    : device_(device), flush_bytes_(2 * static_cast<std::size_t>(device.l2_bytes)), flushed_(device, flush_bytes_) {
  const cuda::ContextScope scope(device_);
  check_cuda(cuda::driver()->stream_create(&stream_, kNonBlocking), "cuStreamCreate");
}
DeviceTimer::~DeviceTimer() { cuda::driver()->stream_destroy(stream_); }

void DeviceTimer::flush() {
  check_cuda(cuda::driver()->memset8(flushed_.at, 0, flush_bytes_, stream_), "cuMemsetD8Async");
}

std::vector<double> DeviceTimer::times(double seconds, const std::function<void()>& enqueue) {
  const cuda::ContextScope scope(device_);
  const cuda::Driver& d = *cuda::driver();
  const double from = wall_seconds();
  int warm = 0;
  do {
    flush();
    enqueue();
    check_cuda(d.stream_synchronize(stream_), "cuStreamSynchronize");
    ++warm;
  } while (wall_seconds() - from < kWarmUp);
  const double each = (wall_seconds() - from) / warm;
  const std::size_t count = static_cast<std::size_t>(std::clamp(seconds / each, 3.0, 1000.0));
  const Events begin(count), end(count);
  for (std::size_t i = 0; i < count; ++i) {
    flush();
    check_cuda(d.event_record(begin.all[i], stream_), "cuEventRecord");
    enqueue();
    check_cuda(d.event_record(end.all[i], stream_), "cuEventRecord");
  }
  check_cuda(d.stream_synchronize(stream_), "cuStreamSynchronize");
  std::vector<double> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    float milliseconds = 0;
    check_cuda(d.event_elapsed(&milliseconds, begin.all[i], end.all[i]), "cuEventElapsedTime");
    all[i] = 1e-3 * static_cast<double>(milliseconds);
  }
  return all;
}

double DeviceTimer::in_a_row(std::size_t count, const std::function<void()>& enqueue) {
  const cuda::ContextScope scope(device_);
  const cuda::Driver& d = *cuda::driver();
  const Events events(2);
  check_cuda(d.event_record(events.all[0], stream_), "cuEventRecord");
  for (std::size_t i = 0; i < count; ++i) enqueue();
  check_cuda(d.event_record(events.all[1], stream_), "cuEventRecord");
  check_cuda(d.stream_synchronize(stream_), "cuStreamSynchronize");
  float milliseconds = 0;
  check_cuda(d.event_elapsed(&milliseconds, events.all[0], events.all[1]), "cuEventElapsedTime");
  return 1e-3 * static_cast<double>(milliseconds) / static_cast<double>(count);
}

}  // namespace onepass::bench
