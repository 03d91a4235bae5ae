// cuda.quantize: rows to fp8_e4m3 by one launch, or by two where more than 128 rows share a scale or a mean. 16-bit
// elements take quantize.cuh, in tiles; others, and means, take rows.cuh.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "cuda/compile/program.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/quantize/quantize_params.hpp"
#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass::cuda {

extern const Implementation kQuantizeImplementation;
// The decision of a row of CUDA's on q, k and v that this quantizes, with shared launches where all three have kernels
// that can.
Decision quantized_first(const Request& request, const Implementation& attention);

struct QuantizePlan {
  QuantizeConfig config;  // of what writes y
  int heads, blocks;      // of all batch entries; of rows in each
  int pieces, piece_rows;
  int tiles, groups;            // tiles of a CTA; CTAs of each head
  int sharing, requant_blocks;  // heads that share a scale; CTAs that requantize them

  struct Step {
    QuantizeConfig config;
    int blocks;  // CTAs
  };
  std::vector<Step> steps() const;  // launches, one behind the other
  std::size_t workspace_bytes() const;
};
Selected<QuantizePlan> select_quantize(const Problem& problem, int multiprocessors);
// Launches of quantize.cuh besides a plan's own: of its kernel with the other number of tiles of a CTA, which a device
// with another number of multiprocessors takes, and if the plan can be Q's of attention_fp8, of q, k and v together.
std::vector<QuantizeConfigs> other_launches(const QuantizePlan& plan);
KernelProgram quantize_program(const QuantizeConfig& config, const std::string& arch);
KernelProgram quantize_program(const QuantizeConfigs& configs, const std::string& arch);
// Every program of a plan, for any number of multiprocessors. If the plan can be Q's of an FP8 attention, it includes
// the programs that quantize q, k and v together.
std::vector<KernelProgram> quantize_programs(const QuantizePlan& plan, const std::string& arch);
// Those of an FP8 attention's q, k and v, for any number of multiprocessors. Throws Error if one is refused.
std::vector<KernelProgram> quantize_programs(const std::array<Problem, 3>& problems, const std::string& arch);
// A launch's parameters but for the addresses of a call.
QuantizeParams quantize_params(const Problem& problem, const QuantizePlan& plan);
void bind(QuantizeParams& params, const QuantizePlan& plan, const Tensors& tensors, void* workspace);

}  // namespace onepass::cuda
