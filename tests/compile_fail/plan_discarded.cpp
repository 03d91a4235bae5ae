// A plan that is not kept was for nothing.
#include <onepass/onepass.hpp>

void plan(const onepass::Problem& problem) {
#ifdef MISUSE
  onepass::make_plan(problem);
#else
  const onepass::Plan plan = onepass::make_plan(problem);
#endif
}
