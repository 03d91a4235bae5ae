// A run requires a plan: run does not accept a problem line or a description.
#include <onepass/onepass.hpp>

void compute(const char* line, const onepass::AttentionTensors& tensors) {
#ifdef MISUSE
  onepass::run(line, tensors);
#else
  onepass::run(onepass::make_plan(line), tensors);
#endif
}
