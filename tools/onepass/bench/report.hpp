// Results of the benchmark as a table for people and as JSON for plots and records.
#pragma once
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/onepass/bench/device_cell.hpp"
#include "tools/onepass/bench/launch_cost.hpp"

namespace onepass::bench {

// The fastest peer of a cell, or nullptr if none was timed.
const PeerResult* best_peer(const CellResult& result);

nlohmann::json to_json(const CellResult& result);
nlohmann::json to_json(const LaunchCost& cost);

// Prints a header whenever the kind of device changes, a line per cell, and at the end what peers had to say.
class Table {
 public:
  explicit Table(std::vector<std::string> peers) : peers_(std::move(peers)) {}
  void row(const CellResult& result);
  void notes() const;

 private:
  void header(bool on_device);
  void cpu_row(const CellResult& result) const;
  void device_row(const CellResult& result) const;
  std::vector<std::string> peers_;
  std::set<std::string> notes_;
  int kind_ = -1;  // of the last row: 0 CPU, 1 CUDA
};
void print(const LaunchCost& cost);
void print(const Ceilings& ceilings);

}  // namespace onepass::bench
