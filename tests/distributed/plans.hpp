// Small layouts and masks, all of them, and their visible pairs by definition.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "onepass/context_parallel.hpp"

namespace onepass::inline v0::context_parallel::test {

using Index = std::int64_t;

inline bool sees(const Visibility& v, Index i, Index j, Index length) {
  const Range document = v.document(i, length);
  return document.begin <= j && j < document.end && (v.left < 0 || j >= i - v.left) &&
         (v.right < 0 || j <= i + v.right);
}

inline std::string case_name(const Layout& layout, const Visibility& v) {
  std::string out = text("window ", v.left, ":", v.right, " documents");
  for (const Index d : v.documents) out += text(" ", d);
  out += ", cuts";
  for (const Index c : layout.cuts()) out += text(" ", c);
  out += ", order";
  for (const Index o : layout.order()) out += text(" ", o);
  out += ", shares";
  for (const Index s : layout.shares()) out += text(" ", s);
  return out;
}

inline std::vector<std::vector<Index>> documents_of(Index length) {
  return {{},
          {0, length},
          {0, length / 3, length},
          {0, length / 4, length / 4, length / 2, length - length / 8, length},
          {0, 0, 1 < length ? 1 : length, length, length}};
}

inline std::vector<Layout> layouts_of(Index length, Index ranks, const std::vector<Index>& documents) {
  std::vector<Layout> found{Layout::contiguous(length, ranks), Layout::contiguous(length, ranks, 6, 2),
                            Layout::zigzag(length, ranks), Layout::zigzag(length, ranks, 8, 3)};
  if (!documents.empty()) found.push_back(Layout::documents(documents, ranks));
  // Any cuts, any order; the last rank holds nothing.
  std::vector<Index> shares(static_cast<std::size_t>(ranks) + 1, 5);
  shares.front() = 0;
  for (std::size_t r = 1; r + 1 < shares.size(); ++r) shares[r] = std::min<Index>(5, 2 * static_cast<Index>(r));
  found.push_back({{0, length / 5, length / 5, length / 2, length - length / 7, length}, {3, 1, 0, 4, 2}, shares});
  return found;
}

// f(layout, visibility) of all small cases.
inline void for_each_case(const std::function<void(const Layout&, const Visibility&)>& f) {
  for (const Index length : {0, 1, 2, 5, 13, 24}) {
    for (const auto& documents : documents_of(length)) {
      for (const Index ranks : {1, 2, 3, 5}) {
        for (const Layout& layout : layouts_of(length, ranks, documents)) {
          for (const Index left : {-1, 0, 3}) {
            for (const Index right : {-1, 0, 2}) f(layout, {left, right, documents});
          }
        }
      }
    }
  }
}

// The position of each row.
inline std::vector<Index> positions_of(const std::vector<Piece>& pieces) {
  std::vector<Index> found;
  for (const Piece& piece : pieces) {
    for (Index p = piece.positions.begin; p < piece.positions.end; ++p) found.push_back(p);
  }
  return found;
}

}  // namespace onepass::inline v0::context_parallel::test
