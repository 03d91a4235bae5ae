// A tensor needs the address of its data.
#include <onepass/tensor.hpp>

float data[16];
#ifdef MISUSE
onepass::Tensor tensor(16, onepass::DType::f32, {4, 4});
#else
onepass::Tensor tensor(data, onepass::DType::f32, {4, 4});
#endif
