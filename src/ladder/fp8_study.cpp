#include <cmath>
#include <numeric>

#include "base/text.hpp"
#include "ladder/sample.hpp"
#include "ladder/steps/flash3_fp8.hpp"
#include "ladder/table.hpp"

namespace onepass::ladder {
namespace {

float draw_outliers(char, std::mt19937& rng, std::normal_distribution<float>& normal) {
  const bool outlier = rng() % 1000 == 0;
  return normal(rng) + (outlier ? 10 * normal(rng) : 0.0f);
}
// Scores of standard deviation 1.
float draw_mean_one(char tensor, std::mt19937& rng, std::normal_distribution<float>& normal) {
  return normal(rng) + (tensor == 'v' ? 1.0f : 0.0f);
}

std::vector<float> fp8(const RandomHead& data, TileShape tiles, const Fp8Options& options) {
  Machine<float> machine(Index{1} << 17);
  return flash3_fp8_forward(machine, data.head(), tiles, options).o.outside();
}
double rmse(const std::vector<float>& o, const std::vector<double>& want) {
  double sum = 0;
  for (std::size_t i = 0; i < o.size(); ++i) sum += std::pow(static_cast<double>(o[i]) - want[i], 2);
  return std::sqrt(sum / static_cast<double>(o.size()));
}
double too_small(const std::vector<float>& o, const std::vector<double>& want) {
  return 1 - std::accumulate(o.begin(), o.end(), 0.0) / std::accumulate(want.begin(), want.end(), 0.0);
}

}  // namespace

Fp8Study measure_fp8(const std::function<void(Index, Index)>& progress) {
  Fp8Study study;
  const auto step = [&] {
    if (progress) progress(static_cast<Index>(study.rmse.size()) + static_cast<Index>(study.loss.size()), 7);
  };
  {
    const RandomHead data(parse_problem("fwd b1 h1 s1024x4096 d128 fp32"), draw_outliers);
    const std::vector<double> want = data.forward().out;
    const auto row = [&](const char* how, Fp8Options options, double in_paper) {
      study.rmse.push_back({how, rmse(fp8(data, {64, 64}, options), want), in_paper});
      step();
    };
    row("one scale per tensor", {.per_tensor = true, .incoherent = false}, 2.4e-2);
    row("one scale per tile", {.per_tensor = false, .incoherent = false}, 2.4e-2);
    row("one scale per tensor, signs and Hadamard", {.per_tensor = true, .incoherent = true}, 9.3e-3);
    row("one scale per tile, signs and Hadamard", {.per_tensor = false, .incoherent = true}, 9.1e-3);
  }
  for (const auto& [keys, h100] : {std::pair{Index{1024}, 0.01}, {Index{4096}, 0.05}, {Index{16384}, 0.18}}) {
    const RandomHead data(parse_problem(text("fwd b1 h1 s16x", keys, " d8 fp32")), draw_mean_one);
    const std::vector<double> want = data.forward().out;
    const auto with = [&](Accumulator accumulator) {
      return too_small(fp8(data, {16, 128}, {.per_tensor = true, .incoherent = true, .accumulator = accumulator}),
                       want);
    };
    study.loss.push_back(
        {keys, with(Accumulator::truncated), with(Accumulator::truncated_then_fp32), with(Accumulator::fp32), h100});
    step();
  }
  return study;
}

}  // namespace onepass::ladder
