// The facts about this machine that decide which kernels run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace onepass::cli {

struct Cache {
  int level = 0;
  std::string type;  // "data", "instruction", "unified"
  std::int64_t bytes = 0;
  int shared_by = 1;  // logical CPUs
};
struct Feature {
  std::string name;  // "AVX-512", "AMX bf16"
  bool present = false;
};

int usable_cpus();                // that this process may run on
std::vector<Feature> features();  // beyond Highway's targets
std::vector<Cache> caches();      // of the first CPU; empty where the system does not say

}  // namespace onepass::cli
