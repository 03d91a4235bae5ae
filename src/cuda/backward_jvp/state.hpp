// The state of a family of second derivatives on tensor cores: its two kernels of tiles, between those of
// cuda.backward_plain.
#pragma once
#include <tuple>
#include <vector>

#include "base/text.hpp"
#include "cuda/attention/scores/mask_host.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "cuda/backward_jvp/backward_jvp.hpp"
#include "cuda/host/kernel_state.hpp"

namespace onepass::cuda::backward_jvp {

// Tiles: the family's kernels, made of the problem and its PlanOf<Config>. It has `plan`, describe(), and
// launch(call, keys, kernel, grid, params); program_of() and shared_bytes_of() take the plan.
template <class Tiles>
class State final : public KernelState {
 public:
  template <class Plan>
  State(const Request& request, const DeviceFacts& device, const Plan& plan)
      : KernelState(request, device),
        seen_(packed_problem(problem)),
        tiles_(*seen_, plan),
        places_(backward_plain::places_of(*seen_, plan.plain)),
        decided_(decided_params(*seen_, plan.plain, plan.config.held(), device.l2_bytes)),
        mask_(kernels_, *seen_, backward_plain::mask_tile_of(plan.plain.shape), problem) {
    using backward_plain::Part;
    for (const Part part : backward_plain::kParts) {
      add(kPlain, blocks_of(part, decided_, plan.plain), threads_of(part), shared_bytes_of(part, plan.plain.shape),
          std::tuple{part, plan.plain.features, plan.plain.shape},
          [part, of = plan.plain](const std::string& arch, const std::string& mods) {
            return program_of(part, of, arch, mods);
          });
      if (part != Part::stats) continue;
      for (const Kind kind : {kRows, kKeys}) {
        const bool keys = kind == kKeys;
        add(kind, blocks_of(keys, decided_, plan.plain), plan.config.threads(), shared_bytes_of(keys, plan),
            std::tuple{keys, plan.plain.features, plan.plain.shape, plan.config},
            [keys, of = plan](const std::string& arch, const std::string& mods) {
              return program_of(keys, of, arch, mods);
            });
      }
    }
    idle_ = launches_.empty();
    workspace_bytes = idle_ ? 0 : places_.total;
  }

  std::string describe() const override {
    return text(tiles_.describe(), ", ", shared_bytes_of(false, tiles_.plan), " and ",
                shared_bytes_of(true, tiles_.plan), " bytes of shared memory", precision_of(*problem),
                ", deterministic", packing_of(*problem, *seen_));
  }

 private:
  enum Kind { kPlain, kRows, kKeys };
  struct Launched {
    Kind kind;
    Grid grid;
    const PlannedKernel* kernel;
  };
  // program(arch, mods)
  template <class Values, class Program>
  void add(Kind kind, std::int64_t blocks, int threads, int shared_bytes, const Values& values, Program program) {
    if (blocks == 0) return;
    launches_.push_back({kind,
                         {blocks, threads},
                         kernels_.add(std::tuple_cat(values, std::tuple{mods_key(*seen_)}), shared_bytes,
                                      [p = seen_, program](const auto&, const std::string& arch) {
                                        return program(arch, mods_source(*p, 2));
                                      })});
  }

  void launch(const Call& call) const override {
    PlainBackwardParams params = decided_;
    backward_plain::bind(params, with_derivatives_as_gradients(call.tensors), call.workspace, places_);
    mask_.pack(call, static_cast<std::byte*>(call.workspace) + places_.mask, params.mask);
    for (const auto& [kind, grid, kernel] : launches_) {
      if (kind == kPlain)
        call.launch(*kernel, grid, params);
      else
        tiles_.launch(call, kind == kKeys, *kernel, grid, params);
    }
  }

  const std::shared_ptr<const Problem> seen_;  // by the kernels
  const Tiles tiles_;
  const backward_plain::Places places_;
  const PlainBackwardParams decided_;
  const PackedMask mask_;
  std::vector<Launched> launches_;
};

}  // namespace onepass::cuda::backward_jvp
