// The host half of rows.cuh.
#pragma once
#include "cuda/host/kernels.hpp"
#include "cuda/rows/rows.hpp"
#include "onepass/tensor.hpp"

namespace onepass::cuda {

KernelProgram rows_program(const RowsConfig& config, const std::string& arch);

// to = from, of one dtype (fp32, fp16, bf16, fp8_e4m3) or rounded from fp32; other work is in fp32. [batch, heads,
// rows, dim] of equal shapes.
void move_rows(const ConstTensor& from, const Tensor& to, RowsWork work, void* stream);

// Bytes of the host to the device; the host's memory may change when it returns.
void upload(const void* from, void* to, std::size_t bytes, int ordinal, void* stream);

}  // namespace onepass::cuda
