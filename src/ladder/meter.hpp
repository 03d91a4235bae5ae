// The IO meter: a machine with a small fast memory in front of a slow one of any size, as in the papers' cost model.
//
// A Slow tensor cannot be read or written element by element: rectangles of it move into and out of Tiles, and the
// machine counts their bytes. Tiles live in fast memory; holding more than its capacity is an error, so a rung that
// finishes has shown that it fits. Slow memory beside the inputs and outputs is booked as extra. Arithmetic is counted
// where it is done (tile_math.hpp); tests/ladder checks those counts with a scalar that counts its own operations.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "algebra/mask.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"

namespace onepass::ladder {

struct Counts {
  Index matmul_flops = 0;                   // a multiplication and an addition each count one
  Index pointwise_flops = 0;                // additions, multiplications, divisions and maxima outside the products
  Index exponentials = 0;                   // 2^x and log2 x, one flop each
  Index bytes_read = 0, bytes_written = 0;  // slow memory
  Index flops() const { return matmul_flops + pointwise_flops + exponentials; }
  Index bytes() const { return bytes_read + bytes_written; }
};

// Bytes in use of one memory, and the most there ever were.
struct Ledger {
  Index capacity = 0, in_use = 0, peak = 0;  // capacity 0: unbounded
  void book(Index bytes) {
    if (capacity > 0 && in_use + bytes > capacity) {
      throw Error(ErrorCode::bad_value, text("fast memory of ", capacity, " bytes is too small for ", in_use + bytes,
                                             " bytes; use smaller tiles or more memory"));
    }
    in_use += bytes;
    peak = std::max(peak, in_use);
  }
};

// Room in a ledger for as long as the object lives.
class Booking {
 public:
  Booking() = default;
  Booking(Ledger& ledger, Index bytes) : ledger_(&ledger), bytes_(bytes) { ledger.book(bytes); }
  Booking(Booking&& other) noexcept : ledger_(std::exchange(other.ledger_, nullptr)), bytes_(other.bytes_) {}
  Booking& operator=(Booking&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Booking() {
    if (ledger_) ledger_->in_use -= bytes_;
  }

 private:
  Ledger* ledger_ = nullptr;
  Index bytes_ = 0;
};

// How a slow tensor stores its elements.
template <class T>
struct Format {
  Index bytes = sizeof(T);
  T (*round)(T) = nullptr;  // nullptr: stored as it is
};

template <class T>
class Machine;

// A matrix in slow memory, row-major. One that a machine made must not outlive the machine.
template <class T>
class Slow {
 public:
  Slow() = default;
  Slow(Index rows, Index cols, Format<T> format = {})
      : rows_(rows), cols_(cols), format_(format), data_(static_cast<std::size_t>(rows * cols)) {}

  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  Format<T> format() const { return format_; }
  Index bytes() const { return rows_ * cols_ * format_.bytes; }
  // The outside world sets inputs and looks at outputs; nothing is counted. No rung calls this.
  std::vector<T>& outside() { return data_; }
  const std::vector<T>& outside() const { return data_; }

 private:
  friend class Machine<T>;
  Index rows_ = 0, cols_ = 0;
  Format<T> format_;
  std::vector<T> data_;
  Booking extra_;
};

// A matrix in fast memory.
template <class T>
class Tile {
 public:
  Index rows() const { return rows_; }
  Index cols() const { return cols_; }
  T* row(Index r) { return data_.data() + r * cols_; }
  const T* row(Index r) const { return data_.data() + r * cols_; }
  T& operator()(Index r, Index c) { return row(r)[c]; }
  const T& operator()(Index r, Index c) const { return row(r)[c]; }
  Counts& counts() const { return *counts_; }

 private:
  friend class Machine<T>;
  Tile(Index rows, Index cols, Counts& counts, Booking room)
      : rows_(rows),
        cols_(cols),
        counts_(&counts),
        data_(static_cast<std::size_t>(rows * cols)),
        room_(std::move(room)) {}
  Index rows_, cols_;
  Counts* counts_;
  std::vector<T> data_;
  Booking room_;
};

template <class T>
class Machine {
 public:
  explicit Machine(Index fast_bytes) : fast_{fast_bytes} {}
  Machine(const Machine&) = delete;

  // Slow memory that is neither input nor output of the operation.
  Slow<T> scratch(Index rows, Index cols, Format<T> format = {}) {
    Slow<T> slow(rows, cols, format);
    slow.extra_ = Booking(extra_, slow.bytes());
    return slow;
  }
  // Zeros in fast memory, in working precision.
  Tile<T> tile(Index rows, Index cols) { return make(rows, cols, sizeof(T)); }

  // A second copy in fast memory, in working precision.
  Tile<T> copy(const Tile<T>& of) {
    Tile<T> t = tile(of.rows(), of.cols());
    t.data_ = of.data_;
    return t;
  }

  Tile<T> load(const Slow<T>& from, Index row, Index rows, Index col, Index cols) {
    Tile<T> t = make(rows, cols, from.format_.bytes);
    for (Index r = 0; r < rows; ++r) std::copy_n(from.data_.data() + (row + r) * from.cols_ + col, cols, t.row(r));
    counts.bytes_read += rows * cols * from.format_.bytes;
    return t;
  }
  Tile<T> load(const Slow<T>& from, Index row, Index rows) { return load(from, row, rows, 0, from.cols_); }

  void store(const Tile<T>& tile, Slow<T>& to, Index row, Index col = 0) {
    for (Index r = 0; r < tile.rows(); ++r) {
      T* into = to.data_.data() + (row + r) * to.cols_ + col;
      if (const auto round = to.format_.round)
        std::transform(tile.row(r), tile.row(r) + tile.cols(), into, round);
      else
        std::copy_n(tile.row(r), tile.cols(), into);
    }
    counts.bytes_written += tile.rows() * tile.cols() * to.format_.bytes;
  }

  Index fast_capacity() const { return fast_.capacity; }
  Index fast_peak() const { return fast_.peak; }
  Index extra_peak() const { return extra_.peak; }
  Counts counts;

 private:
  Tile<T> make(Index rows, Index cols, Index width) {
    return Tile<T>(rows, cols, counts, Booking(fast_, rows * cols * width));
  }
  Ledger fast_, extra_;
};

}  // namespace onepass::ladder
