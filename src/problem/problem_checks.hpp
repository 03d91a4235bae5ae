// Checks of the problems of every operator, and of those besides attention. Each throws Error with one sentence.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "onepass/problem.hpp"

namespace onepass {

void validate_device(const Problem& problem);
void validate_data(const char* name, DType dtype);  // fp32, fp16 and bf16
void validate_scale(const Problem& problem);
void validate_alignments(const Problem& problem);
void validate_size(const char* name, std::initializer_list<std::int64_t> sizes);
void validate_strides(const Problem& problem);

// Each beside the tensors of its operator, in OP_problem.cpp.
void validate_merge(const Problem& problem);
void validate_softmax(const Problem& problem);  // and its backward
void validate_quantize(const Problem& problem);
void validate_flat_gemm(const Problem& problem);  // and linear

}  // namespace onepass
