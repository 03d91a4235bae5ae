// A problem is parsed from text.
#include <onepass/problem.hpp>

#ifdef MISUSE
onepass::Problem problem = onepass::parse_problem(1024);
#else
onepass::Problem problem = onepass::parse_problem("fwd s1024 d64 bf16");
#endif
