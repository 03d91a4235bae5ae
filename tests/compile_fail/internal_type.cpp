// The table of tensors is the library's own.
#include <onepass/onepass.hpp>

#ifdef MISUSE
onepass::Role role{};
#else
onepass::DType dtype{};
#endif
