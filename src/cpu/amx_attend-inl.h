// Attention of a task's row blocks over one packed head, as a pipeline of units. A unit is a row block (32 rows) and up
// to kKeys keys; while AVX-512 turns the scores of unit u into weights, the tiles multiply the weights of unit u - 1
// with the values and the keys of unit u + 1 with the queries. amx.md draws the schedule.
namespace onepass::cpu::amx {
namespace {

struct Unit {
  int block = 0;
  std::int64_t key = 0;  // first key, a multiple of kGroup
  int keys = 0;          // a multiple of kGroup; 0: no unit
  bool first = false;    // of its row block
};

// Walks blocks of kKeys keys, inside them the row blocks, and leaves out what no row sees.
class Units {
 public:
  explicit Units(const AttendTask& t) : t_(t) {
    key_ = t.scratch.blocks[0].first;
    for (int b = 0; b < t.blocks; ++b) {
      key_ = t.scratch.blocks[b].first < key_ ? t.scratch.blocks[b].first : key_;
      end_ = t.scratch.blocks[b].last > end_ ? t.scratch.blocks[b].last : end_;
    }
    key_ = key_ / kKeys * kKeys;
  }
  Unit next() {
    for (; key_ < end_; key_ += kKeys, block_ = 0) {
      while (block_ < t_.blocks) {
        const RowBlock& rows = t_.scratch.blocks[block_++];
        const std::int64_t from = rows.first > key_ ? rows.first / kGroup * kGroup : key_;
        const std::int64_t to = rows.last < key_ + kKeys ? round_up(rows.last, kGroup) : key_ + kKeys;
        if (rows.first < rows.last && from < to) {
          return {block_ - 1, from, static_cast<int>(to - from), from <= rows.first};
        }
      }
    }
    return {};
  }

 private:
  const AttendTask& t_;
  std::int64_t key_ = 0, end_ = 0;
  int block_ = 0;
};

// The states of a row block's rows. (Not an array of RowState: its default constructor would be compiled without
// AVX-512.)
struct BlockState {
  alignas(64) float m[kRows], l[kRows];

  AMX_INLINE void clear() {
    for (int h = 0; h < 2; ++h) set(h, {Arith<Vec>::neg_inf(), Arith<Vec>::of(0.0)});
  }
  AMX_INLINE RowState<Vec> half(int h) const { return {load(m + h * 16), load(l + h * 16)}; }
  AMX_INLINE void set(int h, RowState<Vec> s) {
    store(m + h * 16, s.m);
    store(l + h * 16, s.l);
  }
};

// The maximum that the reference moves to: the newest one only if it is 2^8 above the reference, so that older output
// is seldom rescaled. A row that one key dominates gets its reference from that key, hence the weight 1, which bf16
// holds exactly; an integer reference would round the weight of every key by up to 2^-9. Weights stay below 2^8.
AMX_INLINE Vec raised(Vec reference, Vec newest) {
  return select(_mm512_cmp_ps_mask(newest.v, (reference + set(8.0f)).v, _CMP_GT_OQ), newest, reference);
}

// From scores to weights, cut into items that fit between two steps of the tiles.
struct Softmax {
  float* s = nullptr;  // [2][kKeys][16], becomes pairs of bf16 weights, the halves where they are
  BlockState* state = nullptr;
  float* alpha = nullptr;   // [32] out: the factor of the row block's older output
  bool* rescale = nullptr;  // out: some factor is not 1
  Vec to_log2;              // score unit -> log2
  Vec top[2], sum[2];
  Rescale<Vec> step[2];
  int keys = 0, next_key = 0, phase = 0;
  int items = 0, steps = 1, due = 0;
  bool exact = false;  // outputs are fp32

  static constexpr int kMaxItem = 16, kWeightItem = 4;  // keys of an item
  static constexpr float kLarge = 4096.0f;

  AMX_INLINE void begin(float* scores, int n, BlockState& of, float* alphas, bool& must_rescale, float unit,
                        bool fp32_out, int beside) {
    s = scores, state = &of, alpha = alphas, rescale = &must_rescale, to_log2 = amx::set(unit);
    keys = n, next_key = 0, phase = 0, due = 0;
    top[0] = top[1] = minus_infinity();
    sum[0] = sum[1] = set(0.0f);
    items = n / kMaxItem + n / kWeightItem;
    steps = beside;
    exact = fp32_out;
  }
  // Called once per step of the tiles: as many items as keep pace with them.
  AMX_INLINE void beside_tiles() {
    for (due += items; due >= steps; due -= steps) item();
  }
  AMX_INLINE void finish() {
    while (phase < 2) item();
    for (int h = 0; h < 2; ++h) {
      RowState<Vec> rows = state->half(h);
      absorb(rows, sum[h]);
      state->set(h, rows);
    }
  }

 private:
  AMX_INLINE void item() {
    if (phase == 0)
      maximum();
    else if (phase == 1)
      weights();
  }
  AMX_INLINE void maximum() {
    for (int h = 0; h < 2; ++h) {
      const float* x = s + h * kScoreHalf + next_key * kLanes;
      Vec t[8];
      for (int k = 0; k < 8; ++k) t[k] = max(load(x + k * kLanes), load(x + (k + 8) * kLanes));
      for (int k = 0; k < 4; ++k) t[k] = max(t[k], t[k + 4]);
      top[h] = max(top[h], max(max(t[0], t[1]), max(t[2], t[3])));
    }
    if ((next_key += kMaxItem) < keys) return;
    __mmask16 all_one = 0xffff, large = 0;
    for (int h = 0; h < 2; ++h) {
      large |= beyond(top[h] * to_log2, kLarge);
      RowState<Vec> rows = state->half(h);
      step[h] = advance(rows, raised(rows.m, top[h] * to_log2));
      state->set(h, rows);
      store(alpha + h * 16, step[h].alpha);
      all_one &= equal(step[h].alpha, set(1.0f));
    }
    *rescale = all_one != 0xffff;
    if (large || exact) change_unit();
    next_key = 0;
    phase = 1;
  }
  // weights_of() rounds score * to_log2 once, in the difference, but the reference has been rounded before: off by
  // 2^-24 of the score, so a dominating key would not weigh 1. Up to kLarge bf16 weights do not notice.
  void change_unit() {
    for (int h = 0; h < 2; ++h) {
      for (int i = h * kScoreHalf; i < h * kScoreHalf + keys * kLanes; i += 16) store(s + i, load(s + i) * to_log2);
    }
    to_log2 = amx::set(1.0f);
  }
  AMX_INLINE void weights() {
    Vec x[8];
    for (int i = 0; i < 8; ++i) x[i] = load(s + i / 4 * kScoreHalf + (next_key + i % 4) * kLanes);
    weights_of(x, to_log2, step[0].m_ref, step[1].m_ref);
    for (int h = 0; h < 2; ++h) {
      float* w = s + h * kScoreHalf + next_key / 2 * kLanes;  // never ahead of the scores still to be read
      const Vec* y = x + 4 * h;
      _mm512_store_si512(w, pair_weights(y[0], y[1]));
      _mm512_store_si512(w + kLanes, pair_weights(y[2], y[3]));
      sum[h] = sum[h] + ((y[0] + y[1]) + (y[2] + y[3]));
    }
    if ((next_key += kWeightItem) == keys) phase = 2;
  }
};

template <class Tiles>
class Attend {
 public:
  explicit Attend(AttendTask& t) : t_(t), depth_qk_(round_up(t.dim_qk, 32)), depth_v_(round_up(t.dim_v, 32)) {
    // Natural scores come out of finish_scores; plain ones carry their scale to the exponential.
    to_log2_ = static_cast<float>(t.spec->plain() ? t.spec->scale * kLog2e : kLog2e);
    dropout_ = Dropout::of(t.spec->dropout_p, t.spec->seed);
  }

  void run() {
    for (int b = 0; b < t_.blocks; ++b) {
      state_[b].clear();
      pack_queries(t_.scratch.blocks[b], t_.dim_qk, t_.spec->negate_q, t_.scratch.q + b * depth_qk_ / 2 * kRows);
    }
    Units units(t_);
    Unit before, now = units.next(), after = units.next();
    Softmax softmax;  // of no unit: nothing runs beside the tiles
    int parity = 0;
    if (now.keys) multiply_keys(now, t_.scratch.scores[0], softmax);
    while (now.keys) {
      float* scores = t_.scratch.scores[parity];
      float* other = t_.scratch.scores[1 - parity];
      score(now, scores);
      // A step of the tiles is a square, or the four stores at the end of a row of squares.
      const int v_squares = static_cast<int>(depth_v_) / 32, qk_squares = static_cast<int>(depth_qk_) / 32;
      const int steps = (before.keys ? v_squares * (before.keys / 32 + 1) : 0) + after.keys / 32 * (qk_squares + 1);
      softmax.begin(scores, now.keys, state_[now.block], alpha_[parity], rescale_[parity], to_log2_,
                    t_.out_type == Element::f32, steps);
      // In this order: the weights of `before` lie where the scores of `after` will.
      if (before.keys) multiply_values(before, 1 - parity, softmax);
      if (after.keys) multiply_keys(after, other, softmax);
      softmax.finish();
      if (dropout_.active()) {
        drop_weights(dropout_, t_.scratch.blocks[now.block], t_.batch, now.key, now.keys, scores);
      }
      before = now, now = after, after = units.next();
      parity = 1 - parity;
    }
    softmax = Softmax{};
    if (before.keys) multiply_values(before, 1 - parity, softmax);
    for (int b = 0; b < t_.blocks; ++b) write(b);
  }

 private:
  // C (32 x 32) += A (32 x 32) . B (32 x 32): A is two tiles in a row in memory; those of B and C for the second
  // half of the rows lie `half` further. Every tile is 1 KB in a row.
  static AMX_INLINE void square(const std::uint16_t* a, const std::uint32_t* b, std::int64_t half) {
    Tiles::template load_once<4>(a, 64);
    Tiles::template load<6>(b, 64);
    Tiles::template dot<0, 4, 6>();
    Tiles::template load<7>(b + half, 64);
    Tiles::template dot<1, 4, 7>();
    Tiles::template load_once<5>(a + 512, 64);
    Tiles::template dot<2, 5, 6>();
    Tiles::template dot<3, 5, 7>();
  }
  static AMX_INLINE void zero_square() {
    Tiles::template zero<0>();
    Tiles::template zero<1>();
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  }
  static AMX_INLINE void load_square(const float* c, std::int64_t half) {
    Tiles::template load<0>(c, 64);
    Tiles::template load<1>(c + half, 64);
    Tiles::template load<2>(c + 256, 64);
    Tiles::template load<3>(c + half + 256, 64);
  }
  static AMX_INLINE void store_square(float* c, std::int64_t half) {
    Tiles::template store<0>(c, 64);
    Tiles::template store<1>(c + half, 64);
    Tiles::template store<2>(c + 256, 64);
    Tiles::template store<3>(c + half + 256, 64);
  }

  // S^T [keys][32 rows] = K [keys][depth_qk] . Q^T [depth_qk][32 rows]
  AMX_INLINE void multiply_keys(const Unit& u, float* s, Softmax& softmax) {
    const std::uint16_t* k = t_.k + u.key * depth_qk_;
    for (int key = 0; key < u.keys; key += 32, s += 32 * kLanes) {
      const std::uint32_t* q = t_.scratch.q + u.block * depth_qk_ / 2 * kRows;
      zero_square();
      for (int d = 0; d < depth_qk_; d += 32, k += 32 * 32, q += 16 * kLanes) {
        square(k, q, depth_qk_ / 2 * kLanes);
        softmax.beside_tiles();
      }
      store_square(s, kScoreHalf);
      softmax.beside_tiles();
    }
  }

  // O^T [depth_v][32 rows] (+)= V^T [depth_v][keys] . P^T [keys][32 rows], on top of the older output if there is any.
  AMX_INLINE void multiply_values(const Unit& u, int parity, Softmax& softmax) {
    float* o = t_.scratch.o + u.block * depth_v_ * kRows;
    if (rescale_[parity] && !u.first) rescale(o, alpha_[parity]);
    const std::uint16_t* v = t_.v + u.key * depth_v_;
    for (int d = 0; d < depth_v_; d += 32, o += 32 * kLanes, v += 32 * 32) {
      const auto* p = reinterpret_cast<const std::uint32_t*>(t_.scratch.scores[parity]);
      if (u.first)
        zero_square();
      else
        load_square(o, depth_v_ * kLanes);
      for (int key = 0; key < u.keys; key += 32, p += 16 * kLanes) {
        square(v + key * depth_v_, p, kScoreHalf);
        softmax.beside_tiles();
      }
      store_square(o, depth_v_ * kLanes);
      softmax.beside_tiles();
    }
  }

  // Seldom needed: see raised().
  void rescale(float* o, const float* alpha) {
    for (int h = 0; h < 2; ++h) {
      const Vec a = load(alpha + h * kLanes);
      for (int d = 0; d < depth_v_; ++d, o += kLanes) store(o, load(o) * a);
    }
  }

  AMX_INLINE void score(const Unit& u, float* s) {
    const RowBlock& block = t_.scratch.blocks[u.block];
    if (!t_.spec->plain()) finish_scores(*t_.spec, block, u.key, u.keys, t_.seq_k, s);
    if (u.key < block.full_from || u.key + u.keys > block.full_to) mask_band(block, u.key, u.keys, s);
  }

  // O / l to the rows, LSE, and which rows hold something that is not finite.
  void write(int b) {
    const RowBlock& block = t_.scratch.blocks[b];
    float* o = t_.scratch.o + b * depth_v_ * kRows;
    if (block.first >= block.last) __builtin_memset(o, 0, static_cast<std::size_t>(depth_v_) * kRows * 4);
    std::uint32_t not_finite = 0;
    for (int h = 0; h < 2; ++h) {
      RowState<Vec> state = state_[b].half(h);
      Vec keep = set(dropout_.active() ? dropout_.keep_scale : 1.0f);
      if (t_.spec->sinks) {
        const Merged<Vec> joined =
            join_sink(state, Vec{_mm512_loadu_ps(block.sink + h * 16)} * set(static_cast<float>(kLog2e)));
        state = joined.state;
        keep = keep * joined.alpha_a;
      }
      const Final<Vec> end = finalize(state);
      alignas(64) float lse[16];
      store(lse, end.lse);
      for (int r = 0; r < 16; ++r) {
        if (block.lse[h * 16 + r]) *block.lse[h * 16 + r] = lse[r];
      }
      const Vec factor = keep * end.inv_l;
      std::uint32_t bad = 0;
      for (int d = 0; d < t_.dim_v; d += 16) {
        __m512i x[16];
        for (int i = 0; i < 16; ++i) {
          const Vec y = load(o + (h * depth_v_ + d + i) * kLanes) * factor;
          bad |= _mm512_fpclass_ps_mask(y.v, 0x99);  // either NaN, either infinity
          x[i] = _mm512_castps_si512(y.v);
        }
        transpose(x);
        const __mmask16 dims = static_cast<__mmask16>(first_bits(t_.dim_v - d));
        for (int r = 0; r < 16 && h * 16 + r < block.rows; ++r) write_row(block.out[h * 16 + r], d, dims, x[r]);
      }
      not_finite |= bad << (16 * h);
    }
    t_.not_finite[b] = block.rows == kRows ? not_finite : not_finite & ((1u << block.rows) - 1u);
  }
  AMX_INLINE void write_row(void* out, int d, __mmask16 dims, __m512i bits) {
    const Vec x{_mm512_castsi512_ps(bits)};
    switch (t_.out_type) {
      case Element::f32: _mm512_mask_storeu_ps(static_cast<float*>(out) + d, dims, x.v); break;
      default: _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(out) + d, dims, to_bf16(x));
    }
  }

  AttendTask& t_;
  std::int64_t depth_qk_, depth_v_;
  float to_log2_ = 1.0f;
  Dropout dropout_;
  BlockState state_[kBlocks];
  alignas(64) float alpha_[2][kRows];
  bool rescale_[2] = {false, false};
};

template <class Tiles>
void attend(AttendTask& t) {
  Tiles::begin();
  Attend<Tiles>(t).run();
  Tiles::end();
}

template <class Tiles>
constexpr Kernels kernels() {
  return {pack_keys, pack_values, attend<Tiles>};
}

}  // namespace
}  // namespace onepass::cpu::amx
