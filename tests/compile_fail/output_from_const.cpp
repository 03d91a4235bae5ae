// A Tensor is made of memory that may be written.
#include <onepass/onepass.hpp>

#ifdef MISUSE
const float numbers[8] = {};
#else
float numbers[8] = {};
#endif
onepass::Tensor out(numbers, onepass::DType::f32, {1, 1, 2, 4});
