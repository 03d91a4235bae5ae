// What is computed is planned for: run takes no problem and no description.
#include <onepass/onepass.hpp>

void compute(const onepass::Problem& problem, const onepass::Tensors& tensors) {
#ifdef MISUSE
  onepass::run(problem, tensors);
#else
  onepass::run(onepass::make_plan(problem), tensors);
#endif
}
