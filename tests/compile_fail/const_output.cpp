// Outputs are written: what is const is an input.
#include <onepass/onepass.hpp>

const float numbers[8] = {};
#ifdef MISUSE
onepass::AttentionTensors tensors{.out = onepass::ConstTensor(numbers, onepass::DType::f32, {1, 1, 2, 4})};
#else
onepass::AttentionTensors tensors{.q = onepass::ConstTensor(numbers, onepass::DType::f32, {1, 1, 2, 4})};
#endif
