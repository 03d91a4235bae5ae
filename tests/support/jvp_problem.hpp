// The forward mode of a forward problem, for tests that have a list of forward ones.
#pragma once
#include "problem/problem.hpp"

namespace onepass::test {

// along_side: bias and sinks have tangents. Tangents of q, k and v lie as these do.
inline Problem jvp_of(const Problem& forward, bool along_side = true, bool lse = true) {
  Problem p = forward;
  p.op = kJvp;
  p.want_row_max = p.entropy = p.batch_invariant = false;
  p.tbias = along_side && p.bias.has_value();
  p.tsinks = along_side && p.sinks;
  p.want_lse = p.want_tlse = lse;
  const Layout given = p.layout;
  set_contiguous(p);
  p.layout.q = p.layout.tq = given.q;
  p.layout.k = p.layout.tk = given.k;
  p.layout.v = p.layout.tv = given.v;
  p.layout.out = given.out;
  return p;
}

}  // namespace onepass::test
