// cuda.quantize: rows to fp8_e4m3 by one launch, or by two where more than 128 rows share a factor or a mean: of 16-bit
// numbers in tiles (tile.cuh), of others row by row (quantize.cuh).
#pragma once
#include <span>
#include <string>
#include <vector>

#include "cuda/compile/program.hpp"
#include "cuda/driver/api.hpp"
#include "cuda/quantize/quantize_params.hpp"
#include "problem/implementation.hpp"

namespace onepass::cuda {

const Implementation& quantize_implementation();

struct QuantizePlan {
  QuantizeConfig config;  // of what writes y
  int heads, blocks;      // of all batch entries; of rows in each
  int pieces, piece_rows;
  int tiles, groups;     // blocks of rows that a block of threads has in turn; such blocks of threads in each head
  int sharing, menders;  // heads that share a factor; blocks of threads for all that may have to be written once more

  struct Step {
    QuantizeConfig config;
    int blocks;  // of threads
  };
  std::vector<Step> steps() const;  // launches, one behind the other
  std::size_t workspace_bytes() const;
};
// False, with a sentence, if no kernel computes the problem.
bool select_quantize(const Problem& problem, int multiprocessors, QuantizePlan& plan, std::string& why);
KernelProgram quantize_program(const QuantizeConfig& config, const std::string& arch);
KernelProgram quantize_program(const QuantizeConfigs& configs, const std::string& arch);
// All of a plan, for any number of multiprocessors. What Q of attention_fp8 is quantized by comes with what its q, k
// and v are quantized by together.
std::vector<KernelProgram> quantize_programs(const QuantizePlan& plan, const std::string& arch);
QuantizeParams quantize_params(const Problem& problem, const QuantizePlan& plan, const Tensors& tensors,
                               void* workspace);

// Quantizes of one device, none of which reads what another writes.
struct QuantizeCall {
  const PlanState& plan;
  const Tensors& tensors;
  void* workspace;  // plan.workspace_bytes
  const int* used =
      nullptr;  // on the device, how many rows of each head count; nullptr: all. Not with factors of blocks
};
// Shares launches where all plans have a kernel that can, else launches one after the other. Returns false, with
// nothing done, if a plan is not cuda.quantize.
bool quantize_all(std::span<const QuantizeCall> calls, Stream stream);

}  // namespace onepass::cuda
