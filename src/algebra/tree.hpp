// Draft trees: the last tokens of a sequence are drafts, each the child of one before it or of the text before all of
// them. A draft sees that text, its ancestors and itself. Header-free: CPU and CUDA code read the same text.
#if !defined(ONEPASS_ALGEBRA_TREE_HPP)
#define ONEPASS_ALGEBRA_TREE_HPP
#include "algebra/portable.hpp"

namespace onepass {

inline constexpr int kMostDrafts = 64;  // a bit each

// parents[i] is the index of draft i's parent. A number that is not from 0 to i - 1 says that it has none, so that no
// content reads outside of the row.
struct DraftTree {
  const int* parents = nullptr;  // of one sequence; nullptr without a tree
  long long stride = 0;          // from draft to draft
  int drafts = 0;

  ONEPASS_HD bool given() const { return parents != nullptr; }
  // A bit for each draft that `draft` sees; none if it is negative.
  ONEPASS_HD unsigned long long seen_by(int draft) const {
    unsigned long long seen = 0;
    while (draft >= 0) {
      seen |= 1ull << draft;
      const int parent = parents[draft * stride];
      draft = parent < draft ? parent : -1;
    }
    return seen;
  }
};

// The keys that the tree shows to a row, of the sequence's. The band hides those behind the row's own.
template <class I>
struct TreeRow {
  I first = 0;  // the key of draft 0; negative in a sequence of fewer keys
  unsigned long long seen = 0;

  static ONEPASS_HD TreeRow of(const DraftTree& tree, I seq_q, I seq_k, I row) {
    if (!tree.given()) return {seq_k, 0};  // hides nothing
    const I draft = row - seq_q + tree.drafts, last = tree.drafts - 1;
    return {seq_k - tree.drafts, tree.seen_by(static_cast<int>(draft < 0 ? -1 : draft < last ? draft : last))};
  }
  ONEPASS_HD bool sees(I key) const {
    const I at = key - first;
    return at < 0 || (at < kMostDrafts && (seen >> at & 1) != 0);
  }
  // sees() of the 64 keys from `key` on, a bit each.
  ONEPASS_HD unsigned long long window(I key) const {
    const I at = key - first;
    if (at >= 0) return at < 64 ? seen >> at : 0;
    return at > -64 ? seen << -at | ((1ull << -at) - 1) : ~0ull;
  }
};

}  // namespace onepass
#endif
