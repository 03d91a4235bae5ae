// Attention of a task's row blocks over one packed head, as a pipeline of units. A unit is a row block (32 rows) and up
// to kKeys keys; while AVX-512 turns the scores of unit u into weights, the tiles multiply the weights of unit u - 1
// with the values and the keys of unit u + 1 with the queries. README.md draws the schedule.
namespace onepass::cpu::amx {
namespace {

template <class Tiles, bool kEntropy>
class Attend : RowBlocks {
  using Softmax = BasicSoftmax<kEntropy>;

 public:
  using RowBlocks::RowBlocks;

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
                    t_.out_type == DType::f32, t_.row_max, steps);
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
      for (int h = 0; h < 2; ++h) {
        state_[0].set(h, {load(split.m + h * 16), load(split.l + h * 16)});
        store(state_[0].most + h * 16, load(split.most + h * 16));
        store(state_[0].t + h * 16, load(split.t + h * 16));
      }
      if (split.has_lost) {
        clear_lost(0);
        for (int d = 0; d < depth_v_; ++d) t_.scratch.lost[d] |= split.lost[d];
      }
      join_state(0, 0);
      join_output(0, 0, split.o);
    }
    if (!has_joined_state_[0]) joined_[0].clear();
    state_[0] = joined_[0];
    if (!has_joined_[0]) __builtin_memset(joined_of(0), 0, static_cast<std::size_t>(depth_v_) * kRows * 4);
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
    if (block.shown) hide_by_mod(t_, block, u.key, u.keys, s);
    if (u.key < block.full_from || u.key + u.keys > block.full_to) mask_band(block, u.key, u.keys, s);
  }

  __attribute__((noinline)) void softmax_again(const Unit& u, float* s, Softmax& softmax) {
    Softmax none;
    scores(u, s, none);
    apply_features(u, s);
    softmax.begin_again(t_.unit.to_log2);
    softmax.finish();
  }
};

template <class Tiles>
void attend(AttendTask& t) {
  Tiles::begin();
  if (t.entropy)
    Attend<Tiles, true>(t).run();
  else
    Attend<Tiles, false>(t).run();
  Tiles::end();
}

template <class Tiles>
void finish(AttendTask& t, const SplitState* splits, int count) {
  Attend<Tiles, false>(t).finish(splits, count);
}

template <class Tiles>
constexpr Kernels kernels() {
  return {pack_keys, pack_values, attend<Tiles>, finish<Tiles>};
}

}  // namespace
}  // namespace onepass::cpu::amx
