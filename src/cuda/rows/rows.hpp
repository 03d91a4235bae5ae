// The config and the parameters of the kernel that copies, rounds, adds and compares rows. One definition for the host
// and the device half.
#pragma once
#include "cuda/device/config.hpp"

namespace onepass {

// to = from; to += from, both fp32; to = the larger of both, or NaN where one is, both fp32.
ONEPASS_ENUM(RowsWork, copy, add, take_larger);

struct RowsConfig {
  ScalarType from, to;
  RowsWork work;
  int at_once;  // elements side by side that a thread moves: 16 bytes of `to` where addresses and strides allow, else 1

  ONEPASS_FIELDS(RowsConfig, from, to, work, at_once)
};

struct RowsParams {
  const void* from;
  void* to;
  long long from_stride[4], to_stride[4];    // elements; pieces of several have a stride of 1 in the last dimension
  unsigned heads, rows, pieces, all_pieces;  // pieces: of a row, of at_once elements
};

constexpr int kRowsThreads = 256;

}  // namespace onepass
