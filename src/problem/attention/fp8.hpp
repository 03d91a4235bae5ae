// FP8 attention: q, k and v are quantized to fp8_e4m3 in the workspace, and an attention reads them there. Its plan has
// the states of three quantizes and of that attention.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "problem/implementation.hpp"
#include "problem/selected.hpp"

namespace onepass {

// Three quantizes and the attention on what they write, by the problem alone.
struct Fp8Problems {
  std::array<Problem, 3> quantizes;  // of q, k and v; packed tokens are one batch entry, [1, heads, tokens, dim]
  Problem attention;
};
Fp8Problems fp8_problems(const Problem& problem);

struct QuantizeCall {
  Tensors tensors;
  void* workspace = nullptr;
  const std::int32_t* used = nullptr;  // where the tensors are: how many rows of each head count; nullptr: all
};

// The three quantizes of a backend.
class Fp8Quantizer {
 public:
  Fp8Quantizer() = default;
  Fp8Quantizer(const Fp8Quantizer&) = delete;
  Fp8Quantizer& operator=(const Fp8Quantizer&) = delete;
  virtual ~Fp8Quantizer() = default;
  virtual const PlanState& state(std::size_t i) const = 0;  // of q, k and v
  virtual void prepare() const {}
  virtual void run(const std::array<QuantizeCall, 3>& calls, Executor& executor, void* stream) const = 0;
};
using MadeQuantizer = Selected<std::unique_ptr<const Fp8Quantizer>>;
using MakeQuantizer = MadeQuantizer (*)(const std::array<Request, 3>& requests);

// The decision of `attention` on what such a quantizer writes.
Decision quantized_first(const Request& request, const Implementation& attention, MakeQuantizer make);

}  // namespace onepass
