// The host half that backward kernels of all architectures share: features, the workspace, a call's parameters, and the
// kernels in front of and behind a family's own.
#pragma once
#include "cuda/attention/backward/backward.hpp"
#include "cuda/attention/host.hpp"

namespace onepass::cuda {

BackwardFeatures backward_features_of(const Problem& problem);
// Text in front of a backward kernel's source: `backward_features`, `backward_shape`, and with them `forward_features`
// and `features`.
std::string backward_source(const BackwardFeatures& features, const BackwardShape& shape);

// pre: statistics, zeros. post: dQ from its sums; sums: the device source with the family's sum_tile. sums: dsinks and
// dslopes. arch: "sm_80".
struct BackwardPrograms {
  KernelProgram pre, post, sums;
};
BackwardPrograms backward_programs(const BackwardFeatures& features, const BackwardShape& shape,
                                   const std::string& sum_tile, const std::string& arch, const std::string& mods);
int pre_shared_bytes();

// Packed boolean masks of a backward pass: 64 rows and 32 keys a tile.
inline constexpr TileShape kMaskTile{64, 32, 4};

// Places within the workspace, in bytes; total: of it.
struct BackwardWorkspace {
  std::size_t statistics, dq_sums, sink_parts, slope_parts, marks, turns, fallback, mask, total;
};
BackwardWorkspace workspace_of(const Problem& problem, const BackwardFeatures& features, const BackwardShape& shape);

// A launch's parameters but for what a call brings.
BackwardParams decided_backward(const Problem& problem, const BackwardShape& shape, int l2_bytes);
// The addresses of a call. `workspace`: of places.total bytes.
void bind_backward(BackwardParams& params, const Tensors& tensors, void* workspace, const BackwardWorkspace& places);

// Blocks of threads that the pre and the post kernel have, and the kernel of the sums.
std::int64_t row_blocks(const BackwardParams& params);
std::int64_t post_blocks(const BackwardParams& params, const BackwardShape& shape);
unsigned sum_blocks(const BackwardParams& params);

// The plan and the run that all backward kernels share; a family adds its config and its launch.
class BackwardState : public PlanState {
 public:
  BackwardState(const Request& request, const DeviceFacts& device, const BackwardFeatures& features,
                const BackwardShape& shape, const char* sum_tile);
  void run(const Tensors& tensors, void* workspace, Executor& executor, void* stream) const final;
  void prepare() const final;

 protected:
  const char* order() const;  // of the sums of dQ, for describe()
  // Whether a kernel that knows how is launched early (cuda::launch) behind another kernel of the call.
  bool starts_early() const { return device_.major >= 9; }
  virtual void load(Stream stream) const = 0;  // every kernel of the family's own that launch_with needs
  virtual void launch_with(const Tensors& tensors, BackwardParams& params, Stream stream) const = 0;

  const DeviceFacts& device_;
  const BackwardFeatures features_;
  const BackwardShape shape_;
  const BackwardWorkspace places_;
  const BackwardParams decided_;
  const std::int64_t key_tiles_;  // of block_k keys of each head of K and V; an upper bound if packed

 private:
  struct Around {
    const Kernel *pre, *post, *sums;
  };
  Around load_around(Stream stream) const;
  const std::string sum_tile_;
};

// The plan of a family: its State of the config that it has on the problem's device.
template <class State, class Config, class ConfigOn>
Decision plan_backward(const Request& request, const ConfigOn& config_on) {
  Config config;
  std::string why;
  const DeviceFacts* const device = device_of(*request.problem, why);
  if (!device) return Decision::no(std::move(why));
  const BackwardFeatures features = backward_features_of(*request.problem);
  if (!config_on(*device, *request.problem, features, config, why)) return Decision::no(std::move(why));
  return {{}, std::make_shared<State>(request, *device, features, config)};
}

}  // namespace onepass::cuda
