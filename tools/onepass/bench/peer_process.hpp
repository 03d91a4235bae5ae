// A peer library behind a pipe: `python3 -m bench peers`, or any program that answers the same lines.
#pragma once
#include <sys/types.h>

#include <cstdio>
#include <string>

#include <nlohmann/json.hpp>

namespace onepass::bench {

class PeerProcess {
 public:
  explicit PeerProcess(const std::string& command);  // run by /bin/sh; throws Error if it cannot be started
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // One line out, one JSON object back; {"missing": why} if the process died or answered something else.
  nlohmann::json ask(const std::string& line);

 private:
  pid_t pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
};

}  // namespace onepass::bench
