// The device sources, put into the library at build time by cmake/embed_sources.cmake.
#pragma once
#include <span>

namespace onepass::cuda {

struct EmbeddedSource {
  const char* name;  // as it is included: "sm90/forward.cuh", "algebra/online_softmax.hpp"
  const char* text;
};
std::span<const EmbeddedSource> embedded_sources();

}  // namespace onepass::cuda
