// Every error has a code.
#include <onepass/error.hpp>

#ifdef MISUSE
onepass::Error error("k has 3 heads");
#else
onepass::Error error(onepass::ErrorCode::bad_shape, "k has 3 heads");
#endif
