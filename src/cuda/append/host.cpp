#include "cuda/append/host.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"
#include "problem/append/append.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/roles.hpp"

namespace onepass::cuda {
namespace {

// Every row, and every eighth element of it, begins at a multiple of 16 bytes, of e4m3 of 8.
bool in_pieces(const Problem& p, Role role) {
  const RoleRow& row = row_of(role);
  if (!uses(p, row)) return true;
  const RoleShape shape = shape_of(p, row);
  const std::int64_t size = static_cast<std::int64_t>(size_of(shape.dtype)), bytes = size == 1 ? 8 : 16;
  const Dims& s = p.layout.*row.layout;
  return p.alignment[static_cast<std::size_t>(role)] >= bytes && shape.size[shape.rank - 1] % kAppendAtOnce == 0 &&
         std::all_of(s.begin(), s.begin() + 3, [&](std::int64_t stride) { return stride * size % bytes == 0; });
}

// cos or sin: as many of a row as go with kAppendAtOnce elements of data begin at a multiple of their bytes.
bool table_in_pieces(const Problem& p, Role role) {
  const std::int64_t pairs = p.interleaved ? kAppendAtOnce / 2 : kAppendAtOnce,
                     size = static_cast<std::int64_t>(size_of(p.table_dtype)),
                     piece = std::min<std::int64_t>(16, pairs * size);
  const Dims& s = p.layout.*row_of(role).layout;
  return p.rotary_dim / 2 % pairs == 0 && (p.rotary_dim <= 2 || s[1] == 1) && s[0] * size % piece == 0 &&
         p.alignment[static_cast<std::size_t>(role)] >= piece;
}

}  // namespace

KernelProgram append_program(const AppendConfig& config, const std::string& arch) {
  return {"cuda/append/append.cuh", "append_kv",
          config_line("cuda/append/append.hpp", "onepass", "AppendConfig append_config", config), arch};
}

std::vector<KernelProgram> append_programs(const Problem& p, const std::string& arch) {
  if ((!p.paged() && !p.seqused) || !is_data(p.dtype)) return {};
  const ScalarType data = scalar_type_of(p.dtype), cache = scalar_type_of(p.key_dtype());
  const bool pieces = p.dim_qk % kAppendAtOnce == 0 && p.dim_v % kAppendAtOnce == 0;
  std::vector<KernelProgram> programs;
  const auto add = [&](ScalarType table, bool interleaved) {
    const auto add_one = [&](bool packed, bool paged, bool slots) {
      const AppendConfig c = {data, cache, table, interleaved, packed, paged, slots, pieces ? kAppendAtOnce : 1};
      programs.push_back(append_program(c, arch));
    };
    add_one(p.varlen, p.paged(), false);
    if (p.paged()) add_one(false, false, true);
  };
  add(ScalarType::none, false);
  for (const bool interleaved : {false, true}) {
    add(ScalarType::f32, interleaved);
    if (data != ScalarType::f32) add(data, interleaved);
  }
  return programs;
}

Selected<AppendPlan> select_append(const Problem& p) {
  for (const auto& [what, count] :
       {std::pair{"new tokens", new_tokens(p)}, std::pair{"sequences", p.batch},
        std::pair{"keys per sequence", p.paged() ? 0 : p.seq_k}, std::pair{"slots", p.slots ? p.seq_k : 0},
        std::pair{"positions", p.slots ? p.positions : 0}, std::pair{"keys per page", p.page_size},
        std::pair{"pages", p.pages}}) {
    if (count > kMaxPosition) return refuse("supports at most ", kMaxPosition, " ", what, " (got ", count, ")");
  }
  const bool rotates = p.rotary_dim > 0;
  AppendPlan plan{};
  AppendConfig& c = plan.config;
  c.data = scalar_type_of(p.dtype);
  c.cache = scalar_type_of(p.key_dtype());
  c.table = rotates ? scalar_type_of(p.table_dtype) : ScalarType::none;
  c.interleaved = rotates && p.interleaved;
  c.slots = p.slots;
  c.packed = p.varlen;
  c.paged = p.paged() && !p.slots;
  bool pieces = !rotates || (table_in_pieces(p, Role::cos) && table_in_pieces(p, Role::sin));
  for (const Role role : {Role::k_new, Role::v_new, Role::k_cache, Role::v_cache, Role::q, Role::q_out})
    pieces = pieces && in_pieces(p, role);
  c.at_once = pieces ? kAppendAtOnce : 1;
  const std::int64_t rotated = rotates ? p.rotary_dim / 2 / c.pairs() : 0,
                     copied = (p.dim_qk - p.rotary_dim) / c.at_once, values = p.dim_v / c.at_once;
  std::int64_t rows = 0, items = 0;
  if (__builtin_add_overflow(p.heads_kv, p.heads_q, &rows) ||
      __builtin_mul_overflow(rows, rotated + copied + values, &items) || items > kMaxPosition)
    return refuse("supports at most ", kMaxPosition, " elements per token");
  plan.rotated = static_cast<int>(rotated), plan.copied = static_cast<int>(copied);
  plan.values = static_cast<int>(values);
  plan.items = static_cast<int>(p.heads_kv * (rotated + copied + values) + p.heads_q * (rotated + copied));
  plan.all_items = p.batch == 0 ? 0 : new_tokens(p) * plan.items;
  return plan;
}

AppendParams append_params(const Problem& p, const AppendPlan& plan, const Tensors& t) {
  AppendParams k{};
  const Layout& l = p.layout;
  const auto take = [](const Dims& from, auto& to) { std::copy_n(from.begin(), std::size(to), to); };
  k.k_new = t.k_new.data, k.v_new = t.v_new.data, k.q = t.q.data, k.cos = t.cos.data, k.sin = t.sin.data;
  k.k = t.k_cache.data, k.v = t.v_cache.data, k.q_out = t.q_out.data;
  take(l.k_new, k.k_new_stride), take(l.v_new, k.v_new_stride), take(l.q, k.q_stride), take(l.q_out, k.q_out_stride);
  take(l.k_cache, k.k_stride), take(l.v_cache, k.v_stride);
  take(l.cos, k.cos_stride), take(l.sin, k.sin_stride);
  k.k_descale = static_cast<const float*>(t.k_descale.data), k.v_descale = static_cast<const float*>(t.v_descale.data);
  take(l.k_descale, k.k_descale_stride), take(l.v_descale, k.v_descale_stride);
  k.seqused = static_cast<const int*>(t.cache_seqlens.data);
  k.seqused_stride = l.cache_seqlens[0];
  k.page_table = static_cast<const int*>(t.page_table.data);
  take(l.page_table, k.table_stride);
  k.cu = static_cast<const int*>(t.cu_seqlens_q.data);
  k.cu_stride = l.cu_seqlens_q[0];
  k.slots = t.slot_mapping.data, k.positions_of = t.positions.data;
  k.slot_stride = l.slot_mapping[0], k.position_stride = l.positions[0];
  k.wide_slots = p.slot_dtype == DType::i64, k.wide_positions = p.position_dtype == DType::i64;
  k.batch = static_cast<int>(p.batch);
  k.seq_new = p.varlen ? 0 : static_cast<int>(p.seq_q);
  k.heads_kv = static_cast<int>(p.heads_kv);
  k.rotary_dim = static_cast<int>(p.rotary_dim);
  k.page_size = static_cast<int>(p.page_size);
  k.pages = static_cast<int>(p.pages);
  k.capacity = p.seq_k;
  k.positions = p.positions;
  k.rotated = plan.rotated, k.copied = plan.copied, k.values = plan.values, k.items = plan.items;
  k.all_items = plan.all_items;
  return k;
}

namespace {

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const AppendPlan& plan)
      : KernelState(request, device), plan_(plan), kernel_(kernels_.add<append_program>(plan.config, 0)) {
    idle_ = plan.all_items == 0;
  }
  std::string describe() const override {
    return text(kAppendThreads, " threads per CTA, ",
                plan_.config.at_once == 1 ? "scalar loads" : "16-byte loads and stores");
  }

 private:
  void launch(const Call& call) const override {
    constexpr std::int64_t kMaxBlocks = 1 << 30;
    const std::int64_t blocks = ceil_div(plan_.all_items, kAppendThreads);
    AppendParams params = append_params(*problem, plan_, call.tensors);
    call.launch(*kernel_, {.blocks = std::min(blocks, kMaxBlocks), .threads = kAppendThreads}, params);
  }

  const AppendPlan plan_;
  const PlannedKernel* const kernel_;
};

}  // namespace

constinit const Implementation kAppendImplementation{"cuda.append", plan_row<State, select_append>, kAppend};

}  // namespace onepass::cuda
