// The second derivatives of a forward problem, for tests that have a list of forward ones.
#pragma once
#include "support/backward_problem.hpp"

namespace onepass::test {

struct SecondParts {
  bool tdout = true, along_side = true;  // which of the inputs that may be left out have tangents
  bool dlse = true, f32 = false;
};

// Asks for the derivative of every gradient that the problem has. Tangents lie as the tensors that they belong to.
inline Problem second_of(const Problem& forward, const SecondParts& parts = {}) {
  Problem p = backward_of(forward, parts.f32, parts.dlse);
  const Layout given = p.layout;
  p.op = kBackwardJvp;
  p.batch_invariant = p.deterministic = p.entropy = p.dentropy = false;
  p.tbias = parts.along_side && p.bias.has_value();
  p.tsinks = parts.along_side && p.sinks;
  p.tdout = parts.tdout;
  p.tdlse = parts.dlse;
  set_contiguous(p);
  p.layout.q = p.layout.tq = given.q;
  p.layout.k = p.layout.tk = given.k;
  p.layout.v = p.layout.tv = given.v;
  p.layout.out = p.layout.dout = p.layout.tout = given.out;
  if (p.tdout) p.layout.tdout = given.out;
  p.layout.tdq = given.dq, p.layout.tdk = given.dk, p.layout.tdv = given.dv;
  return p;
}

}  // namespace onepass::test
