// A plan is made for tensors, or for a problem line.
#include <onepass/plan.hpp>

#ifdef MISUSE
onepass::Plan plan = onepass::make_plan(1024);
#else
onepass::Plan plan = onepass::make_plan("fwd s1024 d64 bf16");
#endif
