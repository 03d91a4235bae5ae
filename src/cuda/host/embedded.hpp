// The device texts, put into the library at build time by cmake/embed_texts.cmake.
#pragma once
#include <span>

namespace onepass::cuda {

struct EmbeddedText {
  const char* name;  // as it is included: "sm90/forward.cuh", "core/online_softmax.hpp"
  const char* text;
};
std::span<const EmbeddedText> embedded_texts();

}  // namespace onepass::cuda
