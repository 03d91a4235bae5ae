// A softmax has no q: each operator's tensors are a type of their own.
#include <onepass/onepass.hpp>

const float numbers[8] = {};
#ifdef MISUSE
onepass::SoftmaxTensors tensors{.q = onepass::ConstTensor(numbers, onepass::DType::f32, {2, 4})};
#else
onepass::SoftmaxTensors tensors{.x = onepass::ConstTensor(numbers, onepass::DType::f32, {2, 4})};
#endif
