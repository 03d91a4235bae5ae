// Checks of the problems of every operator, and of those besides attention. Each throws Error with one sentence.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "problem/checked_problem.hpp"
#include "problem/problem.hpp"

namespace onepass {

void validate_device(const Problem& problem);
void validate_data(const char* name, DType dtype);  // fp32, fp16 and bf16
// k and v beside the base `name`, q or k_new: its dtype or fp8_e4m3, and fp16 or bf16 beside fp32.
void validate_key_dtype(const Problem& problem, const char* name);
void complete_rows(Problem& problem);  // a line of rows has one number of heads
void validate_scale(const Problem& problem);
void validate_alignments(const Problem& problem);
void validate_size(const char* name, std::initializer_list<std::int64_t> sizes);
void validate_strides(const Problem& problem);

Mods validate_attention(const Problem& problem);    // and its backward; beside the operator, attention/validate.cpp
void validate_mask_tiles(const Problem& problem);   // the sizes of block_mask's tiles
void validate_unified_max(const Problem& problem);  // of attention, and that others have none

}  // namespace onepass
