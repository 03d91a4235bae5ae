// Linked into tests that compile kernels: they open the libnvrtc of requirements.txt where it is installed, instead of
// the machine's, so that everybody judges the same compiler's code.
#include <cstdlib>

namespace {
[[maybe_unused]] const int chosen = *ONEPASS_TEST_NVRTC ? setenv("ONEPASS_NVRTC", ONEPASS_TEST_NVRTC, 0) : 0;
}
