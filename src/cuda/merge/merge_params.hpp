// The config and the parameters of the merge kernel. One definition for the host and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

constexpr int kMergeThreads = 256;  // of a block

struct MergeConfig {
  int dim;                   // of a row of out
  ScalarType input, output;  // of the parts, where they are read in pieces; of out
  int capacity;              // parts that the parameters hold

  ONEPASS_FIELDS(MergeConfig, dim, input, output, capacity)

  // Elements of out per thread and step (16 bytes of a part), and threads that share a row.
  ONEPASS_HD constexpr int at_once() const { return 16 / bytes_of(input); }
  ONEPASS_HD constexpr int lanes() const {
    const int pieces = ceil_div(dim, at_once());
    return pieces <= 4 ? 4 : pieces <= 8 ? 8 : pieces <= 16 ? 16 : 32;
  }
  ONEPASS_HD constexpr int rows() const { return kMergeThreads / lanes(); }  // of a block
};

struct MergePart {
  const void* out;
  const float* lse;
  long long out_stride[3], lse_stride[3];  // elements: batch, head, row; 0 in dimensions of size 1
  ScalarType type;
};

// The parts by value: a launch, and a captured graph, needs no table on the device. Up to 48 parts lie within the 4 KiB
// that every driver takes, 256 within the 32 KiB of CUDA 12.1.
constexpr int kSmallMerge = 48, kLargeMerge = 256;
template <int capacity>
struct MergeParams {
  void* out;
  float* lse;  // nullptr: not asked for
  long long out_stride[3], lse_stride[3];
  unsigned rows, heads, seq;  // rows = batch * heads * seq
  int parts;
  int read_bytes;  // 16 or 4: all parts have the config's input type and are read in loads of this size; 0: by element
  bool write_pieces;  // out takes pieces of up to 16 bytes
  bool alike;         // all parts have the strides of the first
  MergePart part[capacity];
};
static_assert(sizeof(MergeParams<kSmallMerge>) <= 4096 && sizeof(MergeParams<kLargeMerge>) <= 32764);

}  // namespace onepass
