// What every backend offers the plan layer: rows of an ordered list.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "onepass/attention.hpp"

namespace onepass {

// The tensors of one call, checked against the problem.
struct Arguments {
  Tensor q, k, v, out;
  Tensor lse, bias, bool_mask, alibi_slopes, sinks, cu_seqlens_q, cu_seqlens_k;
  std::vector<NamedTensor> mod_buffers;  // as in Problem::mod_buffers
};

struct Implementation {
  const char* name;                         // "cpu.flash.avx512"
  std::string (*why_not)(const Problem&);   // one sentence, or empty if it accepts
  std::string (*describe)(const Problem&);  // tiles, splits, threads: its config in a line
  std::size_t (*workspace_bytes)(const Problem&, int workers);
  void (*run)(const Problem&, const Arguments&, void* workspace, Executor&, void* stream);
};

}  // namespace onepass
