#include "tools/onepass/command.hpp"
#include "base/text.hpp"

#include <charconv>

#include <fmt/format.h>
#include <unistd.h>

#include "onepass/error.hpp"
#include "problem/roles.hpp"

namespace onepass::cli {

std::string line_of(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

Problem problem_from(const std::vector<std::string>& words) { return parse_problem(line_of(words)); }

Device device_from(const std::string& name) {
  if (name == "cpu") return {};
  if (name == "cuda") return {DeviceKind::cuda, 0};
  int index = 0;
  if (name.starts_with("cuda:")) {
    const char* const end = name.data() + name.size();
    const auto [at, error] = std::from_chars(name.data() + 5, end, index);
    if (error == std::errc{} && at == end && index >= 0) return {DeviceKind::cuda, index};
  }
  throw Error(ErrorCode::bad_value, text("--device must be cpu, cuda or cuda:N (got '", name, "')"));
}

void check_fits(const Problem& p, double bytes_per_output) {
  const auto product = [](auto... n) { return (1.0 * ... * static_cast<double>(n)); };
  const double queries = p.varlen ? product(p.total_q) : product(p.batch, p.seq_q);
  const double keys = p.packed_k() ? product(p.total_k)
                      : p.paged()  ? product(p.pages, p.page_size)
                                   : product(p.batch, p.seq_k);
  const auto spread = [&](const BroadcastDims& s) {
    return product(s.batch ? p.batch : 1, s.heads ? p.heads_q : 1, s.rows ? p.seq_q : 1, s.keys ? p.seq_k : 1);
  };
  double bytes = product(queries, p.heads_q, p.dim_qk, size_of(p.dtype)) +
                 product(keys, p.heads_kv, p.dim_qk + p.dim_v, size_of(p.key_dtype())) +
                 product(queries, p.heads_q, p.dim_v + 1, static_cast<double>(size_of(p.out_dtype)) + bytes_per_output);
  if (p.bias) bytes += product(spread(p.bias->spans), size_of(p.bias->dtype));
  if (p.bool_mask) bytes += spread(*p.bool_mask);
  if (p.block_mask) bytes += 4 * static_cast<double>(described(p, row_of(Role::block_mask)).elements());
  const double memory = product(sysconf(_SC_PHYS_PAGES), sysconf(_SC_PAGESIZE));
  if (bytes > memory) {
    throw Error(ErrorCode::out_of_memory, fmt::format("\"{}\" needs {:.3g} GB of memory; this machine has {:.3g}",
                                                      to_string(p), bytes / 1e9, memory / 1e9));
  }
}

void print_json(const nlohmann::ordered_json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace onepass::cli
