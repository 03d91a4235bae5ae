// The peers of another process on one problem, asked in turn with us.
#pragma once
#include <string>
#include <vector>

#include "tools/onepass/bench/cell.hpp"
#include "tools/onepass/bench/peer_process.hpp"

namespace onepass::bench {

class PeerTurns {
 public:
  // Makes the peer's inputs, outside the turns. `process` may be null: there is no number then, and a note.
  PeerTurns(const std::string& peer, const Problem& problem, PeerProcess* process);
  void collect(double seconds);
  bool runs() const { return result_.runs; }
  PeerResult result() const;  // with the median of what was collected

 private:
  nlohmann::json ask(double seconds) const;

  std::string line_;  // of the problem
  PeerProcess* process_;
  PeerResult result_;
  Sample sample_;
};

}  // namespace onepass::bench
