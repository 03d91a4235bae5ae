// A view of const elements is an input.
#include <onepass/view.hpp>

#ifdef MISUSE
const onepass::bfloat16 data[16] = {};
#else
onepass::bfloat16 data[16];
#endif
onepass::Tensor out = onepass::view(data, {4, 4});
