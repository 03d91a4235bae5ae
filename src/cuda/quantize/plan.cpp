// How cuda.quantize cuts a problem into CTAs and launches, and the programs that these need.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/quantize/quantize.hpp"
#include "problem/quantize/quantize_problem.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

// Rows of a CTA where they share nothing within a launch: many CTAs, each at another step, keep memory busier than few
// large ones.
constexpr int kFewRows = 32;
// Rows of a chunk of an amax pass. The CTAs of the last launch read the results of all chunks of their head.
constexpr std::int64_t kPieceRows = 512, kMaxPieces = 16;
constexpr int kRequantBlocks = 256;  // CTAs that look whether heads exceed their scales
static_assert(kQuantizeTileRows == kDescaleRows);

// True if rows begin at multiples of `bytes`.
bool rows_begin_at(const Problem& p, Role role, std::int64_t bytes, std::int64_t size) {
  const Dims& s = p.layout.*row_of(role).layout;
  return p.alignment[static_cast<std::size_t>(role)] >= bytes && (p.seq_k <= 1 || s[3] == 1) &&
         std::all_of(s.begin(), s.begin() + 3, [&](std::int64_t stride) { return stride * size % bytes == 0; });
}
bool in_vectors(const Problem& p) {
  return p.seq_k % kQuantizeRun == 0 && rows_begin_at(p, Role::x, 16, static_cast<std::int64_t>(size_of(p.dtype))) &&
         rows_begin_at(p, Role::y, 8, 1);
}
bool in_tiles(const Problem& p) {
  const bool dims = p.hadamard ? p.seq_k == 64 || p.seq_k == 128 || p.seq_k == 256 : p.seq_k % 32 == 0;
  return dims && p.dtype != DType::f32 && !p.centered && in_vectors(p) &&
         (!p.hadamard || rows_begin_at(p, Role::y, 16, 1));
}

// A CTA has several tiles as long as nearly all CTAs that run at once have some. It saves the estimate of each tile but
// the first, so nothing by block. By head, at least four tiles gain if rows are rotated, and none if not. 256 rotated
// columns gain nothing either (docs/notes/fp8.md); up to 64 were not tried by head.
bool may_be_several(const QuantizeConfig& c) {
  return c.tiles && !c.by_block && c.dim > 64 && c.dim <= 192 && (c.hadamard || c.shared);
}
int tiles_in_turn(const QuantizePlan& plan, int multiprocessors) {
  const QuantizeConfig& c = plan.config;
  if (!may_be_several(c)) return 1;
  const std::int64_t nearly_all = std::int64_t{multiprocessors} * c.blocks_at_once() * 9 / 10;
  int tiles = c.hadamard ? 8 : 4;
  while (tiles > 1 && std::int64_t{plan.heads} * ceil_div(plan.blocks, tiles) < nearly_all) tiles /= 2;
  return tiles < 4 && !c.shared ? 1 : tiles;
}

}  // namespace

std::vector<QuantizeConfigs> other_launches(const QuantizePlan& plan) {
  std::vector<QuantizeConfigs> all;
  if (may_be_several(plan.config)) {
    QuantizeConfig other = plan.steps()[0].config;
    other.several = !other.several;
    all.push_back({{other}, 1});
  }
  const QuantizeConfig& q = plan.config;
  if (!q.tiles || !q.hadamard || !q.by_block) return all;
  QuantizeConfig k = q;
  k.by_block = false, k.part = QuantizePart::estimate;
  QuantizeConfig v = k;
  v.hadamard = false;
  for (const bool several : {false, true}) {
    if (several && !may_be_several(k)) continue;
    k.several = several;
    all.push_back({{q, k, v}, 3});
  }
  k.part = v.part = QuantizePart::requantize, k.several = false;
  all.push_back({{k, v}, 2});
  return all;
}

std::vector<QuantizePlan::Step> QuantizePlan::steps() const {
  if (config.by_block && !config.centered) return {{config, heads * groups}};
  QuantizeConfig first = config, last = config;
  if (config.tiles) {
    first.part = QuantizePart::estimate, last.part = QuantizePart::requantize, last.several = false;
    return {{first, heads * groups}, {last, heads / sharing * requant_blocks}};
  }
  first.part = QuantizePart::amax;
  first.by_block = false;
  first.rows = config.centered ? static_cast<int>(kDescaleRows) : kFewRows;
  return {{first, heads * pieces}, {last, heads * blocks}};
}
std::size_t QuantizePlan::workspace_bytes() const {
  if (config.by_block && !config.centered) return 0;
  const auto of = [&](int each) { return static_cast<std::size_t>(heads) * static_cast<std::size_t>(each); };
  const std::size_t numbers =
      config.tiles ? of(groups + 1) : of(pieces) * static_cast<std::size_t>(config.centered ? config.dim + 1 : 1);
  return numbers * sizeof(float);
}

Selected<QuantizePlan> select_quantize(const Problem& p, int multiprocessors) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  if (p.batch * p.heads_q > kMax || p.seq_q > kMax || p.batch * p.heads_q * (p.seq_q / kFewRows + 1) > kMax)
    return refuse("seq_q (", p.seq_q, "), batch x heads (", p.batch * p.heads_q, ") and their blocks of ", kFewRows,
                  " rows must each be at most ", kMax);
  QuantizePlan plan{};
  plan.heads = static_cast<int>(p.batch * p.heads_q);
  const bool tiles = in_tiles(p);
  const int rows = tiles || p.descale.blocks || p.centered ? static_cast<int>(kDescaleRows) : kFewRows;
  // Factors and means of heads without rows are written too.
  plan.blocks =
      static_cast<int>(std::max<std::int64_t>(ceil_div(p.seq_q, rows), p.descale.blocks && !p.centered ? 0 : 1));
  const std::int64_t piece = std::max(kPieceRows, descale_blocks(ceil_div(p.seq_q, kMaxPieces)) * kDescaleRows);
  plan.piece_rows = static_cast<int>(piece);
  plan.pieces = static_cast<int>(std::max<std::int64_t>(1, ceil_div(p.seq_q, piece)));
  plan.config = {.input = scalar_type_of(p.dtype),
                 .dim = static_cast<int>(p.seq_k),
                 .hadamard = p.hadamard,
                 .centered = p.centered,
                 .by_block = p.descale.blocks,
                 .vectors = in_vectors(p),
                 .tiles = tiles,
                 .rows = rows,
                 .part = QuantizePart::write};
  plan.sharing =
      static_cast<int>(std::max<std::int64_t>(1, (p.descale.batch ? 1 : p.batch) * (p.descale.heads ? 1 : p.heads_q)));
  plan.config.shared = tiles && !p.descale.blocks && plan.sharing > 1;
  plan.tiles = tiles_in_turn(plan, multiprocessors);
  plan.groups = ceil_div(plan.blocks, plan.tiles);
  plan.config.several = plan.tiles > 1;
  const int units = std::max(1, plan.heads / plan.sharing);
  plan.requant_blocks = static_cast<int>(
      std::min<std::int64_t>(std::int64_t{plan.sharing} * plan.blocks, ceil_div(kRequantBlocks, units)));
  return plan;
}

KernelProgram quantize_program(const QuantizeConfig& c, const std::string& arch) {
  if (c.tiles) return quantize_program(QuantizeConfigs{{c}, 1}, arch);
  return {"cuda/quantize/rows.cuh", "quantize_rows",
          config_line("cuda/quantize/quantize_params.hpp", "onepass", "QuantizeConfig quantize_config", c), arch};
}
KernelProgram quantize_program(const QuantizeConfigs& configs, const std::string& arch) {
  std::string jobs;
  for (int i = 0; i < configs.count; ++i) jobs += (i > 0 ? ", " : "") + source_of(configs.job[i]);
  return {"cuda/quantize/quantize.cuh", "quantize_tiles",
          text("#include \"cuda/quantize/quantize_params.hpp\"\nnamespace onepass {\n",
               "constexpr QuantizeConfigs quantize_jobs = {{", jobs, "}, ", configs.count, "};\n}\n"),
          arch};
}

std::vector<KernelProgram> quantize_programs(const QuantizePlan& plan, const std::string& arch) {
  std::vector<KernelProgram> programs;
  for (const auto& [config, blocks] : plan.steps()) programs.push_back(quantize_program(config, arch));
  for (const QuantizeConfigs& configs : other_launches(plan)) programs.push_back(quantize_program(configs, arch));
  return programs;
}

std::vector<KernelProgram> quantize_programs(const std::array<Problem, 3>& problems, const std::string& arch) {
  std::vector<KernelProgram> programs;
  std::array<QuantizePlan, 3> plans;
  for (std::size_t i = 0; i < plans.size(); ++i) plans[i] = select_quantize(problems[i], 1).value();
  if (!std::ranges::all_of(plans, [](const QuantizePlan& plan) { return plan.config.tiles; })) {
    for (const QuantizePlan& plan : plans)
      std::ranges::move(quantize_programs(plan, arch), std::back_inserter(programs));
    return programs;
  }
  for (const bool several : {false, true}) {
    QuantizeConfigs first{}, second{};
    for (QuantizePlan& plan : plans) {
      plan.config.several = several && may_be_several(plan.config);
      const auto steps = plan.steps();
      first.job[first.count++] = steps[0].config;
      if (steps.size() > 1) second.job[second.count++] = steps[1].config;
    }
    if (several && std::ranges::none_of(plans, [](const QuantizePlan& plan) { return plan.config.several; })) break;
    programs.push_back(quantize_program(first, arch));
    if (!several && second.count > 0) programs.push_back(quantize_program(second, arch));
  }
  return programs;
}

QuantizeParams quantize_params(const Problem& p, const QuantizePlan& plan) {
  QuantizeParams q{};
  const Layout& l = p.layout;
  std::copy_n(l.x.begin(), 4, q.x_stride);
  std::copy_n(l.y.begin(), 4, q.y_stride);
  std::copy_n(l.descale.begin(), 3, q.descale_stride);
  std::copy_n(l.mean.begin(), 3, q.mean_stride);
  std::ranges::copy(rotation_signs(p.seed), q.sign);
  q.root = 1 / std::sqrt(static_cast<float>(rotated_together(p.seq_k)));
  q.heads = static_cast<int>(p.heads_q);
  q.rows = static_cast<int>(p.seq_q);
  q.blocks = plan.blocks;
  q.pieces = plan.pieces;
  q.piece_rows = plan.piece_rows;
  q.tiles = plan.tiles;
  q.groups = plan.groups;
  q.requant_blocks = plan.requant_blocks;
  q.group_batch = p.descale.batch ? 1 : static_cast<int>(std::max<std::int64_t>(1, p.batch));
  q.group_heads = p.descale.heads ? 1 : static_cast<int>(std::max<std::int64_t>(1, p.heads_q));
  return q;
}

void bind(QuantizeParams& q, const QuantizePlan& plan, const Tensors& t, void* workspace) {
  q.x = t.x.data;
  q.y = static_cast<unsigned char*>(t.y.data);
  q.descale = static_cast<float*>(t.descale.data);
  q.mean = static_cast<float*>(t.mean.data);
  q.amax = static_cast<float*>(workspace);
  q.sums = q.amax + static_cast<std::int64_t>(plan.heads) * (plan.config.tiles ? plan.groups : plan.pieces);
}

}  // namespace onepass::cuda
