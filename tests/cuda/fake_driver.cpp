// A libcuda whose calls all succeed and do nothing: for tests of its callers, on machines without a GPU. Weak: those
// that must answer are in fake_driver_answers.cpp.
#include "cuda/driver/api.hpp"

namespace onepass::cuda {
#define ONEPASS_FAKE(symbol, member, parameters) \
  extern "C" __attribute__((weak)) Result symbol parameters { return 0; }
ONEPASS_DRIVER_API(ONEPASS_FAKE)
#undef ONEPASS_FAKE
}  // namespace onepass::cuda
