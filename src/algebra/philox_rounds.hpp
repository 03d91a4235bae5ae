// The ten rounds of Philox 4x32-10 (Salmon et al. 2011), over one counter or over a counter in each lane. Header-free,
// as online_softmax.hpp is and why it is.
#if !defined(ONEPASS_CORE_PHILOX_ROUNDS_HPP) || defined(ONEPASS_PER_TARGET)
#define ONEPASS_CORE_PHILOX_ROUNDS_HPP
#include "algebra/portable.hpp"

ONEPASS_BEGIN

// product(a, factor): {high, low}, the halves of a * factor in 64 bits; keyed(a, b, key): a ^ b ^ key.
template <class Word>
struct PhiloxWord;

// counter: becomes the draws. keys: two words a round.
template <class Word>
ONEPASS_HD void philox_rounds(const unsigned (&keys)[20], Word (&counter)[4]) {
  for (int round = 0; round < 10; ++round) {
    const auto a = PhiloxWord<Word>::product(counter[0], 0xD2511F53u);
    const auto b = PhiloxWord<Word>::product(counter[2], 0xCD9E8D57u);
    counter[0] = PhiloxWord<Word>::keyed(b.high, counter[1], keys[2 * round]);
    counter[2] = PhiloxWord<Word>::keyed(a.high, counter[3], keys[2 * round + 1]);
    counter[1] = b.low;
    counter[3] = a.low;
  }
}

ONEPASS_END
#endif
