#include "libtorch/run.hpp"

#include "base/fork.hpp"
#include "base/text.hpp"
#include "interfaces/executors.hpp"
#include "interfaces/task_loop.hpp"
#include "plan/compute.hpp"

// libtorch_cuda has it. It is null in a PyTorch without CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(std::int32_t device, void** stream);

namespace onepass::libtorch {

TorchThreads::TorchThreads() {
  std::uint32_t threads = 1;
  check(torch_get_num_threads(&threads), "torch_get_num_threads");
  threads_ = static_cast<int>(threads);
}

// Always asks for the same number, since another one than that of PyTorch's operators would end and start threads.
void TorchThreads::parallel_for(std::int64_t tasks, void (*body)(void*, std::int64_t, int), void* context) {
  TaskLoop loop(tasks, body, context);
  const auto work = [](std::int64_t, std::int64_t, void* data) { static_cast<TaskLoop*>(data)->run(); };
  if (tasks == 1 || threads_ == 1)
    loop.run();
  else
    check(torch_parallel_for(0, threads_, 1, work, &loop), "torch_parallel_for");
}

// PyTorch's threads are lost in a child of fork().
Place::Place(Device device, std::optional<std::int64_t> threads) : device_(device) {
  want(!threads || (*threads >= 1 && *threads <= kMaxThreads), ErrorCode::bad_value,
       "threads must be None (all cores) or an integer from 1 to ", kMaxThreads, " (got ", threads.value_or(0), ")");
  const bool as_pytorch = !threads && device.kind == DeviceKind::cpu && theirs_.workers() > 1 && fork_count() == 0;
  const int number = device.kind == DeviceKind::cpu ? theirs_.workers() : 0;
  executor_ = as_pytorch ? &theirs_ : executor_of(threads ? static_cast<int>(*threads) : number);
}

Launch Place::launch() {
  return {.stream = device_.kind == DeviceKind::cuda ? stream_of(device_.index) : nullptr, .executor = executor_};
}

void* stream_of(int device) {
  want(aoti_torch_get_current_cuda_stream != nullptr, ErrorCode::bad_device, "this PyTorch is built without CUDA");
  void* stream = nullptr;
  check(aoti_torch_get_current_cuda_stream(device, &stream), "aoti_torch_get_current_cuda_stream");
  return stream;
}

void run(Op op, const Tensors& tensors, const CallOptions& options, Place& place, AtenTensorHandle like,
         std::string_view implementation) {
  Launch launch = place.launch();
  const Plan plan = plan::planned(op, tensors, options, launch.executor->workers(), implementation);
  std::optional<Owned> scratch;
  if (const std::size_t bytes = plan.workspace_bytes()) {
    const std::int64_t size = static_cast<std::int64_t>(bytes);
    scratch = empty({&size, 1}, {}, aoti_torch_dtype_uint8(), like);
    launch.workspace = {static_cast<std::byte*>(scratch->data_ptr()), bytes};
  }
  plan::run_planned(plan, tensors, launch);
}

}  // namespace onepass::libtorch
