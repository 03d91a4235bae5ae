// The system's facts about the CPU.
#pragma once
#include <string>

namespace onepass {

// The value of the first "key : value" line of /proc/cpuinfo; empty if there is none.
std::string cpu_info(const std::string& key);
// "AMD EPYC 9654 96-Core Processor"; "unknown" where the system does not say.
std::string cpu_name();

}  // namespace onepass
