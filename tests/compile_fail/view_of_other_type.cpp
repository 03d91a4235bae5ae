// A typed view has elements that the library knows: a double has no dtype.
#include <onepass/view.hpp>

#ifdef MISUSE
double data[16];
#else
float data[16];
#endif
onepass::ConstTensor tensor = onepass::view(data, {4, 4});
