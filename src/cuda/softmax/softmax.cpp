#include "cuda/softmax/softmax.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "algebra/online_softmax.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr std::int64_t kFewRows = 264;  // two for each multiprocessor of an H100
constexpr int kLongSlots = 4;           // of a row that is read twice: 64 KB at once

bool neighbours(const Problem& p, Role role) {
  const Dims& stride = p.layout.*row_of(role).layout;
  return shape_of(p, row_of(role)).rank == 0 || p.seq_k <= 1 || stride[3] == 1;
}

// The roles whose numbers a kernel reads or writes by slots.
constexpr std::array kSlotRoles = {Role::x, Role::y, Role::dy, Role::dx};

// Every row of the tensor is a number of whole slots, at multiples of 16 bytes or of a slot's.
bool whole_slots(const Problem& p, Role role, int numbers) {
  const RoleShape shape = shape_of(p, row_of(role));
  if (shape.rank == 0) return true;
  const auto size = static_cast<std::int64_t>(size_of(shape.dtype)), bytes = std::min<std::int64_t>(16, numbers * size);
  const Dims& stride = p.layout.*row_of(role).layout;
  return p.alignment[static_cast<std::size_t>(role)] >= bytes && p.seq_k % numbers == 0 &&
         std::all_of(stride.begin(), stride.begin() + 3, [&](std::int64_t s) { return s * size % bytes == 0; });
}

// The step from row to row where batch, heads and rows of a tensor are one dimension; nothing where they are not.
std::optional<std::int64_t> step_of_rows(const Problem& p, const Dims& stride) {
  const std::int64_t size[] = {p.batch, p.heads_q, p.seq_q};
  std::int64_t step = 0, rows = 1;
  for (const int i : {2, 1, 0}) {
    if (size[i] == 1) continue;
    if (rows == 1) step = stride[i];
    if (stride[i] != step * rows) return std::nullopt;
    rows *= size[i];
  }
  return step;
}
bool one_step_apart(const Problem& p) {
  return std::ranges::all_of(kRoleTable, [&](const RoleRow& row) {
    return shape_of(p, row).rank == 0 || step_of_rows(p, p.layout.*row.layout);
  });
}

// Threads that share a row and the slots of each: 32 bytes a thread where less than a warp would hold a row, 64 where
// there are enough of them (a multiprocessor then has 64 KB or more under way), 128 in long rows. Returns false if
// they do not hold a row.
bool cut(std::int64_t slots, int tensors, SoftmaxConfig& c) {
  const auto pick = [&](std::int64_t threads, int each) {
    c.threads = static_cast<int>(threads), c.slots = each;
    return true;
  };
  const auto warps = [&](int each) { return ceil_div(slots, 32 * each); };
  const int most = 4 / tensors, few = most / 2;
  if (slots <= 32 * most) {
    const int each = slots <= 32 * few ? few : most;
    const std::int64_t least = ceil_div(slots, each);
    const std::int64_t threads =
        std::max<std::int64_t>(4, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(least))));
    return pick(threads, static_cast<int>(ceil_div(slots, threads)));
  }
  for (const int each : {most, 2 * most}) {
    if (const std::int64_t n = warps(each); n <= 16) return pick(32 * n, each);
  }
  if (const std::int64_t n = warps(2 * most); n <= kMaxThreads / 32) return pick(32 * round_up(n, 4), 2 * most);
  return false;
}

// The strides of a tensor of a problem whose rows lie `flat`, or do not.
RowTensor row_tensor(const Dims& stride, const Problem& p, bool flat) {
  return {nullptr, {stride[0], stride[1], flat ? step_of_rows(p, stride).value_or(0) : stride[2], stride[3]}};
}

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const SoftmaxPlan& plan)
      : KernelState(request, device), plan_(plan), decided_(softmax_params(*problem, plan)) {
    workspace_bytes = plan.workspace_bytes();
    idle_ = plan.rows == 0;
    if (plan.two_launches()) add(states_config(plan));
    add(plan.config);
  }

  std::string describe() const override {
    const SoftmaxConfig& c = plan_.config;
    std::string line =
        text(c.threads, " threads per row, ", c.slots, " x 16 bytes each, ", c.kept ? "read once" : "read twice");
    if (plan_.pieces > 1) line += text(", in ", plan_.pieces, " chunks of ", plan_.piece, " elements, two launches");
    return line + (c.unit ? "" : ", scalar loads");
  }

 private:
  struct Step {
    const PlannedKernel* kernel;
    Grid grid;
  };
  void add(const SoftmaxConfig& config) {
    steps_.push_back({kernels_.add<softmax_program>(config, config.shared_bytes()),
                      {softmax_blocks(plan_, config), config.block()}});
  }
  void launch(const Call& call) const override {
    SoftmaxParams params = decided_;
    bind(params, plan_, call.tensors, call.workspace);
    for (const Step& step : steps_) call.launch(*step.kernel, step.grid, params);
  }

  const SoftmaxPlan plan_;
  const SoftmaxParams decided_;
  std::vector<Step> steps_;
};

}  // namespace

std::size_t SoftmaxPlan::workspace_bytes() const {
  return two_launches() ? static_cast<std::size_t>(rows * pieces) * sizeof(SoftmaxState) : 0;
}

Selected<SoftmaxPlan> select_softmax(const Problem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  SoftmaxPlan plan{};
  plan.rows = p.batch * p.heads_q * p.seq_q;
  if (p.seq_k > kMax / 2 || plan.rows > kMax)
    return refuse("supports at most ", kMax, " rows of at most ", kMax / 2, " elements (got ", plan.rows, " rows of ",
                  p.seq_k, ")");
  const bool backward = is_backward(p.op);
  const auto scale = static_cast<float>(p.effective_scale());
  SoftmaxConfig& c = plan.config;
  c.input = scalar_type_of(p.dtype);
  c.output = scalar_type_of(p.out_dtype);
  c.backward = backward;
  c.log = p.log;
  c.masked = p.bool_mask.has_value();
  c.scaled_first = !backward && !(scale >= std::numeric_limits<float>::min());
  c.row_lse = p.row_lse;
  c.write = !p.lse_only;
  c.part = SoftmaxPart::whole;
  c.unit = std::ranges::all_of(kSlotRoles, [&](Role r) { return neighbours(p, r); });
  c.even = c.unit && std::ranges::all_of(kSlotRoles, [&](Role r) { return whole_slots(p, r, c.numbers()); });
  c.flat = one_step_apart(p);
  const auto slots_of = [&](std::int64_t n) { return std::max<std::int64_t>(1, ceil_div(n, c.numbers())); };
  const int tensors = backward ? 2 : 1;

  plan.pieces = 1;
  plan.piece = static_cast<int>(std::max<std::int64_t>(1, p.seq_k));
  c.kept = cut(slots_of(p.seq_k), tensors, c);
  // Too few rows for a device: pieces of at least 16 KB each. By the shape alone, so that bits are the same everywhere.
  const std::int64_t least = 1024 * c.numbers();
  if (plan.rows > 0 && plan.rows < kFewRows && p.seq_k >= 4 * least) {
    const std::int64_t pieces = std::min(ceil_div(2 * kFewRows, plan.rows), p.seq_k / least);
    plan.piece = static_cast<int>(round_up(ceil_div(p.seq_k, pieces), 1024));
    plan.pieces = static_cast<int>(ceil_div(p.seq_k, plan.piece));
    c.part = SoftmaxPart::finish;
    c.kept = cut(slots_of(plan.piece), tensors, c);
  }
  c.full = c.even && c.kept && c.part == SoftmaxPart::whole && p.seq_k == c.threads * c.slots * c.numbers();
  if (!c.kept) c.threads = kMaxThreads, c.slots = kLongSlots / tensors;
  if (plan.rows * plan.pieces > kMax)
    return refuse("supports at most ", kMax, " chunks of rows (got ", plan.rows * plan.pieces, ")");
  return plan;
}

SoftmaxConfig states_config(const SoftmaxPlan& plan) {
  SoftmaxConfig c = plan.config;
  c.part = SoftmaxPart::states;
  c.write = false;
  return c;
}

KernelProgram softmax_program(const SoftmaxConfig& c, const std::string& arch) {
  return {c.backward ? "cuda/softmax/backward.cuh" : "cuda/softmax/softmax.cuh",
          c.backward ? "softmax_rows_backward" : "softmax_rows",
          config_line("cuda/softmax/softmax_params.hpp", "onepass", "SoftmaxConfig softmax_config", c), arch};
}

SoftmaxParams softmax_params(const Problem& p, const SoftmaxPlan& plan) {
  SoftmaxParams s{};
  const Layout& l = p.layout;
  const bool backward = is_backward(p.op);
  const auto tensor = [&](const Dims& stride) { return row_tensor(stride, p, plan.config.flat); };
  s.x = tensor(backward ? l.y : l.x);
  s.mask = tensor(l.bool_mask);
  s.row_lse = tensor(l.row_lse);
  s.dy = tensor(l.dy);
  s.result = tensor(backward ? l.dx : l.y);
  s.lse = tensor(l.lse);
  s.rows = static_cast<unsigned>(plan.rows);
  s.heads = static_cast<unsigned>(p.heads_q);
  s.seq = static_cast<unsigned>(p.seq_q);
  s.n = static_cast<int>(p.seq_k);
  s.pieces = plan.pieces;
  s.piece = plan.piece;
  const double scale = p.effective_scale();
  s.scale = s.first = static_cast<float>(scale);
  s.unit = plan.config.scaled_first ? 1.0f : s.scale;
  s.factor = static_cast<float>((plan.config.scaled_first ? 1.0 : scale) * kLog2e);
  return s;
}

void bind(SoftmaxParams& s, const SoftmaxPlan& plan, const Tensors& t, void* workspace) {
  const bool backward = plan.config.backward;
  s.x.data = backward ? t.y.data : t.x.data;
  s.mask.data = t.bool_mask.data;
  s.row_lse.data = t.row_lse.data;
  s.dy.data = t.dy.data;
  s.result.data = backward ? t.dx.data : t.y.data;
  s.lse.data = backward ? nullptr : t.lse.data;
  s.states = static_cast<SoftmaxState*>(workspace);
}

std::int64_t softmax_blocks(const SoftmaxPlan& plan, const SoftmaxConfig& c) {
  return ceil_div(plan.rows * plan.pieces, c.rows());
}

constinit const Implementation kSoftmaxImplementation{"cuda.softmax", plan_row<State, select_softmax>, kSoftmax},
    kSoftmaxBackwardImplementation{"cuda.softmax_backward", plan_row<State, select_softmax>, kSoftmaxBackward};

}  // namespace onepass::cuda
