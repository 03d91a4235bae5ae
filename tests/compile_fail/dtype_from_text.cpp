// A string names an element type only through dtype_from_name, which can refuse it.
#include <onepass/tensor.hpp>

#ifdef MISUSE
onepass::DType dtype = "bf16";
#else
onepass::DType dtype = onepass::dtype_from_name("bf16");
#endif
