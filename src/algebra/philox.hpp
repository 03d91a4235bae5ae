// The dropout mask, made of Philox 4x32-10 (philox_rounds.hpp). Header-free.
//
// The mask of element (batch, head, row, column) is word column % 4 of the block with counter (column / 4, row, head,
// batch) and key = seed: one block serves four neighbouring columns, a quarter of the work of a block per element. A
// call that is a part of a larger one counts from the part's place there.
#if !defined(ONEPASS_CORE_PHILOX_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_PHILOX_HPP
#include "algebra/philox_rounds.hpp"
#include "algebra/portable.hpp"

ONEPASS_BEGIN

struct PhiloxBlock {
  unsigned word[4];
};

// The ten rounds' keys, two words each: the same for every block, so kernels read them instead of adding them up.
struct PhiloxKeys {
  unsigned word[20] = {};
  ONEPASS_HD static PhiloxKeys of(unsigned long long seed) {
    PhiloxKeys keys;
    for (unsigned round = 0; round < 10; ++round) {
      keys.word[2 * round] = static_cast<unsigned>(seed) + round * 0x9E3779B9u;
      keys.word[2 * round + 1] = static_cast<unsigned>(seed >> 32) + round * 0xBB67AE85u;
    }
    return keys;
  }
};

template <>
struct PhiloxWord<unsigned> {
  struct Wide {
    unsigned high, low;
  };
  ONEPASS_HD static Wide product(unsigned a, unsigned factor) {
    const unsigned long long wide = static_cast<unsigned long long>(factor) * a;
    return {static_cast<unsigned>(wide >> 32), static_cast<unsigned>(wide)};
  }
  ONEPASS_HD static unsigned keyed(unsigned a, unsigned b, unsigned key) { return a ^ b ^ key; }
};

ONEPASS_HD PhiloxBlock philox(const PhiloxKeys& keys, unsigned c0, unsigned c1, unsigned c2, unsigned c3) {
  PhiloxBlock block{{c0, c1, c2, c3}};
  philox_rounds(keys.word, block.word);
  return block;
}

// Dropped if a 32-bit draw lies below p * 2^32; kept weights are multiplied by 1 / (1 - p), or all are 0 at p = 1.
struct Dropout {
  const unsigned long long* seed = nullptr;  // where kernels read it; nullptr: it is a number, which the keys are of
  PhiloxKeys keys;
  unsigned long long threshold = 0;  // p * 2^32, in [0, 2^32]
  float keep_scale = 1.0f;
  unsigned first_batch = 0, first_head = 0, first_row = 0, first_block = 0;  // counters of (0, 0, 0, 0)

  ONEPASS_HD static Dropout of(float p, unsigned long long seed) {
    return {nullptr, PhiloxKeys::of(seed), static_cast<unsigned long long>(static_cast<double>(p) * 4294967296.0),
            p < 1.0f ? 1.0f / (1.0f - p) : 0.0f};
  }
  ONEPASS_HD bool active() const { return threshold != 0; }
  ONEPASS_HD PhiloxBlock draws(unsigned batch, unsigned head, unsigned row, unsigned column_block) const {
    return draws(keys, batch, head, row, column_block);
  }
  ONEPASS_HD PhiloxBlock draws(const PhiloxKeys& of, unsigned batch, unsigned head, unsigned row,
                               unsigned column_block) const {
    return philox(of, first_block + column_block, first_row + row, first_head + head, first_batch + batch);
  }
  ONEPASS_HD bool kept(unsigned draw) const { return draw >= threshold; }
  // An active dropout drops draws up to this: a comparison in 32 bits, also where everything is dropped.
  ONEPASS_HD unsigned last_dropped() const { return static_cast<unsigned>(threshold - 1); }
  ONEPASS_HD float factor(unsigned batch, unsigned head, unsigned row, unsigned column) const {
    return factor(draws(batch, head, row, column / 4), column);
  }
  ONEPASS_HD float factor(const PhiloxBlock& b, unsigned column) const {
    const unsigned low = column % 2 ? b.word[1] : b.word[0], high = column % 2 ? b.word[3] : b.word[2];
    return kept(column % 4 < 2 ? low : high) ? keep_scale : 0.0f;  // no run-time index: kernels keep words in registers
  }
};

ONEPASS_END
#endif
