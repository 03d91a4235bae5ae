#include "tools/onepass/bench/report.hpp"

#include <fmt/format.h>

#include "problem/roles.hpp"
#include "tools/onepass/bench/work.hpp"

namespace onepass::bench {
namespace {

bool on_device(const CellResult& r) { return r.spec.problem.device.kind == DeviceKind::cuda; }

std::string share(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : std::string("-");
}

// The words every line of a device table would repeat are left out.
std::string short_line(const CellSpec& spec) {
  std::string line = spec.line();
  for (const char* word : {"fwd ", " layout=bshd", " cuda:0"}) {
    if (const auto at = line.find(word); at != line.npos) line.erase(at, std::string_view(word).size());
  }
  return line.size() > 58 ? line.substr(0, 56) + ".." : line;
}

std::string peer_text(const PeerResult& peer, double ours) {
  return peer.median_s > 0 ? fmt::format("{:.3f} ms {:.2f}x", 1e3 * peer.median_s, peer.median_s / ours)
                           : peer.note.substr(0, 18);
}

}  // namespace

// A copy of a cell's bytes, without computing.
bool is_ceiling(const PeerResult& peer) { return peer.name == "read" || peer.name == "torch-copy"; }

const PeerResult* best_peer(const CellResult& r) {
  const PeerResult* best = nullptr;
  for (const PeerResult& peer : r.peers) {
    if (!is_ceiling(peer) && peer.median_s > 0 && (!best || peer.median_s < best->median_s)) best = &peer;
  }
  return best;
}

nlohmann::json to_json(const CellResult& r) {
  if (!r.refusal.empty()) return {{"problem", r.spec.line()}, {"refused", r.refusal}};
  nlohmann::json j = {{"problem", r.spec.line()}, {"implementation", r.implementation},
                      {"median_s", r.median_s},   {"best_s", r.best_s},
                      {"flops", r.flops},         {"kv_bytes", r.bytes}};
  if (!r.note.empty()) j["note"] = r.note;
  if (r.finite_s > 0) j["finite_s"] = r.finite_s;
  if (on_device(r)) {
    j["matmul_flops_per_s"] = r.peak_flops_per_s;
    j["copy_bytes_per_s"] = r.read_bytes_per_s;
    j["tflops"] = 1e-12 * r.flops / r.median_s;
    j["extra_bytes"] = r.extra_bytes;
  } else {
    j["threads"] = r.spec.threads;
    j["fma_peak_flops_per_s"] = r.peak_flops_per_s;
    j["read_bytes_per_s"] = r.read_bytes_per_s;
  }
  for (const PeerResult& peer : r.peers) {
    nlohmann::json& entry = j["peers"][peer.name];
    if (peer.median_s > 0) {
      entry = {{"median_s", peer.median_s}, {"times_ours", peer.median_s / r.median_s}};
      if (!peer.note.empty()) entry["note"] = peer.note;
      if (on_device(r)) entry["extra_bytes"] = peer.extra_bytes;
    } else {
      entry = {{"missing", peer.note}};
    }
  }
  if (const PeerResult* best = best_peer(r)) {
    j["best_peer"] = best->name;
    j["times_best_peer"] = best->median_s / r.median_s;
  }
  return j;
}

nlohmann::json to_json(const LaunchCost& c) {
  return {{"problem", c.problem},
          {"implementation", c.implementation},
          {"launch_host_s", c.bare_s},
          {"run_host_s", c.run_s},
          {"attention_host_s", c.attention_s}};
}

void Table::header(bool device) {
  if (device) {
    fmt::print("{:<58} {:<14} {:>10} {:>8} {:>9} {:>7}", "problem", "implementation", "median ms", "TFLOP/s",
               "of matmul", "of best");
  } else {
    fmt::print("{:>3} {:<58} {:<18} {:>10} {:>9} {:>7} {:>9} {:>7}", "thr", "problem", "implementation", "median ms",
               "GFLOP/s", "of FMA", "GB/s K+V", "of read");
  }
  for (const std::string& peer : peers_) fmt::print(" {:>18}", peer);
  fmt::print("\n");
}

void Table::cpu_row(const CellResult& r) const {
  const bool reads = r.read_bytes_per_s > 0;
  fmt::print("{:>3} {:<58} {:<18} {:>10.3f} {:>9.1f} {:>7} {:>9} {:>7}", r.spec.threads, r.spec.line(),
             r.implementation, 1e3 * r.median_s, 1e-9 * r.flops / r.median_s,
             share(r.flops / r.median_s, r.peak_flops_per_s),
             reads ? fmt::format("{:.1f}", 1e-9 * r.bytes / r.median_s) : "-",
             share(r.bytes / r.median_s, r.read_bytes_per_s));
}

void Table::device_row(const CellResult& r) const {
  const PeerResult* best = best_peer(r);
  const bool moves = work_of(r.spec.problem).moves;
  fmt::print(
      "{:<58} {:<14} {:>10.4f} {:>8} {:>9} {:>7}", short_line(r.spec), r.implementation, 1e3 * r.median_s,
      moves ? fmt::format("{:.2f}TB/s", 1e-12 * r.bytes / r.median_s)
            : fmt::format("{:.1f}", 1e-12 * r.flops / r.median_s),
      moves ? share(r.bytes / r.median_s, r.read_bytes_per_s) + " cp" : share(r.flops / r.median_s, r.peak_flops_per_s),
      best ? fmt::format("{:.2f}x", best->median_s / r.median_s) : "-");
}

void Table::row(const CellResult& r) {
  if (kind_ != static_cast<int>(on_device(r))) header(on_device(r));
  kind_ = static_cast<int>(on_device(r));
  if (!r.refusal.empty()) {
    notes_.insert("onepass: refused: " + r.refusal);
    return fmt::print("{:<58} refused\n", short_line(r.spec));
  }
  on_device(r) ? device_row(r) : cpu_row(r);
  for (const PeerResult& peer : r.peers) fmt::print(" {:>18}", peer_text(peer, r.median_s));
  if (r.finite_s > 0) fmt::print("  {:.2f}x of finite inputs", r.median_s / r.finite_s);
  fmt::print("\n");
  if (!r.note.empty()) notes_.insert(fmt::format("onepass: {} ({})", r.note, short_line(r.spec)));
  for (const PeerResult& peer : r.peers) {
    if (!peer.note.empty()) notes_.insert(fmt::format("{}: {} ({})", peer.name, peer.note, short_line(r.spec)));
  }
}

void Table::notes() const {
  for (const std::string& note : notes_) fmt::print("  {}\n", note);
}

void print(const Ceilings& c) {
  fmt::print("{}: bf16 matrix product of 8192 cubed {:.1f} TFLOP/s, copy {:.2f} TB/s read and written\n", c.device,
             1e-12 * c.matmul_flops_per_s, 1e-12 * c.copy_bytes_per_s);
}

void print(const LaunchCost& c) {
  fmt::print("host microseconds a call, {} on \"{}\":\n", c.implementation, c.problem);
  for (const auto& [name, seconds] : {std::pair{"launch of an empty kernel", c.bare_s},
                                      {"run(plan)", c.run_s},
                                      {"one call, workspace included", c.attention_s}}) {
    if (seconds > 0) fmt::print("  {:<32} {:>7.2f}  {:>+6.2f}\n", name, 1e6 * seconds, 1e6 * (seconds - c.bare_s));
  }
}

}  // namespace onepass::bench
