// The row blocks of a task between units: their softmax states, the states of splits that are joined, which
// values were lost, and the rows that they become.
namespace onepass::cpu::amx {
namespace {

class RowBlocks {
 public:
  explicit RowBlocks(AttendTask& t) : t_(t), depth_qk_(round_up(t.dim_qk, 32)), depth_v_(round_up(t.dim_v, 32)) {
    dropout_ = Dropout::of(t.dropout_p, t.seed);
    const auto [batch, head, row, key] = t.dropout_start;
    dropout_.first_batch = batch, dropout_.first_head = head, dropout_.first_row = row, dropout_.first_block = key / 4;
  }

 protected:
  // ---- splits: their states are joined in order, by the algebra's merge

  float* o_of(int b) const { return t_.scratch.o + b * depth_v_ * kRows; }
  float* joined_of(int b) const { return t_.scratch.joined + b * depth_v_ * kRows; }
  void join_state(int b, int parity) {
    if (!has_joined_state_[b]) joined_[b].clear();
    has_joined_state_[b] = true;
    for (int h = 0; h < 2; ++h) {
      const Merged<Vec> all = merge(joined_[b].half(h), state_[b].half(h), set(t_.unit.to_log2));
      if (t_.entropy)
        store(joined_[b].t + h * 16, joined_entropy(load(joined_[b].t + h * 16), joined_[b].half(h).l,
                                                    entropy_of(state_[b], h), state_[b].half(h).l, all));
      joined_[b].set(h, all.state);
      joined_[b].raise(h, load(state_[b].most + h * 16));
      store(join_[parity] + h * 16, all.alpha_a);
      store(join_[parity] + kRows + h * 16, all.alpha_b);
    }
    state_[b].clear();
  }
  static Vec entropy_of(const BlockState& s, int h) { return entropy(s.half(h).l, load(s.t + h * 16)); }
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
    for (int h = 0; h < 2; ++h) {
      store(to.m + h * 16, state_[b].half(h).m), store(to.l + h * 16, state_[b].half(h).l);
      store(to.most + h * 16, load(state_[b].most + h * 16));
      store(to.t + h * 16, load(state_[b].t + h * 16));
    }
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

  // O / l to the rows, LSE, and which rows hold something that is not finite although all that they see is.
  void epilogue(int b, float* o) {
    const RowBlock& block = t_.scratch.blocks[b];
    const std::uint32_t* const lost = has_lost_[b] ? t_.scratch.lost + b * depth_v_ : nullptr;
    if (block.first >= block.last) __builtin_memset(o, 0, static_cast<std::size_t>(depth_v_) * kRows * 4);
    std::uint32_t not_finite = 0;
    for (int h = 0; h < 2; ++h) {
      RowState<Vec> state = to_natural(state_[b].half(h), set(t_.unit.to_log2), set(t_.unit.to_natural));
      if (t_.row_max)
        write_numbers(block.row_max + h * 16,
                      largest_score(to_natural(RowState<Vec>{load(state_[b].most + h * 16), state.l},
                                               set(t_.unit.to_log2), set(t_.unit.to_natural))));
      Vec of_keys = has_joined_state_[b] ? load(state_[b].t + h * 16) : entropy_of(state_[b], h);
      Vec keep = set(dropout_.active() ? dropout_.keep_scale : 1.0f);
      if (t_.sinks) {
        const Merged<Vec> joined = join_natural_sink(state, Vec{_mm512_loadu_ps(block.sink + h * 16)});
        of_keys = joined_entropy(of_keys, state.l, set(0.0f), set(1.0f), joined);
        state = joined.state;
        keep = keep * joined.alpha_a;
      }
      if (t_.entropy)  // rounding may leave less than 0; NaN is kept
        write_numbers(block.entropy + h * 16, select(above(set(0.0f), of_keys), set(0.0f), of_keys));
      const Final<Vec> end = finalize_natural(state);
      write_numbers(block.lse + h * 16, end.lse);
      const Vec factor = keep * end.inv_l;
      Vec probe = set(0.0f);
      for (int d = 0; d < t_.dim_v; d += 16) {
        __m512i x[16];
        for (int i = 0; i < 16; ++i) {
          const Vec y = load(o + (h * depth_v_ + d + i) * kLanes) * factor;
          if (!lost) probe = probe_finite(probe, y);
          x[i] = _mm512_castps_si512(y.v);
        }
        if (lost) probe = lose(lost + d, h, probe, x);
        transpose(x);
        const __mmask16 dims = static_cast<__mmask16>(first_bits(t_.dim_v - d));
        for (int r = 0; r < 16 && h * 16 + r < block.rows; ++r) write_row(block.out[h * 16 + r], d, dims, x[r]);
      }
      // A row whose weights are NaN is NaN throughout, as it should be: only others have to be computed again.
      not_finite |= static_cast<std::uint32_t>(~equal(probe, set(0.0f)) & equal(factor, factor)) << (16 * h);
    }
    t_.not_finite[b] = block.rows == kRows ? not_finite : not_finite & ((1u << block.rows) - 1u);
  }
  // NaN in place of what is lost of 16 columns of O; the rest is probed.
  static __attribute__((noinline)) Vec lose(const std::uint32_t* lost, int h, Vec probe, __m512i* x) {
    for (int i = 0; i < 16; ++i) {
      const auto gone = static_cast<__mmask16>(lost[i] >> (16 * h));
      const Vec y{_mm512_castsi512_ps(x[i])};
      probe = probe_finite(probe, select(gone, set(0.0f), y));
      x[i] = _mm512_castps_si512(select(gone, set(__builtin_nanf("")), y).v);
    }
    return probe;
  }
  static void write_numbers(float* const* to, Vec x) {
    alignas(64) float of_row[16];
    store(of_row, x);
    for (int r = 0; r < 16; ++r) {
      if (to[r]) *to[r] = of_row[r];
    }
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

}  // namespace
}  // namespace onepass::cpu::amx
