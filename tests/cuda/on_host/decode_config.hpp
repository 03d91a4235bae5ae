// The config of an emulated kernel of cuda.decode and cuda.decode_fp8: its name says what the library decides
// elsewhere.
#pragma once
#include <string_view>

#include "cuda/decode/decode.hpp"

namespace onepass {

inline decode::DecodeConfig decode_config(const Problem& p, std::string_view kernel, int shared_bytes) {
  const auto has = [&](std::string_view word) { return kernel.find(word) != kernel.npos; };
  const decode::Rows rows = has("fp8rows") ? decode::Rows::any_fp8 : decode::Rows::few;
  decode::DecodeConfig c = decode::select_config(p, shared_bytes, has("hopper"), rows).value();
  if (has("wide"))  // as for many rows
    c = decode::for_prompts(cuda::features_of(p), c, shared_bytes, decode::kMaxPromptWarps).value();
  if (has("large")) c = decode::in_large_blocks(cuda::features_of(p), c, shared_bytes).value();
  c.even = kernel.starts_with("even_");
  return c;
}

}  // namespace onepass
