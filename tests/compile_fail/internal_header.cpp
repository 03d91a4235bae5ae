// Headers of src are nobody's interface.
#include <onepass/onepass.hpp>
#ifdef MISUSE
#include <problem/implementation.hpp>
#endif

onepass::Problem problem;
