// The dtype of a typed view is that of its data.
#include <onepass/view.hpp>

#ifdef MISUSE
onepass::float16 data[16];
#else
onepass::bfloat16 data[16];
#endif
onepass::View<onepass::bfloat16> out(data, {4, 4});
