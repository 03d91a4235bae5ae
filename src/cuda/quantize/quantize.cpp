// The launches of cuda.quantize, and of q, k and v together.
#include "cuda/quantize/quantize.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/attention/fp8.hpp"

namespace onepass::cuda {
namespace {

constexpr auto kPrintRows = [](const QuantizeConfig& c, const std::string& arch) { return quantize_program(c, arch); };
constexpr auto kPrintTiles = [](const QuantizeConfigs& c, const std::string& arch) {
  return quantize_program(c, arch);
};

const Kernel& load(const DeviceFacts& device, const QuantizeConfigs& configs, Stream stream) {
  static KernelTable<QuantizeConfigs> kernels;
  return kernels.find(device.ordinal, configs, configs.shared_bytes(), stream,
                      [&] { return quantize_program(configs, arch_of(device)); });
}

// A launch of quantize.cuh.
struct TileLaunch {
  QuantizeConfigs configs{};
  QuantizeJobs jobs{};

  void add(const QuantizeConfig& config, const QuantizeParams& params, int blocks) {
    configs.job[configs.count] = config, jobs.job[configs.count] = params, jobs.blocks[configs.count++] = blocks;
  }
  void start(const DeviceFacts& device, Stream stream) {
    int blocks = 0;
    for (const int of_job : jobs.blocks) blocks += of_job;
    if (blocks == 0) return;
    void* arguments[] = {&jobs};
    launch(load(device, configs, stream), static_cast<unsigned>(blocks), kQuantizeTileThreads, configs.shared_bytes(),
           stream, arguments, configs.follows());
  }
};

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const QuantizePlan& plan)
      : KernelState(request, device), plan_(plan), steps_(plan.steps()), decided_(quantize_params(*problem, plan)) {
    workspace_bytes = plan.workspace_bytes();
    idle_ = plan.heads == 0 || plan.blocks == 0;
    for (const auto& [config, blocks] : steps_) {
      const QuantizeConfigs tiles{{config}, 1};
      launched_.push_back(config.tiles ? kernels_.add(tiles, tiles.shared_bytes(), kPrintTiles)
                                       : kernels_.add(config, config.shared_bytes(), kPrintRows));
    }
    for (const QuantizeConfigs& configs : other_launches(plan)) kernels_.add_elsewhere(configs, kPrintTiles);
  }
  std::string describe() const override {
    const QuantizePart first = steps_[0].config.part;
    std::string line = text(plan_.config.rows * plan_.tiles, " rows per CTA");
    if (first == QuantizePart::write)
      line += ", read once";
    else if (first == QuantizePart::estimate)
      line += ", read once with estimated scales; heads that overflow are requantized";
    else
      line += text(", read twice, first in ", plan_.pieces, plan_.pieces == 1 ? " chunk per head" : " chunks per head");
    return line + (plan_.config.vectors ? "" : ", scalar loads");
  }
  QuantizeParams params(const QuantizeCall& call) const {
    QuantizeParams params = decided_;
    bind(params, plan_, call.tensors, call.workspace);
    params.used = call.used;
    return params;
  }
  void start(const QuantizeCall& call, Stream stream) const {
    if (idle_) return;
    kernels_.load(device_, stream);
    const ContextScope scope(device_);
    launch(params(call), {call.tensors, call.workspace, stream, device_});
  }
  const DeviceFacts& device() const { return device_; }
  const QuantizePlan& plan() const { return plan_; }

 private:
  void launch(const Call& call) const override { launch(params({call.tensors, call.workspace}), call); }
  void launch(QuantizeParams params, const Call& call) const {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const auto& [config, blocks] = steps_[i];
      if (config.tiles) {
        QuantizeJobs jobs{{params}, {blocks}};
        call.launch(*launched_[i], {blocks, kQuantizeTileThreads, QuantizeConfigs{{config}, 1}.follows()}, jobs);
      } else {
        call.launch(*launched_[i], {blocks, config.threads()}, params);
      }
    }
  }

  const QuantizePlan plan_;
  const std::vector<QuantizePlan::Step> steps_;
  const QuantizeParams decided_;
  std::vector<const PlannedKernel*> launched_;  // of the steps
};

Selected<QuantizePlan> plan_on(const DeviceFacts& device, const Problem& p) {
  return select_quantize(p, device.multiprocessors);
}

// Quantizes q, k and v in two launches if all have kernels of quantize.cuh, else one after the other.
class Quantizer final : public Fp8Quantizer {
 public:
  explicit Quantizer(std::array<std::shared_ptr<const State>, 3> states)
      : states_(std::move(states)),
        together_(std::ranges::all_of(states_, [](const auto& state) { return state->plan().config.tiles; })) {}
  const PlanState& state(std::size_t i) const override { return *states_[i]; }
  void prepare() const override {
    if (!together_) {
      for (const auto& state : states_) state->prepare();
      return;
    }
    for (const TileLaunch& launch : launches([](std::size_t) { return QuantizeParams{}; }))
      if (launch.configs.count > 0) load(states_[0]->device(), launch.configs, nullptr);
  }
  void run(const std::array<QuantizeCall, 3>& calls, Executor&, void* stream) const override {
    if (!together_) {
      for (std::size_t i = 0; i < calls.size(); ++i) states_[i]->start(calls[i], static_cast<Stream>(stream));
      return;
    }
    const ContextScope scope(states_[0]->device());
    std::array<TileLaunch, 2> both = launches([&](std::size_t i) { return states_[i]->params(calls[i]); });
    for (TileLaunch& launch : both) launch.start(states_[0]->device(), static_cast<Stream>(stream));
  }

 private:
  template <class Params>
  std::array<TileLaunch, 2> launches(Params params) const {
    std::array<TileLaunch, 2> all;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const auto steps = states_[i]->plan().steps();
      for (std::size_t step = 0; step < steps.size(); ++step)
        all[step].add(steps[step].config, params(i), steps[step].blocks);
    }
    return all;
  }

  const std::array<std::shared_ptr<const State>, 3> states_;
  const bool together_;
};

}  // namespace

Decision quantized_first(const Request& request, const Implementation& attention) {
  const auto make = [](const std::array<Request, 3>& requests) -> MadeQuantizer {
    std::array<std::shared_ptr<const State>, 3> states;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const Decision decision = plan_row<State, plan_on>(requests[i]);
      if (!decision) return refuse(decision.refusal);
      states[i] = std::static_pointer_cast<const State>(decision.state);
    }
    return {std::make_unique<const Quantizer>(std::move(states))};
  };
  return onepass::quantized_first(request, attention, make);
}

constinit const Implementation kQuantizeImplementation{"cuda.quantize", plan_row<State, plan_on>, kQuantize};

}  // namespace onepass::cuda
