// Packed q over a cache. Each sequence is computed by the kernel that its own number of rows deserves: few rows by
// cpu.decode, more by the tiles of cpu.amx or cpu.flash. One plan serves every mixture. The kernels compute one after
// the other, each on all threads, and share a workspace. With batch_invariant a row's bits do not depend on this choice
// (common/one_result.hpp; cpu.amx.one_result computes both parts itself).
#include "cpu/mixed/mixed.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/text.hpp"
#include "cpu/common/queries.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/flash/flash.hpp"
#if defined(__x86_64__)
#include "cpu/amx/amx.hpp"
#endif

namespace onepass::cpu {
namespace {

class State final : public PlanState {
 public:
  State(std::shared_ptr<const Problem> p, std::shared_ptr<PlanState> few, std::shared_ptr<PlanState> rest,
        std::int64_t most)
      : PlanState(std::move(p)), few_(std::move(few)), rest_(std::move(rest)), most_(most) {
    workspace_bytes = std::max(few_->workspace_bytes, rest_->workspace_bytes);
  }
  std::string describe() const override {
    return text("sequences of up to ", most_, most_ == 1 ? " query: " : " queries: ", few_->implementation, ", ",
                few_->describe(), "; more: ", rest_->implementation, ", ", rest_->describe());
  }
  void run(const Tensors& tensors, void* workspace, Executor& executor, void* stream) const override {
    few_->run(tensors, workspace, executor, stream);
    rest_->run(tensors, workspace, executor, stream);
  }

 private:
  const std::shared_ptr<PlanState> few_, rest_;
  const std::int64_t most_;
};

// The first of the rows that takes a problem and may leave out sequences.
Decision first_of(std::initializer_list<std::span<const Implementation>> families, const Request& request,
                  const OfQueries& queries) {
  for (const std::span<const Implementation> family : families) {
    for (const Implementation& row : family) {
      Decision d = decide(row, request);
      auto* const part = dynamic_cast<OfQueries*>(d.state.get());
      if (!part) continue;
      *part = queries;
      return d;
    }
  }
  return Decision::no("no CPU kernel supports both parts of the call");
}

Decision plan(const Request& request) {
  const Problem& p = *request.problem;
  if (p.device.kind != DeviceKind::cpu) return Decision::no("it computes on the CPU only");
  if (!p.varlen || !(p.seqused || p.paged()))
    return Decision::no("requires packed q over a cache (cu_seqlens_q with seqused_k or page_table)");
  const std::int64_t most = kDecodeMaxRows / std::max<std::int64_t>(1, p.group());
  if (most == 0)
    return Decision::no(text("query heads per K/V head must be at most ", kDecodeMaxRows, " (got ", p.group(), ")"));
  if (p.seq_q <= most)
    return Decision::no(text("the longest sequence must have more than ", most, " rows (got ", p.seq_q, ")"));
  Problem few = p;
  few.seq_q = most;
  std::replace_if(few.lengths_q.begin(), few.lengths_q.end(), [&](std::int64_t n) { return n > most; }, 0);
  Request own = request;
  own.problem = std::make_shared<const Problem>(std::move(few));
  const OfQueries up_to{0, most}, above{most + 1};
  std::span<const Implementation> one_result, tiles;
#if defined(__x86_64__)
  one_result = amx::one_result_implementations(), tiles = amx::implementations();
#endif
  Decision few_rows = first_of({one_result, decode_implementations()}, own, up_to);
  Decision rest = first_of({one_result, tiles, flash::implementations()}, request, above);
  if (!few_rows || !rest) return few_rows ? rest : few_rows;
  return {{}, std::make_shared<State>(request.problem, std::move(few_rows.state), std::move(rest.state), most)};
}

}  // namespace

constinit const Implementation kMixedImplementation{.name = "cpu.mixed", .plan = plan};

}  // namespace onepass::cpu
