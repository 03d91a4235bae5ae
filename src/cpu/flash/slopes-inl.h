// A score_mod over a tile of scores, with its derivative by the score.
#if defined(ONEPASS_CPU_SLOPES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ONEPASS_CPU_SLOPES_INL_H
#undef ONEPASS_CPU_SLOPES_INL_H
#else
#define ONEPASS_CPU_SLOPES_INL_H
#endif

#include "cpu/common/mods-inl.h"
#include "cpu/flash/scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onepass::cpu {
namespace HWY_NAMESPACE {

// A tile of dual numbers, and the values of a score_mod's steps.
struct SlopeMemory {
  float *duals, *numbers;
  std::int32_t* integers;
};

// Scores of keys [lo, hi), which begin at `scores`, become the expression's; slopes: their derivatives.
inline void change_scores_and_slopes(const flash::Call& call, const flash::Task& task, const PanelScores& panel,
                                     int vecs, std::int64_t lo, std::int64_t hi, const SlopeMemory& memory,
                                     float* scores, float* slopes) {
  using D = Dual<float>;
  auto* duals = reinterpret_cast<D*>(memory.duals);
  const int width = vecs * kLanes;
  const ExprTile<float> names = mod_tile(task, panel, vecs, lo, hi, scores);
  for (std::int64_t k = 0; k < hi - lo; ++k)
    for (int i = 0; i < width; ++i) duals[k * width + i] = D(scores[k * kPanel + i], 1.0f);
  const ExprMemory<D> steps{reinterpret_cast<D*>(memory.numbers), memory.integers};
  ExprRun<D, DualFunctions<VectorFunctions>>(call.mods.score, call.arguments.mod_buffers, steps)
      .change({duals, width, width, hi - lo, names.batch, lo, names.head, names.q_index});
  for (std::int64_t k = 0; k < hi - lo; ++k) {
    for (int i = 0; i < width; ++i) {
      scores[k * kPanel + i] = duals[k * width + i].value;
      slopes[k * kPanel + i] = duals[k * width + i].derivative;
    }
  }
}

// The same with second derivatives, `curves`. Duals and numbers of the memory take twice the floats.
inline void change_scores_and_curves(const flash::Call& call, const flash::Task& task, const PanelScores& panel,
                                     int vecs, std::int64_t lo, std::int64_t hi, const SlopeMemory& memory,
                                     float* scores, float* slopes, float* curves) {
  using D = Dual<Dual<float>>;
  auto* duals = reinterpret_cast<D*>(memory.duals);
  const int width = vecs * kLanes;
  const ExprTile<float> names = mod_tile(task, panel, vecs, lo, hi, scores);
  for (std::int64_t k = 0; k < hi - lo; ++k)
    for (int i = 0; i < width; ++i) duals[k * width + i] = D({scores[k * kPanel + i], 1.0f}, {1.0f, 0.0f});
  const ExprMemory<D> steps{reinterpret_cast<D*>(memory.numbers), memory.integers};
  ExprRun<D, DualFunctions<DualFunctions<VectorFunctions>>>(call.mods.score, call.arguments.mod_buffers, steps)
      .change({duals, width, width, hi - lo, names.batch, lo, names.head, names.q_index});
  for (std::int64_t k = 0; k < hi - lo; ++k) {
    for (int i = 0; i < width; ++i) {
      scores[k * kPanel + i] = duals[k * width + i].value.value;
      slopes[k * kPanel + i] = duals[k * width + i].value.derivative;
      curves[k * kPanel + i] = duals[k * width + i].derivative.derivative;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace onepass::cpu
HWY_AFTER_NAMESPACE();

#endif  // per target
