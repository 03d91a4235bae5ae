#include "cuda/plain/plain.hpp"

#include <algorithm>
#include <utility>

#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"

namespace onepass::cuda {
namespace {

class State final : public ForwardState {
 public:
  State(const Request& request, const DeviceFacts& device)
      : ForwardState(request, device, features_of(*request.problem), kPlainTile) {}

  std::string describe() const override {
    return text("one row per warp, ", kPlainRows, " rows per CTA, scalar products in fp32");
  }

 private:
  const Kernel& load(Stream stream) const override {
    static KernelTable<std::pair<ForwardFeatures, std::string>> kernels;
    return kernels.find(device_.ordinal, {features_, mods_key(*problem)}, 0, stream,
                        [&] { return plain_program(features_, arch_of(device_), mods_source(*problem)); });
  }
  void launch_with(const Kernel& kernel, const Tensors& tensors, ForwardParams& params, Stream stream) const override {
    PlainParams all = plain_params(*problem, params, tensors);
    void* arguments[] = {&all};
    launch(kernel, static_cast<unsigned>(params.tiles), 32 * kPlainWarps, 0, stream, arguments);
  }
};

}  // namespace

bool select_plain(const Problem& p, std::string& why) {
  const bool countable = p.batch * p.heads_q <= kMaxPosition;
  why = countable ? why_too_many(p, tile_bound(p, kPlainTile))
                  : text("batch x heads_q must be at most ", kMaxPosition, " (got ", p.batch * p.heads_q, ")");
  return why.empty();
}

KernelProgram plain_program(const ForwardFeatures& f, const std::string& arch, const std::string& mods) {
  return {"cuda/plain/plain.cuh", "attention_plain", features_source(f), arch, mods};
}

PlainParams plain_params(const Problem& p, const ForwardParams& params, const Tensors& t) {
  PlainParams all{params, 0, {}};
  if (!p.unified_max) return all;
  all.unified_max = *p.unified_max;
  all.recomputed.at = static_cast<int*>(t.recomputed.data);
  std::copy_n(p.layout.recomputed.begin(), 3, all.recomputed.stride);
  return all;
}

const Implementation& plain_implementation() {
  static const Implementation row{.name = "cuda.plain",
                                  .plan =
                                      [](const Request& request) {
                                        std::string why;
                                        const DeviceFacts* const device = device_of(*request.problem, why);
                                        if (!device || !select_plain(*request.problem, why)) return Decision::no(why);
                                        if (device->major < 8) return Decision::no(why_too_old(*device));
                                        return Decision{{}, std::make_shared<State>(request, *device)};
                                      },
                                  .unified_max = true};
  return row;
}

}  // namespace onepass::cuda
