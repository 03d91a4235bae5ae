// Packed q over a cache. Each sequence is computed by the kernel that its own number of rows deserves: up to 16, up to
// 32 and up to 64 rows of a K/V head by cuda.decode with a config each, more by a prefill kernel. Only the device knows
// the numbers, so every kernel is launched and leaves out the others' sequences: one plan and one captured graph serve
// any mixture. README.md has the schedule and measurements.
#include "cuda/mixed/mixed.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/decode/decode.hpp"
#include "cuda/sm80/forward/forward.hpp"
#include "cuda/sm90/forward/forward.hpp"

namespace onepass::cuda {
namespace {

constexpr int kRows[] = {16, 32, decode::kMaxRows};  // of a K/V head
constexpr std::size_t kAlignment = 64;               // of a workspace

struct Launched {
  std::shared_ptr<const KernelState> state;
  const char* implementation;
  Part part;
  std::size_t place;  // of its workspace
};

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, std::vector<Launched> parts)
      : KernelState(request, device), parts_(std::move(parts)) {
    for (Launched& p : parts_) {
      p.place = workspace_bytes;
      workspace_bytes += round_up(p.state->workspace_bytes, kAlignment);
      kernels_.add(p.state->kernels());
    }
  }
  std::string describe() const override {
    std::string all;
    for (const Launched& p : parts_) {
      const std::string rows = p.part.most_rows != 0 ? text(p.part.least_rows, " to ", p.part.most_rows)
                                                     : text(p.part.least_rows, " or more");
      all += text(all.empty() ? "" : "; ", "sequences of ", rows, " queries: ", p.implementation, ", ",
                  p.state->describe());
    }
    return all;
  }

 private:
  // The kernels of drafts are first: without a draft they end at once, while every multiprocessor is free. The one of
  // the fewest rows is next, and the prefill kernel computes beside it.
  void launch(const Call& call) const override {
    for (std::size_t i = parts_.size() - 1; i-- > 0;) start(parts_[i], call);
    start(parts_.back(), call);
  }
  static void start(const Launched& p, const Call& call) {
    p.state->start({call.tensors, static_cast<std::byte*>(call.workspace) + p.place, call.stream, call.device});
  }

  std::vector<Launched> parts_;
};

Launched part_of(Decision decision, const char* implementation, const Part& part) {
  return {std::static_pointer_cast<const KernelState>(std::move(decision.state)), implementation, part, 0};
}

// Why the problem is not one for several kernels, or "".
std::string why_not_mixed(const Problem& p) {
  const std::int64_t most = decode::kMaxRows / std::max<std::int64_t>(1, p.group());
  return !p.varlen || !(p.seqused || p.paged())
             ? "requires packed q over a cache (cu_seqlens_q with seqused_k or page_table)"
         : most == 0 ? text("query heads per K/V head must be at most ", decode::kMaxRows, " (got ", p.group(), ")")
         : p.seq_q <= most ? text("the longest sequence must have more than ", most, " rows (got ", p.seq_q, ")")
                           : "";
}

// The problem as each of its decoding kernels sees it: with the most queries that one of their sequences has.
std::vector<Problem> decoded_parts(const Problem& p) {
  std::vector<Problem> parts;
  for (const int rows : kRows) {
    const std::int64_t most = rows / std::max<std::int64_t>(1, p.group());
    if (most <= (parts.empty() ? 0 : parts.back().seq_q)) continue;
    parts.push_back(p);
    parts.back().seq_q = most;
  }
  return parts;
}

Decision plan(const Request& request) {
  const auto device = device_of(*request.problem);
  if (!device) return Decision::no(device.refusal());
  if (std::string why = why_not_mixed(*request.problem); !why.empty()) return Decision::no(std::move(why));
  const std::vector<Problem> few = decoded_parts(*request.problem);

  // On Hopper the prefill kernel computes beside the kernels that read the cache, on multiprocessors that they leave.
  Part rest{.least_rows = static_cast<int>(few.back().seq_q) + 1, .concurrent = true, .early = true};
  const bool fp8 = request.problem->key_dtype() == DType::f8e4m3, fp8_q = request.problem->dtype == DType::f8e4m3;
  if (fp8_q && sm90::plan_forward(request, {}))
    return Decision::no("with fp8_e4m3 q, cuda.sm90 computes all sequences");
  const auto decoding = fp8 ? decode::plan_fp8 : decode::plan;
  const char* const decoding_name = fp8 ? "cuda.decode_fp8" : "cuda.decode";
  const char* name = "cuda.sm90";
  Decision prefill;
  if (!fp8_q && !request.problem->batch_invariant) prefill = sm90::plan_forward(request, rest);
  if (!prefill) {
    rest.concurrent = rest.early = false;
    const bool by_sm80 = !fp8 && !request.problem->batch_invariant;  // else the same kernel for all rows
    name = by_sm80 ? "cuda.sm80" : decoding_name;
    prefill = by_sm80 ? sm80::plan_forward(request, rest) : decoding(request, rest);
    if (!prefill) return Decision::no(text(name, ": ", prefill.refusal));
  }
  std::vector<Launched> parts;
  Part part{.least_rows = 1, .concurrent = rest.concurrent};
  for (const Problem& p : few) {
    part.most_rows = static_cast<int>(p.seq_q);
    part.early = part.concurrent && p.seq_q != few.back().seq_q;  // the kernel of the most rows is launched first
    Request own = request;
    own.problem = std::make_shared<const Problem>(p);
    Decision decode = decoding(own, part);
    if (!decode) return Decision::no(text(decoding_name, ": ", decode.refusal));
    parts.push_back(part_of(std::move(decode), decoding_name, part));
    part.least_rows = part.most_rows + 1;
  }
  parts.push_back(part_of(std::move(prefill), name, rest));
  return {{}, std::make_shared<State>(request, **device, std::move(parts))};
}

}  // namespace

constinit const Implementation kMixedImplementation{.name = "cuda.mixed", .plan = plan};

}  // namespace onepass::cuda
