// A run requires a plan: run does not accept a problem or a description.
#include <onepass/onepass.hpp>

void compute(const onepass::Problem& problem, const onepass::Tensors& tensors) {
#ifdef MISUSE
  onepass::run(problem, tensors);
#else
  onepass::run(onepass::make_plan(problem), tensors);
#endif
}
