// A device is a kind and an index; a number alone says neither.
#include <onepass/tensor.hpp>

#ifdef MISUSE
onepass::Device device = 0;
#else
onepass::Device device{onepass::DeviceKind::cuda, 0};
#endif
