// The kernels of PyTorch's operators, in the stable ABI's form: arguments on a stack of values, which results replace.
#pragma once
#include <torch/csrc/stable/library.h>

#include <cstdint>

namespace onepass::libtorch {

void attention(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void attention_backward(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void quantize(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void append_kv(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

}  // namespace onepass::libtorch
