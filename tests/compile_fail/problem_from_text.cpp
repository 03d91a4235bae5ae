// Text becomes a problem only through parse_problem, which can refuse it.
#include <onepass/problem.hpp>

#ifdef MISUSE
onepass::Problem problem = "fwd s1024 d64 bf16";
#else
onepass::Problem problem = onepass::parse_problem("fwd s1024 d64 bf16");
#endif
