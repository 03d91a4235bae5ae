// The state of a CUDA plan, whatever its family: kernels by the values that their programs are printed from, loaded
// once, and the launch of what the plan decided.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cuda/host/kernels.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

// A kernel of a plan. Its program is printed, which takes 100 us, only if it is not loaded yet or is asked for.
class PlannedKernel {
 public:
  explicit PlannedKernel(int bytes) : shared_bytes(bytes) {}
  PlannedKernel(const PlannedKernel&) = delete;
  PlannedKernel& operator=(const PlannedKernel&) = delete;
  virtual ~PlannedKernel() = default;

  virtual KernelProgram program(const std::string& arch) const = 0;
  // Later calls read one pointer without a lock.
  const Kernel& load(const DeviceFacts& device, Stream stream) const {
    const Kernel* known = kernel_.load(std::memory_order_acquire);
    if (!known) kernel_.store(known = &find(device, stream), std::memory_order_release);
    return *known;
  }

  const int shared_bytes;  // dynamic

 private:
  virtual const Kernel& find(const DeviceFacts& device, Stream stream) const = 0;
  mutable std::atomic<const Kernel*> kernel_{nullptr};
};

// The kernels of a plan.
class Kernels {
 public:
  // A kernel that the plan launches. print(values, arch), a lambda of the family, returns its KernelProgram. Equal
  // values have equal programs.
  template <class Values, class Print>
  const PlannedKernel* add(const Values& values, int shared_bytes, const Print& print) {
    return launched_.emplace_back(std::make_shared<Printed<Values, Print>>(values, shared_bytes, print)).get();
  }
  template <auto print, class Values>
  const PlannedKernel* add(const Values& values, int shared_bytes) {
    return add(values, shared_bytes, [](const Values& v, const std::string& arch) { return print(v, arch); });
  }
  // A kernel that the same problem needs on a device of this architecture with another number of multiprocessors.
  template <class Values, class Print>
  void add_elsewhere(const Values& values, const Print& print) {
    elsewhere_.emplace_back(std::make_shared<Printed<Values, Print>>(values, 0, print));
  }
  void add(const Kernels& part);  // of a plan that is a part of this one

  void load(const DeviceFacts& device, Stream stream) const {
    for (const auto& kernel : launched_) kernel->load(device, stream);
  }
  std::vector<KernelProgram> programs(const std::string& arch) const;

 private:
  template <class Values, class Print>
  class Printed final : public PlannedKernel {
   public:
    Printed(const Values& values, int bytes, const Print& print)
        : PlannedKernel(bytes), values_(values), print_(print) {}
    KernelProgram program(const std::string& arch) const override { return print_(values_, arch); }

   private:
    const Kernel& find(const DeviceFacts& device, Stream stream) const override {
      static KernelTable<Values> loaded;
      return loaded.find(device.ordinal, values_, shared_bytes, stream, [&] { return program(arch_of(device)); });
    }
    const Values values_;
    const Print print_;
  };
  std::vector<std::shared_ptr<const PlannedKernel>> launched_, elsewhere_;
};

struct Grid {
  std::int64_t blocks;  // 0: nothing is launched
  int threads;
  bool early = false;  // see launch()
  unsigned cluster = 1;
};

// A call of a plan: its kernels are loaded, and the device's context is current.
struct Call {
  const Tensors& tensors;
  void* workspace;
  Stream stream;
  const DeviceFacts& device;

  template <class... Parameters>
  void launch(const PlannedKernel& kernel, const Grid& grid, Parameters&... parameters) const {
    if (grid.blocks == 0) return;
    void* arguments[] = {&parameters...};
    cuda::launch(kernel.load(device, stream), static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.threads),
                 kernel.shared_bytes, stream, arguments, grid.early, grid.cluster);
  }
  void zero(void* memory, std::size_t bytes) const;
};

class KernelState : public PlanState {
 public:
  KernelState(const Request& request, const DeviceFacts& device) : PlanState(request.problem), device_(device) {}

  void prepare() const final;
  void run(const Tensors& tensors, void* workspace, Executor& executor, void* stream) const final;
  // The launches of a call.
  void start(const Call& call) const {
    if (!idle_) launch(call);
  }
  const Kernels& kernels() const { return kernels_; }

 protected:
  virtual void launch(const Call& call) const = 0;

  const DeviceFacts& device_;
  Kernels kernels_;    // the family's constructor adds them
  bool idle_ = false;  // there is nothing to compute: nothing is loaded or launched
};

// The problem's device; refused if it is not one that is there.
Selected<const DeviceFacts*> device_of(const Problem& problem);
// The refusal of a device of compute capability below 8.0.
std::string why_too_old(const DeviceFacts& device);

// The programs of a plan on any device of the architecture of its own; none of a plan that launches others' kernels.
std::vector<KernelProgram> programs_of(const PlanState& state, const std::string& arch);

// The plan of a family: its State of what `select` decides on the problem's device.
template <class State, class Select, class... More>
Decision plan_on_device(const Request& request, const Select& select, const More&... more) {
  const auto device = device_of(*request.problem);
  if (!device) return Decision::no(device.refusal());
  const auto selected = select(**device, *request.problem);
  if (!selected) return Decision::no(selected.refusal());
  return {{}, std::make_shared<State>(request, **device, *selected, more...)};
}
// The same as a row's plan; `select` takes the device and the problem, or the problem alone.
template <class State, auto select>
Decision plan_row(const Request& request) {
  return plan_on_device<State>(request, [](const DeviceFacts& device, const Problem& p) {
    if constexpr (std::is_invocable_v<decltype(select), const Problem&>)
      return select(p);
    else
      return select(device, p);
  });
}

}  // namespace onepass::cuda
