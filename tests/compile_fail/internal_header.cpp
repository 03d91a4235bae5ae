// Headers of src are not an interface.
#include <onepass/onepass.hpp>
#ifdef MISUSE
#include <problem/implementation.hpp>
#endif

onepass::Plan plan;
