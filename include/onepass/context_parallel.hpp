// Attention over a sequence that is sharded between ranks: which rank holds what, which calls it makes, what travels.
//
// Nothing here communicates or computes attention. Every rank computes the same plan alone; a transport (NCCL, MPI,
// torch.distributed, JAX) moves what the plan says, and the calls are ordinary calls of attention().
// A position is the place of a token in the whole sequence. A shard has its positions in ascending order.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "onepass/export.h"
#include "onepass/options.hpp"

namespace onepass::inline v0::context_parallel {

struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Positions, and the rows where they are in a shard, or among gathered keys.
struct Piece {
  Range positions, rows;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// The sequence is cut into units: unit u is positions cuts[u] to cuts[u + 1]. `order` lists all units, and rank r holds
// order[shares[r]] to order[shares[r + 1] - 1]. Units and shares may be empty.
class ONEPASS_API Layout {
 public:
  // Throws bad_value if cuts do not ascend from 0, if order is not a permutation of the units, or if shares do not
  // ascend from 0 to their number. A sequence has at most 2^31 - 1 positions.
  Layout(std::vector<std::int64_t> cuts, std::vector<std::int64_t> order, std::vector<std::int64_t> shares);

  // Rank after rank. units: their number, 0: as many as ranks. Cuts are rounded to multiples of `multiple`.
  static Layout contiguous(std::int64_t length, std::int64_t ranks, std::int64_t units = 0, std::int64_t multiple = 1);
  // The first unit with the last, the second with the last but one: pairs are equal work under a causal mask. units:
  // an even number, 0: two for each rank.
  static Layout zigzag(std::int64_t length, std::int64_t ranks, std::int64_t units = 0, std::int64_t multiple = 1);
  // prefix: where documents begin, and the length. A document of at least 2 x ranks x multiple positions is cut as
  // zigzag is; a shorter one stays whole, on the rank that has the fewest positions by then.
  static Layout documents(const std::vector<std::int64_t>& prefix, std::int64_t ranks, std::int64_t multiple = 1);

  std::int64_t ranks() const { return static_cast<std::int64_t>(shares_.size()) - 1; }
  std::int64_t length() const { return cuts_.back(); }
  const std::vector<std::int64_t>& cuts() const { return cuts_; }
  const std::vector<std::int64_t>& order() const { return order_; }
  const std::vector<std::int64_t>& shares() const { return shares_; }

  // The pieces of a rank, in ascending order: adjacent units joined, and each unit by itself. Empty ones are left out
  // of runs(). They throw bad_value for a rank that is out of range.
  std::vector<Piece> runs(std::int64_t rank) const;
  std::vector<Piece> units(std::int64_t rank) const;
  std::int64_t count(std::int64_t rank) const;  // of its positions
  // For each of units(rank), its place in `order`: the leaf of the summation tree.
  std::vector<std::int64_t> leaves(std::int64_t rank) const;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  std::vector<std::int64_t> cuts_, order_, shares_;
};

// The layout of nodes that have `within` ranks each, and that of a node's rows among its ranks. Rank r is rank
// r % within of node r / within. Throws bad_value if the nodes do not have equally many ranks, or node is out of range.
struct NodeLayouts {
  Layout nodes, ranks;
};
ONEPASS_API NodeLayouts node_layouts(const Layout& layout, std::int64_t within, std::int64_t node);

// Position j is visible to position i if i - left <= j <= i + right (-1: unbounded) and both are in one document.
struct ONEPASS_API Visibility {
  std::int64_t left = -1, right = -1;
  std::vector<std::int64_t> documents{};  // where documents begin, and the length; empty: one document
  std::int64_t key_multiple = 1;          // seen() begins at a multiple of it in the document, which 4 is for dropout

  Range document(std::int64_t position, std::int64_t length) const;       // the document that holds it
  Range seen(Range rows, std::int64_t length) const;                      // what some position of rows sees
  std::int64_t pairs(Range rows, Range keys, std::int64_t length) const;  // how many pairs (i, j) are visible
};

// One call of attention: rows of a rank's shard, keys of the keys at hand.
struct ONEPASS_API Part {
  Range rows, keys;
  Range row_positions{}, key_positions{};  // of several runs: from the first to the last
  std::int64_t document = 0;               // where the document begins; of packed documents 0
  bool masked = true;                      // false: every row sees every key
  bool own = false;                        // holds the rows' own positions: sinks join here, once
  // In a call with a mask, rows and keys are aligned by an offset, or at the end of each packed document.
  Align align = Align::offset;
  std::int64_t offset = 0;
  std::vector<std::int64_t> cu_rows{}, cu_keys{};  // prefix sums of packed documents; empty: one document
};

// Properties that calls must have.
struct Needs {
  bool by_unit = false;    // of gather: a call has rows of one unit, so that calls do not depend on the ranks
  bool packed = true;      // a call may have several documents (cu_seqlens)
  bool distances = false;  // positions of keys matter beyond the mask (ALiBi, bias, expressions): keys have no gaps
};

// The keys that a rank's queries see, gathered in ascending order: rows are their places among gathered keys.
ONEPASS_API std::vector<Piece> gathered(const Layout& layout, const Visibility& visibility, std::int64_t rank);
// The calls of a rank's queries on gathered keys. Every row is in exactly one call, and it meets all keys that it sees.
ONEPASS_API std::vector<Part> gather_parts(const Layout& layout, const Visibility& visibility, std::int64_t rank,
                                           const Needs& needs = {});
// The calls of a rank's queries on the shard of `source`. Results of several sources are merged.
ONEPASS_API std::vector<Part> ring_parts(const Layout& layout, const Visibility& visibility, std::int64_t rank,
                                         std::int64_t source, const Needs& needs = {});
// How many steps the shard of `source` travels in a ring, to rank source + 1 and on: until no further rank sees it.
ONEPASS_API std::int64_t ring_steps(const Layout& layout, const Visibility& visibility, std::int64_t source);

// A sum of `count` leaves in an order that only their number decides, so that it has the same bits in any
// division of the work. The node (height, index) is the sum of its two children, or its one child at the end.
struct Node {
  std::int64_t height = 0, index = 0;
  friend bool operator==(const Node&, const Node&) = default;
};
struct Sum {
  // to += from, in this order, as soon as the slots up to `after` are there. Slots are those of the given nodes.
  struct Addition {
    std::int64_t to, from, after;
    friend bool operator==(const Addition&, const Addition&) = default;
  };
  std::vector<Addition> additions{};
  std::vector<Node> nodes{};          // what is left, in ascending order
  std::vector<std::int64_t> slots{};  // where each of them is
};
// Throws bad_value if a node does not exist or overlaps another one.
ONEPASS_API Sum sum(std::int64_t count, std::span<const Node> given);

// The nodes that a rank's leaves add up to: leaf is a unit's place in the layout's order.
ONEPASS_API std::vector<Node> nodes_of(const Layout& layout, std::int64_t rank);

// Rows `from` of the shard of `source` are rows `to` of the keys that `rank` gathers; gradients go the other way.
struct Move {
  Range from, to;
  friend bool operator==(const Move&, const Move&) = default;
};
// Only what is seen travels. node: only what the units of that node see.
ONEPASS_API std::vector<Move> moves(const Layout& layout, const Visibility& visibility, std::int64_t source,
                                    std::int64_t rank, std::optional<Node> node = {});

// Heads that a rank computes in the scheme ulysses: query heads, and the K/V heads that these read. Ranks may share a
// K/V head.
struct HeadShare {
  Range heads, heads_kv;
  friend bool operator==(const HeadShare&, const HeadShare&) = default;
};
ONEPASS_API HeadShare heads_of(std::int64_t heads_q, std::int64_t heads_kv, std::int64_t ranks, std::int64_t rank);
// A rank's calls, by places among its heads: one for whole groups, one for each group that it shares.
ONEPASS_API std::vector<HeadShare> head_calls(std::int64_t heads_q, std::int64_t heads_kv, std::int64_t ranks,
                                              std::int64_t rank);

// gather: K and V that a rank sees come to it; ring: K and V go round; ulysses: heads are dealt out.
enum class Scheme : std::uint8_t { gather, ring, ulysses };
ONEPASS_API std::string_view name_of(Scheme scheme);
ONEPASS_API Scheme scheme_from_name(std::string_view name);  // throws bad_value

// The sizes that bytes and time depend on.
struct Shape {
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, dim_qk = 64, dim_v = 64;
  std::int64_t bytes = 2;  // of an element of q, k and v
};
// The speed of a rank: operations a second of the forward and of the backward, and bytes a second in each direction
// when it sends and receives. The default is measured on two H200 with NVLink: docs/features/context_parallel.md.
struct Machine {
  double forward_flops = 715e12, backward_flops = 585e12;
  double bytes_per_second = 230e9;
  double seconds_per_exchange = 30e-6;
  // The share of these operations that a ring reaches: its calls are smaller, and their results are merged.
  double ring_forward = 0.93, ring_backward = 0.95;
};

// Visible pairs of each rank's queries, in the schemes gather and ring.
ONEPASS_API std::vector<std::int64_t> work(const Layout& layout, const Visibility& visibility);
// Bytes from rank to rank, [from][to], of a forward or of a backward.
ONEPASS_API std::vector<std::vector<std::int64_t>> traffic(Scheme scheme, const Layout& layout,
                                                           const Visibility& visibility, const Shape& shape,
                                                           bool backward);
struct Estimate {
  Scheme scheme = Scheme::gather;
  double forward = 0, backward = 0;  // seconds of the slowest rank; only a ring overlaps sending with computing
  double ideal = 0;                  // of both, if nothing were sent and all ranks had equal work
  std::int64_t memory = 0;           // bytes of K, V and their gradients on the rank that holds the most
  double total() const { return forward + backward; }
};
// Estimates of all schemes, the fastest first.
ONEPASS_API std::vector<Estimate> estimates(const Layout& layout, const Visibility& visibility, const Shape& shape,
                                            const Machine& machine = {});

// The layout by name ("contiguous", "zigzag", "documents") for `ranks` ranks; throws bad_value.
ONEPASS_API Layout layout_from_name(std::string_view name, std::int64_t length, std::int64_t ranks,
                                    const Visibility& visibility = {});
// The visibility that a problem line of attention describes (onepass/plan.hpp), where query i has position i. Throws
// bad_value if its mask is aligned with other positions than the queries' own, or if q and k have other lengths.
ONEPASS_API Visibility visibility_of(std::string_view line);
ONEPASS_API Shape shape_of(std::string_view line);
// A text: layout, work of each rank, bytes of each link, the schemes by time and memory.
ONEPASS_API std::string explain(std::string_view line, const Layout& layout, const Machine& machine = {});

}  // namespace onepass::inline v0::context_parallel
