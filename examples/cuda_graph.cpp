// On a GPU: a plan captured into a CUDA graph on a stream of its own, replayed with new tensors, beside the CPU's
// result. The driver is opened at run time, so this builds without a CUDA toolkit. Without a GPU it says so and exits
// with 77.
#include <dlfcn.h>
#include <onepass/onepass.hpp>

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

namespace {
void* driver = dlopen("libcuda.so.1", RTLD_NOW);

template <class... Arguments>
void cu(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name));
  const int code = function == nullptr ? -1 : function(arguments...);
  if (code != 0) throw std::runtime_error(std::string(name) + " failed with code " + std::to_string(code));
}

void* device_memory(std::size_t bytes) {
  void* address = nullptr;
  cu("cuMemAlloc_v2", &address, bytes);
  return address;
}
}  // namespace

int main() try {
  int devices = 0, device = 0;
  const bool started = driver != nullptr && reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"))(0) == 0;
  if (started) cu("cuDeviceGetCount", &devices);
  if (devices == 0) return std::puts("this machine has no GPU, or no driver of CUDA"), 77;
  void *context = nullptr, *stream = nullptr, *graph = nullptr, *replay = nullptr;
  cu("cuDevicePrimaryCtxRetain", &context, device);  // the context in which onepass works
  cu("cuCtxSetCurrent", context);
  cu("cuStreamCreate", &stream, 1u);  // does not wait for the default stream

  constexpr std::int64_t heads = 4, tokens = 100, dim = 64;
  std::vector<float> x(heads * tokens * dim), out(x.size()), expected(x.size());
  const std::size_t bytes = x.size() * sizeof(float);
  void *const x_device = device_memory(bytes), *const out_device = device_memory(bytes);
  const onepass::Device gpu{onepass::DeviceKind::cuda, 0};
  const onepass::ConstTensor qkv(x_device, onepass::DType::f32, {1, heads, tokens, dim}, gpu);
  const onepass::AttentionTensors t{
      .q = qkv, .k = qkv, .v = qkv, .out = {out_device, onepass::DType::f32, {1, heads, tokens, dim}, gpu}};
  const onepass::Attention causal{.band = {.causal = true}};

  const onepass::Plan plan = onepass::make_plan(t, causal);
  std::printf("%s\n", plan.describe().c_str());
  onepass::prepare(plan);  // compiles or loads the kernels, which a capture must not do
  auto* const scratch = static_cast<std::byte*>(device_memory(plan.workspace_bytes() + 1));
  cu("cuStreamBeginCapture_v2", stream, 0);
  onepass::run(plan, t, {.stream = stream, .workspace = {scratch, plan.workspace_bytes()}});
  cu("cuStreamEndCapture", stream, &graph);
  cu("cuGraphInstantiateWithFlags", &replay, graph, 0ull);

  float worst = 0;
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(step)) % 97) / 48 - 1;
    cu("cuMemcpyHtoDAsync_v2", x_device, static_cast<const void*>(x.data()), bytes, stream);
    cu("cuGraphLaunch", replay, stream);
    cu("cuMemcpyDtoHAsync_v2", static_cast<void*>(out.data()), static_cast<const void*>(out_device), bytes, stream);
    cu("cuStreamSynchronize", stream);
    const auto host = onepass::view(std::as_const(x).data(), {1, heads, tokens, dim});
    onepass::attention(
        {.q = host, .k = host, .v = host, .out = onepass::view(expected.data(), {1, heads, tokens, dim})}, causal);
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(out[i] - expected[i]));
  }
  std::printf("three replays, off by %g\n", static_cast<double>(worst));
  return worst < 1e-4f ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
