// A score_mod over a tile of scores, with its derivative by the score.
#if defined(ONEPASS_CPU_BACKWARD_MODS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_BACKWARD_MODS_INL_H
#undef ONEPASS_CPU_BACKWARD_MODS_INL_H
#else
#define ONEPASS_CPU_BACKWARD_MODS_INL_H
#endif

#include "cpu/backward/panel-inl.h"
#include "cpu/common/mods-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// Scores of keys [lo, hi), which begin at `scores`, become the expression's; slopes: their derivatives.
inline void change_scores_and_slopes(const backward::Call& call, const flash::Task& block,
                                     const backward::Scratch& scratch, const BackwardPanel& panel, std::int64_t lo,
                                     std::int64_t hi, float* scores, float* slopes) {
  using D = Dual<float>;
  auto* duals = reinterpret_cast<D*>(scratch.duals);
  const int width = panel.vecs * kLanes;
  const ExprTile<float> names = mod_tile(block, panel.scores, panel.vecs, lo, hi, scores);
  for (std::int64_t k = 0; k < hi - lo; ++k)
    for (int i = 0; i < width; ++i) duals[k * width + i] = D(scores[k * kPanel + i], 1.0f);
  const ExprMemory<D> memory{reinterpret_cast<D*>(scratch.dual_numbers), scratch.flash.mods.integers};
  ExprRun<D, DualFunctions<VectorFunctions>>(call.forward.mods.score, call.forward.arguments.mod_buffers, memory)
      .change({duals, width, width, hi - lo, names.batch, lo, names.head, names.q_index});
  for (std::int64_t k = 0; k < hi - lo; ++k) {
    for (int i = 0; i < width; ++i) {
      scores[k * kPanel + i] = duals[k * width + i].value;
      slopes[k * kPanel + i] = duals[k * width + i].derivative;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
