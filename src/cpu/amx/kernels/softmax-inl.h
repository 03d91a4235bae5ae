// From scores to weights beside the tiles, and the states of rows.
namespace onepass::cpu::amx {
namespace {

// The states of a row block's rows. (Not an array of RowState: its default constructor would be compiled without
// AVX-512.)
struct BlockState {
  alignas(64) float m[kRows], l[kRows];
  alignas(64) float most[kRows];  // the largest scores, where they are asked for: m lags
  alignas(64) float t[kRows];     // entropies' sums (algebra/entropy.hpp); of joined splits, the entropies

  AMX_INLINE void clear() {
    for (int h = 0; h < 2; ++h) {
      set(h, {Arith<Vec>::neg_inf(), Arith<Vec>::of(0.0)});
      store(most + h * 16, Arith<Vec>::neg_inf());
      store(t + h * 16, Arith<Vec>::of(0.0));
    }
  }
  AMX_INLINE void raise(int h, Vec scores) { store(most + h * 16, max(load(most + h * 16), scores)); }
  AMX_INLINE RowState<Vec> half(int h) const { return {load(m + h * 16), load(l + h * 16)}; }
  AMX_INLINE void set(int h, RowState<Vec> s) {
    store(m + h * 16, s.m);
    store(l + h * 16, s.l);
  }
};

// The lazy step, row by row. The reference lags: a unit's weights are computed with the reference as it is (the
// algebra's keep), without a look at the maximum. So no maximum is searched and no older output rescaled, but for a few
// units at the start of a row; and a row that one key dominates gets its reference from that key, hence the weight 1,
// which bf16 holds exactly. (A reference rounded up to an integer would round the weight of every key by up to 2^-9.)
//
// kMaxSum: how far a row's weights of a unit may sum up before its scores are computed once more and its reference
// moves to their maximum: 2^16 leaves 2^111 of fp32's range for the sums of later units, and l its precision.
// kLag: where the maximum is searched, a row whose maximum rises by less, in log2 units, keeps its reference, so that
// rows that rise slowly rescale nothing: 2^16 again. CUDA's is kLazyLimit (cuda/attention/softmax.cuh).
inline constexpr float kMaxSum = 65536.0f, kLag = 16.0f;

// From scores to weights, cut into items that fit between two steps of the tiles. kEntropy: entropies are asked for.
template <bool kEntropy>
struct BasicSoftmax {
  enum Phase { kFindMaximum, kWeights, kDone };
  static constexpr int kMaxItem = 16, kWeightItem = 4;  // keys of an item

  float* s = nullptr;  // [2][kKeys][16], becomes pairs of bf16 weights, the halves where they are
  BlockState* state = nullptr;
  float* alpha = nullptr;             // [32] out: the factor of the row block's older output
  bool* rescale = nullptr;            // out: some factor is not 1
  Vec to_log2;                        // score unit -> log2
  Vec tile_max[2], sum[2], terms[2];  // terms: of entropies
  Vec after[2];                       // of the algebra's Step: all that stays in registers beside the tiles
  __mmask16 keeps[2] = {0, 0};        // rows whose reference stays where it is unless their weights get too large
  __mmask16 moves[2] = {0, 0};        // rows whose weights were too large
  Phase phase = kDone;
  int keys = 0, next_key = 0;
  int items = 0, steps = 1, due = 0;
  bool again = false, searched = false;  // maxima of some rows
  bool fp32_out = false;
  bool row_max = false, watches = false;  // the largest scores are asked for; weights() looks for them

  AMX_INLINE void begin(float* scores, int n, BlockState& of, float* alphas, bool& must_rescale, float unit,
                        bool wide_out, bool largest, int beside) {
    s = scores, state = &of, alpha = alphas, rescale = &must_rescale, keys = n, fp32_out = wide_out;
    row_max = largest;
    restart(unit);
    *rescale = again = searched = false;
    for (int h = 0; h < 2; ++h) {
      after[h] = keep(state->half(h), to_log2).after;
      keeps[h] = fp32_out ? 0 : within(after[h], static_cast<float>(kFusable));
    }
    const bool lagging = (keeps[0] & keeps[1]) == 0xffff;
    if (lagging) phase = kWeights;
    watches = lagging && row_max;
    items = (lagging ? 0 : n / kMaxItem) + n / kWeightItem;
    steps = beside, due = 0;
  }
  // After finish() was false, with fresh scores.
  AMX_INLINE void begin_again(float unit) {
    restart(unit);
    again = true, watches = false;
  }
  // Called once per step of the tiles: runs the items that keep pace with them.
  AMX_INLINE void beside_tiles() {
    for (due += items; due >= steps; due -= steps) item();
  }
  AMX_INLINE bool finish() {
    while (phase != kDone) item();
    if (!again) {
      for (int h = 0; h < 2; ++h) moves[h] = static_cast<__mmask16>(~within(sum[h], kMaxSum) & keeps[h]);
      if (moves[0] | moves[1]) return false;
    }
    for (int h = 0; h < 2; ++h) {
      RowState<Vec> rows = state->half(h);
      absorb(rows, sum[h]);
      state->set(h, rows);
      if constexpr (kEntropy) store(state->t + h * 16, load(state->t + h * 16) + terms[h]);
      if (row_max) state->raise(h, tile_max[h]);
    }
    return true;
  }

 private:
  AMX_INLINE void restart(float unit) {
    to_log2 = set(unit);
    tile_max[0] = tile_max[1] = minus_infinity();
    sum[0] = sum[1] = set(0.0f);
    if constexpr (kEntropy) terms[0] = terms[1] = set(0.0f);
    next_key = 0;
    phase = kFindMaximum;
  }
  AMX_INLINE void item() {
    if (phase == kFindMaximum)
      maximum();
    else if (phase == kWeights)
      weights();
  }
  AMX_INLINE void maximum() {
    for (int h = 0; h < 2; ++h) {
      const float* x = s + h * kScoreHalf + next_key * kLanes;
      Vec t[8];
      for (int k = 0; k < 8; ++k) t[k] = max(load(x + k * kLanes), load(x + (k + 8) * kLanes));
      for (int k = 0; k < 4; ++k) t[k] = max(t[k], t[k + 4]);
      tile_max[h] = max(tile_max[h], max(max(t[0], t[1]), max(t[2], t[3])));
    }
    if ((next_key += kMaxItem) < keys) return;
    __mmask16 all_one = 0xffff, fusable = 0xffff;
    Step<Vec> step[2];
    for (int h = 0; h < 2; ++h) {
      RowState<Vec> rows = state->half(h);
      const __mmask16 up =
          again ? moves[h] : static_cast<__mmask16>(above((tile_max[h] - rows.m) * to_log2, set(kLag)) & ~keeps[h]);
      [[maybe_unused]] const Vec before = rows.m;
      step[h] = advance(rows, select(up, tile_max[h], rows.m), to_log2);
      if constexpr (kEntropy)
        store(state->t + h * 16, moved_terms(load(state->t + h * 16), rows.l, before, to_log2, step[h]));
      after[h] = step[h].after;
      fusable &= equal(step[h].before, set(0.0f));
      state->set(h, rows);
      if (searched) step[h].alpha = step[h].alpha * load(alpha + h * kLanes);  // one of them is 1
      store(alpha + h * kLanes, step[h].alpha);
      all_one &= equal(step[h].alpha, set(1.0f));
    }
    *rescale = all_one != 0xffff;
    searched = true;
    if (fusable != 0xffff || fp32_out) take_reference(step);
    next_key = 0;
    phase = kWeights;
  }
  // Scores become their exponents: beyond kFusable, where the factor may not fuse, and for an fp32 output, which would
  // show that a dominating key does not weigh exactly 1 (bf16 weights do not notice). Rows whose factor may fuse have
  // the exponents of a fused weight, whatever the rows beside them need.
  void take_reference(const Step<Vec> (&step)[2]) {
    for (int h = 0; h < 2; ++h) {
      const Step<Vec>& r = step[h];
      for (int i = h * kScoreHalf; i < h * kScoreHalf + keys * kLanes; i += 16) {
        const Vec x = load(s + i) + r.before;
        store(s + i, fp32_out ? x * to_log2 + r.after : fma(x, to_log2, r.after));
      }
      after[h] = set(0.0f);
    }
    to_log2 = set(1.0f);
  }
  // Their entropy shows an error of weights that the exponents do not have: 3e-6 in a row of one key.
  AMX_INLINE Octet exact_weights(const Octet& exponents) {
    Octet all;
    for (int i = 0; i < 8; ++i) {
      all.v[i] = exp2_exact(exponents.v[i]);
      terms[i / 4] = fma(all.v[i], exponent(exponents.v[i]), terms[i / 4]);
    }
    return all;
  }
  AMX_INLINE void weights() {
    Octet x, factor;
    Step<Octet> step;
    for (int i = 0; i < 8; ++i) {
      x.v[i] = load(s + i / 4 * kScoreHalf + (next_key + i % 4) * kLanes);
      factor.v[i] = to_log2;
      step.after.v[i] = after[i / 4];
    }
    if (watches)
      for (int i = 0; i < 8; ++i) tile_max[i / 4] = max(tile_max[i / 4], x.v[i]);
    Octet all;
    if constexpr (kEntropy)
      all = exact_weights(fused_log2_weight(x, factor, step));
    else
      all = fused_weight(x, factor, step);
    for (int h = 0; h < 2; ++h) {
      float* w = s + h * kScoreHalf + next_key / 2 * kLanes;  // never ahead of the scores still to be read
      const Vec* y = all.v + 4 * h;
      _mm512_store_si512(w, pair_weights(y[0], y[1]));
      _mm512_store_si512(w + kLanes, pair_weights(y[2], y[3]));
      sum[h] = sum[h] + ((y[0] + y[1]) + (y[2] + y[3]));
    }
    if ((next_key += kWeightItem) == keys) phase = kDone;
  }
};

}  // namespace
}  // namespace onepass::cpu::amx
