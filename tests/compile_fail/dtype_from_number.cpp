// An element type has a name; numbers belong to the C interface.
#include <onepass/tensor.hpp>

#ifdef MISUSE
onepass::DType dtype = 2;
#else
onepass::DType dtype = onepass::DType::bf16;
#endif
