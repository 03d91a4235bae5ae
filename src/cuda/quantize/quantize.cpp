#include "cuda/quantize/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/attention/fp8.hpp"
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
  while (tiles > 1 && std::int64_t{plan.heads} * ((plan.blocks + tiles - 1) / tiles) < nearly_all) tiles /= 2;
  return tiles < 4 && !c.shared ? 1 : tiles;
}

constexpr auto kPrintRows = [](const QuantizeConfig& c, const std::string& arch) { return quantize_program(c, arch); };
constexpr auto kPrintTiles = [](const QuantizeConfigs& c, const std::string& arch) {
  return quantize_program(c, arch);
};

const Kernel& load(const DeviceFacts& device, const QuantizeConfigs& configs, Stream stream) {
  static KernelTable<QuantizeConfigs> kernels;
  return kernels.find(device.ordinal, configs, configs.shared_bytes(), stream,
                      [&] { return quantize_program(configs, arch_of(device)); });
}

// Launches of quantize.cuh besides a plan's own: of its kernel with the other number of tiles of a CTA, which a device
// with another number of multiprocessors takes, and if the plan can be Q's of attention_fp8, of q, k and v together.
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

// A launch of quantize.cuh.
struct TileLaunch {
  QuantizeConfigs configs{};
  QuantizeJobs jobs{};

  void add(const QuantizeConfig& config, const QuantizeParams& params, int blocks) {
    configs.job[configs.count] = config, jobs.job[configs.count] = params, jobs.blocks[configs.count++] = blocks;
  }
  void start(const DeviceFacts& device, Stream stream) {
    int blocks = 0;
    for (const int of_job : jobs.blocks) blocks += of_job;
    if (blocks == 0) return;
    void* arguments[] = {&jobs};
    launch(load(device, configs, stream), static_cast<unsigned>(blocks), kQuantizeTileThreads, configs.shared_bytes(),
           stream, arguments, configs.follows());
  }
};

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const QuantizePlan& plan)
      : KernelState(request, device), plan_(plan), steps_(plan.steps()), decided_(quantize_params(*problem, plan)) {
    workspace_bytes = plan.workspace_bytes();
    idle_ = plan.heads == 0 || plan.blocks == 0;
    for (const auto& [config, blocks] : steps_) {
      const QuantizeConfigs tiles{{config}, 1};
      launched_.push_back(config.tiles ? kernels_.add(tiles, tiles.shared_bytes(), kPrintTiles)
                                       : kernels_.add(config, config.shared_bytes(), kPrintRows));
    }
    for (const QuantizeConfigs& configs : other_launches(plan)) kernels_.add_elsewhere(configs, kPrintTiles);
  }
  std::string describe() const override {
    const QuantizePart first = steps_[0].config.part;
    std::string line = text(plan_.config.rows * plan_.tiles, " rows per CTA");
    if (first == QuantizePart::write)
      line += ", read once";
    else if (first == QuantizePart::estimate)
      line += ", read once with estimated scales; heads that overflow are requantized";
    else
      line += text(", read twice, first in ", plan_.pieces, plan_.pieces == 1 ? " chunk per head" : " chunks per head");
    return line + (plan_.config.vectors ? "" : ", scalar loads");
  }
  QuantizeParams params(const QuantizeCall& call) const {
    QuantizeParams params = decided_;
    bind(params, plan_, call.tensors, call.workspace);
    params.used = call.used;
    return params;
  }
  void start(const QuantizeCall& call, Stream stream) const {
    if (idle_) return;
    kernels_.load(device_, stream);
    const ContextScope scope(device_);
    launch(params(call), {call.tensors, call.workspace, stream, device_});
  }
  const DeviceFacts& device() const { return device_; }
  const QuantizePlan& plan() const { return plan_; }

 private:
  void launch(const Call& call) const override { launch(params({call.tensors, call.workspace}), call); }
  void launch(QuantizeParams params, const Call& call) const {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      const auto& [config, blocks] = steps_[i];
      if (config.tiles) {
        QuantizeJobs jobs{{params}, {blocks}};
        call.launch(*launched_[i], {blocks, kQuantizeTileThreads, QuantizeConfigs{{config}, 1}.follows()}, jobs);
      } else {
        call.launch(*launched_[i], {blocks, config.threads()}, params);
      }
    }
  }

  const QuantizePlan plan_;
  const std::vector<QuantizePlan::Step> steps_;
  const QuantizeParams decided_;
  std::vector<const PlannedKernel*> launched_;  // of the steps
};

std::unique_ptr<State> state_of(const Request& request, std::string& why) {
  QuantizePlan plan;
  const DeviceFacts* const device = device_of(*request.problem, why);
  if (!device || !select_quantize(*request.problem, device->multiprocessors, plan, why)) return nullptr;
  return std::make_unique<State>(request, *device, plan);
}

// Quantizes q, k and v in two launches if all have kernels of quantize.cuh, else one after the other.
class Quantizer final : public Fp8Quantizer {
 public:
  explicit Quantizer(std::array<std::unique_ptr<const State>, 3> states)
      : states_(std::move(states)),
        together_(std::ranges::all_of(states_, [](const auto& state) { return state->plan().config.tiles; })) {}
  const PlanState& state(std::size_t i) const override { return *states_[i]; }
  void prepare() const override {
    if (!together_) {
      for (const auto& state : states_) state->prepare();
      return;
    }
    for (const TileLaunch& launch : launches([](std::size_t) { return QuantizeParams{}; }))
      if (launch.configs.count > 0) load(states_[0]->device(), launch.configs, nullptr);
  }
  void run(const std::array<QuantizeCall, 3>& calls, Executor&, void* stream) const override {
    if (!together_) {
      for (std::size_t i = 0; i < calls.size(); ++i) states_[i]->start(calls[i], static_cast<Stream>(stream));
      return;
    }
    const ContextScope scope(states_[0]->device());
    std::array<TileLaunch, 2> both = launches([&](std::size_t i) { return states_[i]->params(calls[i]); });
    for (TileLaunch& launch : both) launch.start(states_[0]->device(), static_cast<Stream>(stream));
  }

 private:
  template <class Params>
  std::array<TileLaunch, 2> launches(Params params) const {
    std::array<TileLaunch, 2> all;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const auto steps = states_[i]->plan().steps();
      for (std::size_t step = 0; step < steps.size(); ++step)
        all[step].add(steps[step].config, params(i), steps[step].blocks);
    }
    return all;
  }

  const std::array<std::unique_ptr<const State>, 3> states_;
  const bool together_;
};

}  // namespace

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

bool select_quantize(const Problem& p, int multiprocessors, QuantizePlan& plan, std::string& why) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max() / 2;
  if (p.batch * p.heads_q > kMax || p.seq_q > kMax || p.batch * p.heads_q * (p.seq_q / kFewRows + 1) > kMax) {
    why = text("seq_q (", p.seq_q, "), batch x heads (", p.batch * p.heads_q, ") and their blocks of ", kFewRows,
               " rows must each be at most ", kMax);
    return false;
  }
  plan.heads = static_cast<int>(p.batch * p.heads_q);
  const bool tiles = in_tiles(p);
  const int rows = tiles || p.descale.blocks || p.centered ? static_cast<int>(kDescaleRows) : kFewRows;
  // Factors and means of heads without rows are written too.
  plan.blocks =
      static_cast<int>(std::max<std::int64_t>((p.seq_q + rows - 1) / rows, p.descale.blocks && !p.centered ? 0 : 1));
  const std::int64_t piece =
      std::max(kPieceRows, descale_blocks((p.seq_q + kMaxPieces - 1) / kMaxPieces) * kDescaleRows);
  plan.piece_rows = static_cast<int>(piece);
  plan.pieces = static_cast<int>(std::max<std::int64_t>(1, (p.seq_q + piece - 1) / piece));
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
  plan.groups = (plan.blocks + plan.tiles - 1) / plan.tiles;
  plan.config.several = plan.tiles > 1;
  const int units = std::max(1, plan.heads / plan.sharing);
  plan.requant_blocks = static_cast<int>(
      std::min<std::int64_t>(std::int64_t{plan.sharing} * plan.blocks, (kRequantBlocks + units - 1) / units));
  return true;
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
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (std::string why; !select_quantize(problems[i], 1, plans[i], why)) throw Error(ErrorCode::unsupported, why);
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

Decision quantized_first(const Request& request, const Implementation& attention) {
  return onepass::quantized_first(request, attention, [](const std::array<Request, 3>& requests, std::string& why) {
    std::array<std::unique_ptr<const State>, 3> states;
    for (std::size_t i = 0; i < states.size(); ++i) {
      states[i] = state_of(requests[i], why);
      if (!states[i]) return std::unique_ptr<const Fp8Quantizer>();
    }
    return std::unique_ptr<const Fp8Quantizer>(std::make_unique<const Quantizer>(std::move(states)));
  });
}

const Implementation& quantize_implementation() {
  static const Implementation row{"cuda.quantize",
                                  [](const Request& request) {
                                    std::string why;
                                    std::unique_ptr<State> state = state_of(request, why);
                                    return state ? Decision{{}, std::move(state)} : Decision::no(why);
                                  },
                                  kQuantize};
  return row;
}

}  // namespace onepass::cuda
