// The config and the parameters of the softmax kernels. One definition for the host and the
// device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

// whole: a row is one group's. states and finish: rows are cut into pieces; what each leaves, then the results.
ONEPASS_ENUM(SoftmaxPart, whole, states, finish);

struct SoftmaxConfig {
  ScalarType input, output;  // of x and dx; of y and dy
  bool backward, log, masked, scaled_first, row_lse;
  bool write;   // there is a y (or dx)
  bool unit;    // a row's neighbours are neighbours in memory
  bool even;    // and rows begin and end at multiples of 16 bytes (of what a slot has, in tensors of narrower numbers)
  bool full;    // and are as long as their threads' slots: none is left over
  bool flat;    // rows lie one step apart in every tensor, whatever batch and heads are
  bool kept;    // a row (or piece) is held in registers: it is read once
  int threads;  // that share a row: 4, 8, 16, or 32 and its multiples
  int slots;    // of 16 bytes that a thread reads at once
  SoftmaxPart part;

  ONEPASS_FIELDS(SoftmaxConfig, input, output, backward, log, masked, scaled_first, row_lse, write, unit, even, full,
                 flat, kept, threads, slots, part)

  ONEPASS_HD constexpr int block() const { return threads < 128 ? 128 / threads * threads : threads; }
  // Nothing but a row's slots: 32 registers hold four of them and what is computed.
  ONEPASS_HD constexpr bool plain() const {
    return full && !log && !masked && !row_lse && !scaled_first && bytes_of(output) == bytes_of(input);
  }
  // Threads of a multiprocessor that registers are counted for: pieces of a row, some of which spill at 48, have 64.
  ONEPASS_HD constexpr int resident() const {
    return (slots <= 4 && !backward && part == SoftmaxPart::whole ? (plain() ? 2048 : 1280) : 1024) / block() * block();
  }
  ONEPASS_HD constexpr int rows() const { return block() / threads; }                            // of a block
  ONEPASS_HD constexpr int shared_bytes() const { return threads > 32 ? block() / 32 * 8 : 0; }  // a state per warp
  ONEPASS_HD constexpr ScalarType read() const { return backward ? output : input; }
  ONEPASS_HD constexpr ScalarType written() const { return backward ? input : output; }
  ONEPASS_HD constexpr int numbers() const { return 16 / bytes_of(read()); }  // of a slot
  ONEPASS_HD constexpr int at_once() const { return threads * slots * numbers(); }
};

struct RowTensor {
  const void* data;
  long long stride[4];  // elements: batch, head, row, number; 0 in dimensions of size 1. flat: [2] is all rows' step
};
struct SoftmaxState {
  float m, l;
};

struct SoftmaxParams {
  RowTensor x, mask, row_lse, dy;  // x: y of a backward
  RowTensor result;                // y; dx of a backward
  RowTensor lse;                   // data nullptr: not asked for
  SoftmaxState* states;            // [rows, pieces]
  unsigned rows, heads, seq;       // rows = batch * heads * seq
  int n, pieces, piece;            // elements of a row; its pieces; elements of a piece
  float first, factor, unit, scale;
};

}  // namespace onepass
