#include "cuda/sm80/host.hpp"

#include "base/text.hpp"

namespace onepass::sm80 {

Extras extras_of(const AttentionFeatures& f, int copy_bytes) {
  AttentionFeatures dense = f;
  dense.packed = dense.seqused = dense.paged = false;
  if (f.softcap || f.score_mod || copy_bytes < 16) return kAll;
  if (!dense.plain()) return kTerms;
  return f.own_lengths() || f.paged || (f.bounded_left && f.bounded_right) ? kBands : kPlain;
}

namespace {
std::string include_of(const char* kind, ScalarType input) {
  return text("#include \"cuda/mma/", kind, "_", input == ScalarType::f32 ? "f32" : "16", ".cuh\"\n");
}
}  // namespace
std::string products_of(ScalarType input) { return include_of("products", input); }
std::string tangents_of(ScalarType input) { return include_of("tangents", input); }

}  // namespace onepass::sm80
