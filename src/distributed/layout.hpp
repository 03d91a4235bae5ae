// Helpers that the files of this folder share.
#pragma once
#include "onepass/context_parallel.hpp"

namespace onepass::inline v0::context_parallel {

void check_rank(const Layout& layout, std::int64_t rank);
// Throws unless the prefix sums are empty or ascend from 0 to the length.
void check_documents(const std::vector<std::int64_t>& prefix, std::int64_t length);

// Moves of the wanted positions that a shard has; `at` holds them too.
std::vector<Move> moves_between(const std::vector<Piece>& shard, const std::vector<Piece>& wanted,
                                const std::vector<Piece>& at);

inline Range common(Range a, Range b) {
  const std::int64_t begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;
  return {begin, end > begin ? end : begin};
}
// The rows where positions of a piece are.
inline Range rows_of(const Piece& piece, Range positions) {
  const std::int64_t shift = piece.rows.begin - piece.positions.begin;
  return {positions.begin + shift, positions.end + shift};
}

}  // namespace onepass::inline v0::context_parallel
