// Attention of a task's row blocks over one packed head, as a pipeline of units. A unit is a row block (32 rows) and up
// to kKeys keys; while AVX-512 turns the scores of unit u into weights, the tiles multiply the weights of unit u - 1
// with the values and the keys of unit u + 1 with the queries. README.md draws the schedule.
namespace onepass::cpu::amx {
namespace {

struct Unit {
  int block = 0;
  std::int64_t key = 0;  // first key, a multiple of kGroup
  int keys = 0;          // a multiple of kGroup; 0: no unit
  bool first = false;    // of its row block, or of a split
  bool joins = false;    // first of a split, after others
};

// Walks blocks of kKeys keys, inside them the row blocks, and leaves out what is visible to no row.
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
          const bool joins = t_.joins && from > rows.first && key_ % kJoinKeys == 0;
          return {block_ - 1, from, static_cast<int>(to - from), joins || from <= rows.first, joins};
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

template <class Tiles>
class Attend {
 public:
  explicit Attend(AttendTask& t) : t_(t), depth_qk_(round_up(t.dim_qk, 32)), depth_v_(round_up(t.dim_v, 32)) {
    dropout_ = Dropout::of(t.dropout_p, t.seed);
    const auto [batch, head, row, key] = t.dropout_start;
    dropout_.first_batch = batch, dropout_.first_head = head, dropout_.first_row = row, dropout_.first_block = key / 4;
  }

  void run() {
    for (int b = 0; b < t_.blocks; ++b) {
      state_[b].clear();
      pack_queries(t_.scratch.blocks[b], t_.dim_qk, t_.negate_q, t_.scratch.q + b * depth_qk_ / 2 * kRows);
    }
    Units units(t_);
    Unit before, now = units.next(), after = units.next();
    Softmax softmax;  // of no unit: nothing runs beside the tiles
    int parity = 0;
    if (now.keys) scores(now, t_.scratch.scores[0], softmax);
    while (now.keys) {
      float* s = t_.scratch.scores[parity];
      float* other = t_.scratch.scores[1 - parity];
      apply_features(now, s);
      if (has_flags(now)) note_lost(now, s);
      if (now.joins) join_state(now.block, parity);
      // A step of the tiles is a square, or the four stores at the end of a row of squares.
      const int v_squares = static_cast<int>(depth_v_) / 32, qk_squares = static_cast<int>(depth_qk_) / 32;
      const int steps = (before.keys ? v_squares * (before.keys / 32 + 1) : 0) + after.keys / 32 * (qk_squares + 1);
      softmax.begin(s, now.keys, state_[now.block], alpha_[parity], rescale_[parity], t_.unit.to_log2,
                    t_.out_type == DType::f32, steps);
      // In this order: the weights of `before` lie where the scores of `after` will.
      if (before.keys) accumulate(before, 1 - parity, softmax);
      if (after.keys) scores(after, other, softmax);
      if (!softmax.finish()) {
        Softmax copy = softmax;  // so that the compiler may keep the other in registers
        softmax_again(now, s, copy);
      }
      if (dropout_.active()) {
        drop_weights(dropout_, t_.scratch.blocks[now.block], t_.batch, now.key, now.keys, s);
      }
      before = now, now = after, after = units.next();
      parity = 1 - parity;
    }
    softmax = Softmax{};
    if (before.keys) accumulate(before, 1 - parity, softmax);
    for (int b = 0; b < t_.blocks; ++b) {
      if (t_.splits) {
        leave(b);
        continue;
      }
      if (has_joined_[b]) {
        join_state(b, 0);
        join_output(b, 0);
        state_[b] = joined_[b];
      }
      epilogue(b, has_joined_[b] ? joined_of(b) : o_of(b));
    }
  }

  // The states of the only row block over the splits of its keys, in order.
  void finish(const SplitState* splits, int count) {
    for (int i = 0; i < count; ++i) {
      const SplitState& split = splits[i];
      if (!split.seen) continue;
      for (int h = 0; h < 2; ++h) state_[0].set(h, {load(split.m + h * 16), load(split.l + h * 16)});
      if (split.has_lost) {
        clear_lost(0);
        for (int d = 0; d < depth_v_; ++d) t_.scratch.lost[d] |= split.lost[d];
      }
      join_state(0, 0);
      join_output(0, 0, split.o);
    }
    if (!has_joined_state_[0]) joined_[0].clear();
    state_[0] = joined_[0];
    epilogue(0, joined_of(0));
  }

 private:
  // A is two tiles in a row in memory; those of B and C for the second half of the rows lie `half` further. Every tile
  // is 1 KB in a row.
  static AMX_INLINE void square(const std::uint16_t* a, const std::uint32_t* b, std::int64_t half) {
    Square<Tiles>::add(a, {0, 512, 64}, b, half);
  }
  static AMX_INLINE void zero_square() { Square<Tiles>::zero(); }
  static AMX_INLINE void load_square(const float* c, std::int64_t half) { Square<Tiles>::load(c, {half, 256, 64}); }
  static AMX_INLINE void store_square(float* c, std::int64_t half) { Square<Tiles>::store(c, {half, 256, 64}); }

  // S^T [keys][32 rows] = K [keys][depth_qk] . Q^T [depth_qk][32 rows]
  AMX_INLINE void scores(const Unit& u, float* s, Softmax& softmax) {
    const std::uint16_t* k = t_.k + (u.key - t_.first_key) * depth_qk_;
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
  AMX_INLINE void accumulate(const Unit& u, int parity, Softmax& softmax) {
    float* o = o_of(u.block);
    if (u.joins) join_output(u.block, parity);
    if (rescale_[parity] && !u.first) rescale(o, alpha_[parity]);
    const std::uint16_t* v = t_.v + (u.key - t_.first_key) * depth_v_;
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

  // Seldom needed: see Softmax.
  void rescale(float* o, const float* alpha) {
    for (int h = 0; h < 2; ++h) {
      const Vec a = load(alpha + h * kLanes);
      for (int d = 0; d < depth_v_; ++d, o += kLanes) store(o, load(o) * a);
    }
  }

  AMX_INLINE void apply_features(const Unit& u, float* s) {
    const RowBlock& block = t_.scratch.blocks[u.block];
    if (t_.scaled) scale_products(block, t_.key_factors.at(t_.kv_head, u.key), u.keys, s);
    if (!t_.unit.products) apply_chain(*t_.params, block, u.key, u.keys, t_.seq_k, s);
    if (u.key < block.full_from || u.key + u.keys > block.full_to) mask_band(block, u.key, u.keys, s);
  }

  // ---- splits: their states are joined in order, by the algebra's merge

  float* o_of(int b) const { return t_.scratch.o + b * depth_v_ * kRows; }
  float* joined_of(int b) const { return t_.scratch.joined + b * depth_v_ * kRows; }
  void join_state(int b, int parity) {
    if (!has_joined_state_[b]) joined_[b].clear();
    has_joined_state_[b] = true;
    for (int h = 0; h < 2; ++h) {
      const Merged<Vec> all = merge(joined_[b].half(h), state_[b].half(h), set(t_.unit.to_log2));
      joined_[b].set(h, all.state);
      store(join_[parity] + h * 16, all.alpha_a);
      store(join_[parity] + kRows + h * 16, all.alpha_b);
    }
    state_[b].clear();
  }
  void join_output(int b, int parity) { join_output(b, parity, o_of(b)); }
  __attribute__((noinline)) void join_output(int b, int parity, const float* o) {
    float* const joined = joined_of(b);
    for (int h = 0; h < 2; ++h) {
      const Vec older = load(join_[parity] + h * 16), newer = load(join_[parity] + kRows + h * 16);
      for (std::int64_t i = h * depth_v_ * kLanes; i < (h + 1) * depth_v_ * kLanes; i += kLanes)
        store(joined + i, has_joined_[b] ? load(joined + i) * older + load(o + i) * newer : load(o + i));
    }
    has_joined_[b] = true;
  }
  void leave(int b) {
    SplitState& to = t_.splits[b];
    to.seen = t_.scratch.blocks[b].first < t_.scratch.blocks[b].last;
    to.has_lost = has_lost_[b];
    if (!to.seen) return;
    for (int h = 0; h < 2; ++h) store(to.m + h * 16, state_[b].half(h).m), store(to.l + h * 16, state_[b].half(h).l);
    __builtin_memcpy(to.o, o_of(b), static_cast<std::size_t>(depth_v_) * kRows * 4);
    if (to.has_lost) __builtin_memcpy(to.lost, t_.scratch.lost + b * depth_v_, static_cast<std::size_t>(depth_v_) * 4);
  }

  const std::uint32_t* flags_of(const Unit& u) const {
    return t_.flags + (u.key - t_.first_key) / kGroup * flag_words(depth_v_);
  }
  AMX_INLINE bool has_flags(const Unit& u) const {
    std::uint32_t any = 0;
    for (int g = 0; g < u.keys / kGroup; ++g) any |= flags_of(u)[g * flag_words(depth_v_)];
    return any != 0;
  }
  void note_lost(const Unit& u, const float* s) {
    std::uint32_t* const lost = t_.scratch.lost + u.block * depth_v_;
    clear_lost(u.block);
    add_lost(flags_of(u), u.keys, depth_v_, s, lost);
  }

  void clear_lost(int b) {
    if (!has_lost_[b]) __builtin_memset(t_.scratch.lost + b * depth_v_, 0, static_cast<std::size_t>(depth_v_) * 4);
    has_lost_[b] = true;
  }

  __attribute__((noinline)) void softmax_again(const Unit& u, float* s, Softmax& softmax) {
    Softmax none;
    scores(u, s, none);
    apply_features(u, s);
    softmax.begin_again(t_.unit.to_log2);
    softmax.finish();
  }

  // O / l to the rows, LSE, and which rows hold something that is not finite although all that they see is.
  void epilogue(int b, float* o) {
    const RowBlock& block = t_.scratch.blocks[b];
    const std::uint32_t* const lost = has_lost_[b] ? t_.scratch.lost + b * depth_v_ : nullptr;
    if (block.first >= block.last) __builtin_memset(o, 0, static_cast<std::size_t>(depth_v_) * kRows * 4);
    std::uint32_t not_finite = 0;
    for (int h = 0; h < 2; ++h) {
      RowState<Vec> state = to_natural(state_[b].half(h), set(t_.unit.to_log2), set(t_.unit.to_natural));
      Vec keep = set(dropout_.active() ? dropout_.keep_scale : 1.0f);
      if (t_.sinks) {
        const Merged<Vec> joined = join_natural_sink(state, Vec{_mm512_loadu_ps(block.sink + h * 16)});
        state = joined.state;
        keep = keep * joined.alpha_a;
      }
      const Final<Vec> end = finalize_natural(state);
      alignas(64) float lse[16];
      store(lse, end.lse);
      for (int r = 0; r < 16; ++r) {
        if (block.lse[h * 16 + r]) *block.lse[h * 16 + r] = lse[r];
      }
      const Vec factor = keep * end.inv_l, nan = set(__builtin_nanf(""));
      Vec probe = set(0.0f);
      for (int d = 0; d < t_.dim_v; d += 16) {
        __m512i x[16];
        for (int i = 0; i < 16; ++i) {
          const Vec y = load(o + (h * depth_v_ + d + i) * kLanes) * factor;
          const auto gone = static_cast<__mmask16>(lost ? lost[d + i] >> (16 * h) : 0);
          probe = probe_finite(probe, select(gone, set(0.0f), y));
          x[i] = _mm512_castps_si512(select(gone, nan, y).v);
        }
        transpose(x);
        const __mmask16 dims = static_cast<__mmask16>(first_bits(t_.dim_v - d));
        for (int r = 0; r < 16 && h * 16 + r < block.rows; ++r) write_row(block.out[h * 16 + r], d, dims, x[r]);
      }
      // A row whose weights are NaN is NaN throughout, as it should be: only others have to be computed again.
      not_finite |= static_cast<std::uint32_t>(~equal(probe, set(0.0f)) & equal(factor, factor)) << (16 * h);
    }
    t_.not_finite[b] = block.rows == kRows ? not_finite : not_finite & ((1u << block.rows) - 1u);
  }
  AMX_INLINE void write_row(void* out, int d, __mmask16 dims, __m512i bits) {
    const Vec x{_mm512_castsi512_ps(bits)};
    switch (t_.out_type) {
      case DType::f32: _mm512_mask_storeu_ps(static_cast<float*>(out) + d, dims, x.v); break;
      default: _mm256_mask_storeu_epi16(static_cast<std::uint16_t*>(out) + d, dims, to_bf16(x));
    }
  }

  AttendTask& t_;
  std::int64_t depth_qk_, depth_v_;
  Dropout dropout_;
  BlockState state_[kBlocks];
  alignas(64) float alpha_[2][kRows];
  bool rescale_[2] = {false, false};
  bool has_lost_[kBlocks] = {};           // scratch.lost holds something
  BlockState joined_[kBlocks];            // scratch.joined follows when the tiles have the output
  alignas(64) float join_[2][2 * kRows];  // factors of joined and new output
  bool has_joined_state_[kBlocks] = {}, has_joined_[kBlocks] = {};
};

template <class Tiles>
void attend(AttendTask& t) {
  Tiles::begin();
  Attend<Tiles>(t).run();
  Tiles::end();
}

template <class Tiles>
void finish(AttendTask& t, const SplitState* splits, int count) {
  Attend<Tiles>(t).finish(splits, count);
}

template <class Tiles>
constexpr Kernels kernels() {
  return {pack_keys, pack_values, attend<Tiles>, finish<Tiles>};
}

}  // namespace
}  // namespace onepass::cpu::amx
