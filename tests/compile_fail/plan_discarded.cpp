// A plan that is not kept was for nothing.
#include <onepass/onepass.hpp>

void plan(const char* line) {
#ifdef MISUSE
  onepass::make_plan(line);
#else
  const onepass::Plan plan = onepass::make_plan(line);
#endif
}
