// Host code that both directions share.
#pragma once
#include "cuda/attention/attention.hpp"
#include "cuda/host/kernels.hpp"
#include "problem/implementation.hpp"

namespace onepass::sm80 {

// Features of a config besides Q K^T, a band bounded on one side, and P V; each needs registers.
enum Extras {
  kPlain,
  kBands,  // windows bounded on both sides, packed sequences
  kTerms,  // biases, slopes, masks, dropout
  kAll     // scores with a derivative (softcap, score_mod); copies in pieces of less than 16 bytes
};
Extras extras_of(const AttentionFeatures& features, int copy_bytes);

inline constexpr int kReserved = 1024;  // bytes of shared memory that each CTA takes for itself

// #include of their file.
std::string products_of(ScalarType input);
std::string tangents_of(ScalarType input);

}  // namespace onepass::sm80
