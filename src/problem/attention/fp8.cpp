#include "problem/attention/fp8.hpp"

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "base/workspace.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/roles.hpp"

namespace onepass {
namespace {

constexpr std::int64_t kLine = 256;  // of a device's memory
constexpr std::int64_t kPitch = 16;  // between rows of e4m3: TMA's strides are multiples of 16 bytes

struct Part {
  Role x, descale;
  std::optional<DescaleSpec> Problem::* spans;
};
constexpr std::array<Part, 3> kParts{{{Role::q, Role::q_descale, &Problem::q_descale},
                                      {Role::k, Role::k_descale, &Problem::k_descale},
                                      {Role::v, Role::v_descale, &Problem::v_descale}}};

Dims layout_as(Role role, const Problem& p, const ConstTensor& t) {
  const RoleRow& row = row_of(role);
  return layout_of(row, forms_of(p).of(row), t);
}
// Row-major, without memory.
ConstTensor shaped(DType dtype, std::initializer_list<std::int64_t> shape) { return {nullptr, dtype, shape}; }
std::int64_t pitch_of(std::int64_t dim) { return round_up(dim, kPitch); }
DescaleSpec spanned(const ConstTensor& t) { return {t.shape[0] != 1, t.shape[1] != 1, t.shape[2] != 1}; }

// [total, heads, dim] as one batch entry [heads, total, dim].
ConstTensor as_rows(ConstTensor t) {
  if (t.rank == 3) t = t.permuted({1, 0, 2});
  widen(t, kMaxRank);
  return t;
}

// Adds the quantize of one of q, k and v, and what the attention sees of it.
void add(const Problem& p, std::size_t i, bool blocks, bool rotated, bool centered, Fp8Problems& all) {
  const Part& part = kParts[i];
  ConstTensor x = described(p, row_of(part.x));
  const std::int64_t dim = x.shape[x.rank - 1];
  ConstTensor y = x.rank == 3 ? shaped(DType::f8e4m3, {x.shape[0], x.shape[1], pitch_of(dim)})
                              : shaped(DType::f8e4m3, {x.shape[0], x.shape[1], x.shape[2], pitch_of(dim)});
  y.shape[y.rank - 1] = dim;
  Problem& attention = all.attention;
  attention.layout.*row_of(part.x).layout = layout_as(part.x, p, y);
  attention.alignment[static_cast<std::size_t>(part.x)] = 16;

  x = as_rows(x), y = as_rows(y);
  const std::int64_t batch = x.shape[0], heads = x.shape[1], rows = x.shape[2];
  const ConstTensor descale = shaped(DType::f32, {batch, heads, blocks && !p.varlen ? descale_blocks(rows) : 1}),
                    mean = shaped(DType::f32, {batch, heads, dim});
  Problem& q = all.quantizes[i];
  q.op = kQuantize;
  q.batch = batch, q.heads_q = heads, q.seq_q = rows, q.seq_k = dim;
  q.device = p.device;
  q.dtype = p.dtype;
  q.out_dtype = DType::f8e4m3;
  q.hadamard = rotated && p.fp8->hadamard;
  q.seed = q.hadamard ? p.fp8->seed : 0;
  q.centered = centered;
  q.descale = spanned(descale);
  q.alignment[static_cast<std::size_t>(Role::x)] = p.alignment[static_cast<std::size_t>(part.x)];
  q.layout.x = layout_as(Role::x, q, x);
  q.layout.y = layout_as(Role::y, q, y);
  q.layout.descale = layout_as(Role::descale, q, descale);
  if (centered) q.layout.mean = layout_as(Role::mean, q, mean);

  attention.layout.*row_of(part.descale).layout = layout_as(part.descale, p, descale);
  attention.*part.spans = spanned(descale);
  if (!centered) return;
  attention.v_mean = spanned(mean);
  attention.layout.v_mean = layout_as(Role::v_mean, p, mean);
}

// A problem's tensor without memory.
template <class Data>
void take_shape(BasicTensor<Data>& to, const Problem& p, Role role) {
  const ConstTensor from = described(p, row_of(role));
  to.rank = from.rank, to.shape = from.shape, to.stride = from.stride, to.dtype = from.dtype, to.device = from.device;
}

class State final : public PlanState {
 public:
  State(const Request& request, const Problem& attended, std::unique_ptr<const Fp8Quantizer> quantizer,
        std::shared_ptr<const PlanState> attention)
      : PlanState(request.problem), quantizer_(std::move(quantizer)), attention_(std::move(attention)) {
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      const Problem& q = *quantizer_->state(i).problem;
      take_shape(quantized_[i].x, q, Role::x);
      take_shape(quantized_[i].y, q, Role::y);
      take_shape(quantized_[i].descale, q, Role::descale);
      take_shape(quantized_[i].mean, q, Role::mean);
      for (const Role role : {kParts[i].x, kParts[i].descale})
        take_shape(attended_.*row_of(role).input, attended, role);
    }
    take_shape(attended_.v_mean, attended, Role::v_mean);
    Workspace count;
    (void)book(count);
    workspace_bytes = count.bytes();
  }
  std::string describe() const override {
    std::string line;
    for (std::size_t i = 0; i < kParts.size(); ++i)
      line += text(row_of(kParts[i].x).name, ": ", quantizer_->state(i).describe(), "; ");
    return line + "then " + attention_->describe();
  }
  void prepare() const override {
    quantizer_->prepare();
    attention_->prepare();
  }
  void run(const Tensors& t, void* memory, Executor& executor, void* stream) const override {
    Workspace w(memory);
    const Books books = book(w);
    std::array<QuantizeCall, 3> calls;
    Tensors attended = t;
    const auto read = [&](Role role, const void* data) {
      const auto input = row_of(role).input;
      attended.*input = attended_.*input;
      (attended.*input).data = data;
    };
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      const Memory& m = books.parts[i];
      calls[i] = {quantized_[i], m.workspace, used_rows(i == 0 ? t.cu_seqlens_q : t.cu_seqlens_k)};
      Tensors& q = calls[i].tensors;
      q.x.data = (t.*row_of(kParts[i].x).input).data;
      q.y.data = m.y, q.descale.data = m.descale, q.mean.data = m.mean;
      read(kParts[i].x, m.y);
      read(kParts[i].descale, m.descale);
    }
    if (problem->fp8->center) read(Role::v_mean, books.parts[2].mean);
    quantizer_->run(calls, executor, stream);
    attention_->run(attended, books.workspace, executor, stream);
  }

 private:
  struct Memory {
    std::byte *y, *descale, *mean, *workspace;
  };
  struct Books {
    Memory parts[kParts.size()];
    std::byte* workspace;  // the attention's
  };
  Books book(Workspace& w) const {
    const auto take = [&](std::int64_t bytes) { return w.take<std::byte>((bytes + kLine) / kLine * kLine); };
    Books b{};
    for (std::size_t i = 0; i < kParts.size(); ++i) {
      const PlanState& state = quantizer_->state(i);
      const Problem& q = *state.problem;
      const std::int64_t pairs = q.batch * q.heads_q, factors = q.descale.blocks ? descale_blocks(q.seq_q) : 1;
      b.parts[i] = {take(pairs * q.seq_q * pitch_of(q.seq_k)), take(pairs * factors * 4),
                    q.centered ? take(pairs * q.seq_k * 4) : nullptr,
                    take(static_cast<std::int64_t>(state.workspace_bytes))};
    }
    b.workspace = take(static_cast<std::int64_t>(attention_->workspace_bytes));
    return b;
  }

  // Tokens behind the last sequence enter neither scales nor means. Only a device can read its own prefix sums.
  static const std::int32_t* used_rows(const ConstTensor& cu) {
    if (!cu.given()) return nullptr;
    return static_cast<const std::int32_t*>(cu.data) + (cu.shape[0] - 1) * cu.stride[0];
  }

  const std::unique_ptr<const Fp8Quantizer> quantizer_;
  const std::shared_ptr<const PlanState> attention_;
  std::array<Tensors, kParts.size()> quantized_;  // without memory, as the inputs of the attention
  Tensors attended_;
};

}  // namespace

Fp8Problems fp8_problems(const Problem& p) {
  Fp8Problems all;
  all.attention = p;
  all.attention.fp8.reset();
  all.attention.dtype = DType::f8e4m3;
  add(p, 0, true, true, false, all);
  add(p, 1, p.fp8->by_block, true, false, all);
  add(p, 2, p.fp8->by_block, false, p.fp8->center, all);
  return all;
}

Decision quantized_first(const Request& request, const Implementation& attention, MakeQuantizer make) {
  const Fp8Problems problems = fp8_problems(*request.problem);
  Decision decision =
      decide(attention, {std::make_shared<const Problem>(problems.attention), request.mods, request.workers});
  if (!decision) return decision;
  std::array<Request, 3> requests;
  for (std::size_t i = 0; i < requests.size(); ++i)
    requests[i] = {std::make_shared<const Problem>(problems.quantizes[i]), request.mods, request.workers};
  MadeQuantizer quantizer = make(requests);
  if (!quantizer) return Decision::no(quantizer.refusal());
  return {{}, std::make_shared<State>(request, problems.attention, std::move(*quantizer), std::move(decision.state))};
}

}  // namespace onepass
