// cuda.quantize: rows to fp8_e4m3 by one launch, or by two where more than 128 rows share a factor or a mean
// (quantize.cuh).
#pragma once
#include <string>

#include "core/implementation.hpp"
#include "cuda/host/program.hpp"
#include "cuda/quantize/quantize_params.hpp"

namespace onepass::cuda {

const Implementation& quantize_implementation();

struct QuantizePlan {
  QuantizeConfig config;  // of the last launch
  int heads, blocks;      // of all batch entries; of each
  int pieces, piece_rows;
  bool surveys() const { return config.centered || !config.by_block; }
  QuantizeConfig survey_config() const;
  std::size_t workspace_bytes() const;
};
// False, with a sentence, if no kernel computes the problem.
bool select_quantize(const Problem& problem, QuantizePlan& plan, std::string& why);
KernelProgram quantize_program(const QuantizeConfig& config, const std::string& arch);
QuantizeParams quantize_params(const Problem& problem, const QuantizePlan& plan, const Tensors& tensors,
                               void* workspace);

}  // namespace onepass::cuda
