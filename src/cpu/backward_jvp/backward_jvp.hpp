// The kernel family cpu.backward_jvp.*: forward mode of the backward pass, that is second derivatives. Tasks, panels,
// tiles and sums of parts are those of cpu.backward (src/cpu/backward/backward.hpp). README.md holds the schedule.
#pragma once
#include <span>

#include "cpu/backward/backward.hpp"

namespace onepass::cpu::backward_jvp {

// The call of a backward, whose gradients are the derivatives of gradients, and what is beside it.
struct Call {
  backward::Call primal;
  const Tensors& arguments;  // tq, tk, tv, tdout and tlse
  float* tdelta;             // [rows]: rowsum(tdO * O + dO * tO) - tdLSE, 0 where a row sees no key

  bool has_tdout() const { return arguments.tdout.given(); }
};

// One worker's memory. primal: that of a backward. Arrays of tangents have the shapes of those of the primal numbers.
struct Scratch {
  backward::Scratch primal;
  float *tq, *tdout = nullptr, *tq_rows, *tdout_rows = nullptr, *tdelta, *tlse;
  float *moves, *tds;                         // [block][panel]: tS and then tP; tdP, tdS and tdX
  float *tk, *tv;                             // one converted block
  float* tk_tiles;                            // a block of tK in column tiles
  float *tbias = nullptr, *capped = nullptr;  // [block + 3][panel]: tangents of the bias, and capped scores
  // [block][panel]: the first two derivatives of a score_mod, in whose memory (primal's duals) each number takes four.
  float *mod_slope = nullptr, *mod_curve = nullptr;
};

struct Kernels {
  const char* isa;
  std::int64_t target;  // Highway's bit
  flash::Geometry geometry;
  void (*stats)(const Call&, const backward::Task&, std::int64_t head);  // delta, tdelta and tdsinks of the task's rows
  void (*run)(const Call&, const backward::Task&, const Scratch&);
};
std::span<const Kernels> kernels();  // of every compiled instruction set, best first

std::span<const Implementation> implementations();  // a row for each of them

}  // namespace onepass::cpu::backward_jvp
