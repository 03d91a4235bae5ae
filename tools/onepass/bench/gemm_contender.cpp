#include "tools/onepass/bench/gemm_contender.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "base/text.hpp"
#include "onepass/error.hpp"
#include "tools/onepass/bench/device_graph.hpp"

namespace onepass::bench {
namespace {

// Launches of one graph, as many times as take `seconds` together. What cannot be recorded is launched each time, and
// `note` says why.
double seconds_in_a_graph(DeviceTimer& timer, double seconds, std::size_t copies, const std::function<void()>& call,
                          std::string& note) {
  const std::size_t count = 2 * copies;
  std::optional<DeviceGraph> graph;
  try {
    graph.emplace(timer.stream(), count, call);
  } catch (const Error& e) {
    note = text("launched one by one, not in a CUDA graph: ", e.what());
  }
  const auto replay = [&] {
    if (graph) return graph->run();
    for (std::size_t i = 0; i < count; ++i) call();
  };
  const double each = timer.in_a_row(2, replay);
  const auto replays = static_cast<std::size_t>(std::clamp(seconds / std::max(each, 1e-7), 3.0, 1000.0));
  return timer.in_a_row(replays, replay) / static_cast<double>(count);
}

// Eight loads of 16 bytes a thread are under way at once; the rest of a matrix that is not a multiple of 32 KB is left
// out.
const cuda::Kernel& reading_kernel(const cuda::DeviceFacts& device, cuda::Stream stream) {
  const cuda::KernelProgram program = {
      "cuda/device/types.cuh", "read_all",
      "extern \"C\" __global__ void __launch_bounds__(256) read_all(const uint4* w, unsigned* never) {\n"
      "  w += static_cast<unsigned long long>(blockIdx.x) * 2048 + threadIdx.x / 32 * 256 + threadIdx.x % 32;\n"
      "  uint4 r[8];\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 8; ++i)\n"
      "    asm volatile(\"ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\"\n"
      "                 : \"=r\"(r[i].x), \"=r\"(r[i].y), \"=r\"(r[i].z), \"=r\"(r[i].w) : \"l\"(w + i * 32));\n"
      "  unsigned all = 0;\n"
      "#pragma unroll\n"
      "  for (int i = 0; i < 8; ++i) all ^= r[i].x ^ r[i].y ^ r[i].z ^ r[i].w;\n"
      "  if (never && all == 12345) *never = all;\n"
      "}\n",
      cuda::arch_of(device), ""};
  return cuda::kernel_for(device.ordinal, program, 0, stream);
}

}  // namespace

Matrices::Matrices(const Problem& most) : tensors_(shaped(most)) {
  constexpr double kSpoiled = 384e6;
  const bool on_device = most.device.kind == DeviceKind::cuda;
  const auto made = [&](ConstTensor t, std::uint64_t seed) -> void* {
    const std::size_t bytes = std::max<std::size_t>(bytes_spanned(t), 1);
    std::vector<std::byte> drawn(bytes);
    fill_random(drawn.data(), bytes_spanned(t), t.dtype, seed);
    if (!on_device) return on_host_.emplace_back(std::move(drawn)).data();
    const cuda::DeviceFacts& device = cuda::device_facts(most.device.index);
    const cuda::ContextScope scope(device);
    const cuda::DevicePtr at = on_device_.emplace_back(device, bytes).at;
    cuda::check_cuda(cuda::driver()->copy_to_device(at, drawn.data(), bytes, nullptr), "cuMemcpyHtoDAsync");
    cuda::check_cuda(cuda::driver()->stream_synchronize(nullptr), "cuStreamSynchronize");
    return reinterpret_cast<void*>(at);
  };
  for (auto* t : {&tensors_.x, &tensors_.w, &tensors_.column_bias})
    if (t->given()) t->device = most.device;
  tensors_.y.device = most.device;
  tensors_.x.data = made(tensors_.x, 1);
  tensors_.y.data = made(tensors_.y, 2);
  if (tensors_.column_bias.given()) tensors_.column_bias.data = made(tensors_.column_bias, 4);
  const double bytes = static_cast<double>(bytes_spanned(tensors_.w));
  const int copies = std::clamp(static_cast<int>(kSpoiled / std::max(bytes, 1.0)) + 1, 2, 16);
  for (int i = 0; i < copies; ++i) weights_.push_back(made(tensors_.w, 3));
}

Tensors Matrices::of_rows(std::int64_t m) {
  Tensors t = tensors_;
  t.x.shape[0] = t.y.shape[0] = m;
  t.w.data = weights_[turn_++ % weights_.size()];
  return t;
}

GemmContender::GemmContender(const Problem& p, const std::string& name, Matrices& matrices, Executor& executor,
                             DeviceTimer* timer)
    : plan_(make_plan(p, name, &executor)), m_(p.m), matrices_(matrices), executor_(executor), timer_(timer) {
  if (timer_) {
    memory_ = std::make_unique<DeviceMemory>(cuda::device_facts(p.device.index),
                                             std::max<std::size_t>(plan_.workspace_bytes(), 1));
    launch_ = {.stream = timer_->stream(),
               .workspace = {reinterpret_cast<std::byte*>(memory_->at), plan_.workspace_bytes()}};
  } else {
    host_.resize(plan_.workspace_bytes() + 64);
    std::byte* const at = host_.data() + (64 - reinterpret_cast<std::uintptr_t>(host_.data()) % 64) % 64;
    launch_ = {.executor = &executor_, .workspace = {at, plan_.workspace_bytes()}};
  }
  call();
}

void GemmContender::collect(double seconds) {
  if (timer_) {
    const cuda::ContextScope scope(cuda::device_facts(problem_of(plan_).device.index));
    sample_.seconds.push_back(seconds_in_a_graph(*timer_, seconds, matrices_.copies(), [&] { call(); }, note_));
    return;
  }
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); };
  const auto from = Clock::now();
  for (int i = 0; i < 3 || since(from) < seconds; ++i) {
    const auto begin = Clock::now();
    call();
    sample_.seconds.push_back(since(begin));
  }
}

void GemmContender::call() {
  plan_.state()->run(matrices_.of_rows(m_), launch_.workspace.data(), executor_, launch_.stream);
}

ReadContender::ReadContender(const Problem& p, Matrices& matrices, DeviceTimer& timer)
    : device_(cuda::device_facts(p.device.index)),
      kernel_(reading_kernel(device_, timer.stream())),
      bytes_(static_cast<std::size_t>(p.n * p.k) * size_of(p.dtype)),
      matrices_(matrices),
      timer_(timer) {
  want(bytes_ >= 32768, ErrorCode::unsupported, "w must have at least 32768 bytes for the reading kernel (got ", bytes_,
       ")");
  const cuda::ContextScope scope(device_);
  call();  // the driver may load a kernel at its first launch only, which is not to be in a capture
}

void ReadContender::collect(double seconds) {
  const cuda::ContextScope scope(device_);
  sample_.seconds.push_back(seconds_in_a_graph(timer_, seconds, matrices_.copies(), [&] { call(); }, note_));
}

void ReadContender::call() {
  const void* w = matrices_.of_rows(0).w.data;
  void* never = nullptr;
  void* arguments[] = {&w, &never};
  cuda::launch(kernel_, static_cast<unsigned>(bytes_ / 32768), 256, 0, timer_.stream(), arguments);
}

}  // namespace onepass::bench
