// Shared by the tests of sm80's tables and of decoding's: the devices that take mma.sync kernels, what their code
// holds, and problems of many pairs of head dims.
#pragma once
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "code_gate.hpp"
#include "problem/problem.hpp"

namespace onepass {

// Devices differ in instructions and in shared memory, so each has rows of the tables of its own.
struct Generation {
  const char* arch;
  int shared_bytes;
};
constexpr Generation kHopper{"sm_90", 232448}, kA100{"sm_80", 166912}, kAmpere{"sm_86", 101376}, kAda{"sm_89", 101376},
    kBlackwell{"sm_120", 101376};
struct Sm80Case {
  Generation device;
  const char* line;
};
inline std::ostream& operator<<(std::ostream& out, const Sm80Case& c) {
  return out << '"' << c.device.arch << ' ' << c.line << '"';
}

template <class Config>
cuda::CodeGate sm80_gate(const Problem& p, const Config& config) {
  cuda::CodeGate gate{config.threads(), {"HMMA", p.dtype == DType::f32 ? "LDS" : "LDSM"}};
  if (config.copy_bytes > 2) gate.instructions.push_back("LDGSTS");
  return gate;
}

// look(device, line) for every fifth head dim of q and of v, and some beyond 256, with features that tell rows of the
// tables apart.
inline void for_dims_and_devices(const std::string& op,
                                 const std::function<void(const Generation&, const std::string&)>& look) {
  const auto look_at = [&](const Generation& device, int qk, int v) {
    for (const char* feature : {"bf16", "bf16 alibi", "bf16 out=fp32", "fp32", "fp32 alibi"}) {
      if (std::string(feature).starts_with("fp32") && qk + v > 700 && device.shared_bytes < kA100.shared_bytes)
        continue;
      look(device, op + " b1 h1 s100 d" + std::to_string(qk) + "/" + std::to_string(v) + " cuda " + feature);
    }
  };
  for (const Generation& device : {kHopper, kA100, kAmpere}) {
    for (int qk = 1; qk <= 256; qk += 5) {
      for (int v = 1; v <= 256; v += 5) look_at(device, qk, v);
    }
    for (const int qk : {7, 257, 288, 320, 400, 512, 576}) {
      for (const int v : {9, 260, 300, 350, 512}) look_at(device, qk, v);
    }
  }
}

}  // namespace onepass
