#include "cuda/implementations.hpp"

#include "cuda/sm90/forward.hpp"

namespace onepass::cuda {

std::vector<const Implementation*> implementations() { return {&sm90::forward_implementation()}; }

}  // namespace onepass::cuda
