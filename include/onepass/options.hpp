// The options of attention: everything that a call says beside its tensors.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace onepass::inline v0 {

// The key a(i) that query i is aligned with. bottom_right: i + seq_k - seq_q, the last query with the last key
// (flash-attn). top_left: i (PyTorch is_causal, ONNX 23). offset: i + Band::offset, for queries that follow `offset`
// keys of a cache (ONNX's is_causal with past_key).
enum class Align : std::uint8_t { bottom_right, top_left, offset };

// Key j is visible to query i if a(i) - left <= j <= a(i) + right; -1 is unbounded. Causal is right = 0: with causal,
// `right` must be -1 or 0.
struct Band {
  bool causal = false;
  Align align = Align::bottom_right;
  std::int64_t left = -1, right = -1;
  std::int64_t offset = 0;  // -2^60 to 2^60; 0 unless align is Align::offset; of every packed sequence
  friend bool operator==(const Band&, const Band&) = default;
};

// How products of fp8_e4m3 are added. Hopper's product keeps 14 bits of its accumulator and truncates the rest, towards
// 0. exact: its results are added to an fp32 sum often enough that O is at most 0.5 % too small. fast: not; O is short
// of 1 % of V's mean at 1k keys, of 5 % at 4k and of 18 % at 16k. Other dtypes and the CPU are exact.
enum class Accumulation : std::uint8_t { exact, fast };

// The precision that an fp32 call's products need. fp32: that of fp32. tf32: products may round their operands to the
// 11 significant bits of NVIDIA's TF32, as PyTorch's allow_tf32 does: a relative error of 2^-11 per operand. Sums,
// softmax and results stay fp32. Kernels on tensor cores then take one product in place of three. Other kernels and the
// CPU compute in fp32.
enum class Precision : std::uint8_t { fp32, tf32 };

// How far, in natural units, a row's largest score may be from a unified_max that serves it: e^40 of fp32's e^88, so
// that sums of 10^9 keys and weights of 2^-24 of the largest stay numbers.
inline constexpr float kUnifiedRange = 40.0f;

// How an attention quantizes its q, k and v to fp8_e4m3 (onepass/quantize.hpp).
struct Fp8Options {
  bool by_block = false;  // factors of K and V for every 128 rows, not for each head; Q's are always by block
  bool hadamard = true;   // of Q and K, by `seed`
  bool center = false;    // V's means are taken out, and given back
  std::uint64_t seed = 0;
  friend bool operator==(const Fp8Options&, const Fp8Options&) = default;
};

// Rows and keys of a tile of a block mask whose call says nothing of them.
inline constexpr std::int64_t kMaskTile = 128;

// The options of a call, besides the facts that its tensors give.
struct Attention {
  Band band{};                    // causal alignment and window
  std::optional<double> scale{};  // default 1/sqrt(dim_qk)
  float softcap = 0.0f;           // > 0: s = softcap * tanh(s / softcap)
  float dropout_p = 0.0f;         // in [0, 1]
  std::uint64_t seed = 0;         // Philox key: the same seed drops the same weights on every backend
  // The batch entry, head, row and key that the call's first ones are in the dropout's draws: calls on parts of a
  // sequence drop what one call on all of it drops. The key is a multiple of 4.
  std::array<std::uint32_t, 4> dropout_start{};

  // C++ expressions over batch, head, q_index, k_index (in their sequence), mod_buffers: docs/features/score_mod.md.
  std::string score_mod{};  // the new score, from `score`: scaled, capped and biased, in natural units
  std::string mask_mod{};   // true where a query may attend to a key; joins the other masks

  std::int64_t mask_tile_q = 0, mask_tile_k = 0;  // rows and keys of a tile of block_mask; 0: kMaskTile

  // Packed sequences and sequences in pages: upper bounds of their lengths; 0: the longest, on a device all tokens. A
  // plan serves all lengths within them. Lengths beyond are refused on the CPU and must not occur on a device.
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  bool deterministic = false;  // a backward gives the same bits every time; on the CPU it always does
  // The results of a sequence do not depend on what else is in the batch: keys are cut at multiples of a fixed number.
  bool batch_invariant = false;
  // out is a part of a result that merge() completes. An fp32 out of 16-bit inputs then divides by the sum of the
  // weights before they are rounded, as a 16-bit out does. Else it divides by the sum of the rounded ones, so that the
  // value of a row that sees one key is exact. Long forwards are faster with it on Hopper. Without such an out it
  // changes nothing.
  bool partial = false;
  Accumulation accumulation = Accumulation::exact;  // of products of fp8_e4m3 q, k and v
  Precision precision = Precision::fp32;            // of products of an fp32 q

  // A forward of few rows: one number phi that all weights e^(s - phi) refer to in place of the rows' maxima, so that
  // splits of the keys join by addition. It changes no result: a row whose largest score is not within
  // kUnifiedRange of phi is computed again with its maximum. ScoreRange (onepass/unified_max.hpp) finds a phi. Hong et
  // al., FlashDecoding++, arXiv:2311.01282, section 3.
  std::optional<float> unified_max{};

  friend bool operator==(const Attention&, const Attention&) = default;
};

}  // namespace onepass::inline v0
