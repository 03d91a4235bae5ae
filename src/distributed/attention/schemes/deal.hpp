// Rows of all heads against all rows of some heads: what the scheme ulysses exchanges.
#pragma once
#include <deque>
#include <vector>

#include "distributed/attention/call.hpp"

namespace onepass::inline v0::context_parallel {

enum class Heads { query, key_value };

// The exchanges of a call. All ranks make the same ones.
class Deal {
 public:
  explicit Deal(const Job& job);

  Range mine(Heads kind) const { return of(job_.me(), kind); }
  // Some ranks read the same K/V head.
  bool shared() const { return shared_; }

  // This rank's rows of all heads.
  struct Rows {
    ConstTensor tensor;
    Heads kind = Heads::query;
  };
  // All rows of this rank's heads, in memory of this object.
  std::vector<ConstTensor> to_heads(const std::vector<Rows>& given);

  // All rows of this rank's heads, and where this rank's rows of all heads go. add: those of several ranks are summed
  // in the order of ranks.
  struct Results {
    ConstTensor whole;
    Tensor rows;
    Heads kind = Heads::query;
    bool add = false;
  };
  void to_rows(const std::vector<Results>& given) const;

  // Memory [batch, this rank's heads, length, dim] of this object.
  Tensor memory(DType dtype, Heads kind, Index dim);

 private:
  Range of(Index rank, Heads kind) const {
    const HeadShare& share = shares_[static_cast<std::size_t>(rank)];
    return kind == Heads::query ? share.heads : share.heads_kv;
  }
  std::vector<Piece> pieces(Index rank) const { return job_.how.layout.runs(rank); }

  const Job& job_;
  std::vector<HeadShare> shares_{};  // by rank
  bool shared_ = false;
  std::deque<Owned> memory_{};
};

}  // namespace onepass::inline v0::context_parallel
