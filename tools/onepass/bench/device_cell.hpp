// A problem on a CUDA device beside its peers: the same turns as run_cell, every contender after the same pause,
// because a power-limited card gives the one that runs on a warm chip 10 to 20 % less.
#pragma once
#include "tools/onepass/bench/cell.hpp"

namespace onepass::bench {

// The best rates of the device, measured by the peer process; 0 where there is none.
struct Ceilings {
  std::string device;  // its name
  double matmul_flops_per_s = 0, copy_bytes_per_s = 0;
};
Ceilings measure_ceilings(Device device, const Effort& effort, PeerProcess& peers);

CellResult run_device_cell(const CellSpec& spec, const Effort& effort, const Ceilings& ceilings, PeerProcess* peers);
CellResult run_gemm_cell(const CellSpec& spec, const Effort& effort, const Ceilings& ceilings, PeerProcess* peers);

}  // namespace onepass::bench
