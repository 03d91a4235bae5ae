#include "cuda/merge/merge.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "cuda/host/kernel_state.hpp"
#include "cuda/host/pretended.hpp"

namespace onepass::cuda {
namespace {

// Strides of [.., rows] over [batch, head, row]: what is missing in front has size 1.
void rows_of(long long (&stride)[3], const ConstTensor& t, int row_dims) {
  for (int i = 0; i < 3; ++i) {
    const int at = row_dims - 3 + i;
    stride[i] = at >= 0 && t.shape[at] > 1 ? t.stride[at] : 0;
  }
}

// The widest piece, a power of two up to 16 bytes, that all rows of a tensor are made of whole.
int piece_bytes(const void* data, const long long (&stride)[3], DType dtype) {
  std::uint64_t all = reinterpret_cast<std::uintptr_t>(data) | 16;
  for (const long long s : stride) all |= static_cast<std::uint64_t>(s) * size_of(dtype);
  return 1 << std::countr_zero(all);
}

class State final : public KernelState {
 public:
  State(const Request& request, const DeviceFacts& device, const MergeConfig& config)
      : KernelState(request, device), config_(config), blocks_(merge_blocks(*problem, config)) {
    idle_ = blocks_ == 0;
    kernel_ = kernels_.add<merge_program>(config, 0);
  }

  std::string describe() const override {
    return text(problem->partials, " partial results, ", config_.rows(), " rows per CTA of ", kMergeThreads,
                " threads, each part read once, weights in fp32");
  }

 private:
  void launch(const Call& call) const override {
    MergeArguments arguments = merge_arguments(*problem, config_, call.tensors);
    call.launch(*kernel_, {blocks_, kMergeThreads}, arguments);
  }

  const MergeConfig config_;
  const std::int64_t blocks_;
  const PlannedKernel* kernel_;
};

Selected<MergeConfig> config_on(const DeviceFacts&, const Problem& p) {
  constexpr int kLargeParameters = 12010;  // of a driver
  auto config = select_merge(p);
  if (config && config->capacity > kSmallMerge && !pretended_device() && driver()->version < kLargeParameters)
    return refuse("more than ", kSmallMerge, " partial results require a CUDA 12.1 driver");
  return config;
}

}  // namespace

Selected<MergeConfig> select_merge(const Problem& p) {
  constexpr std::int64_t kMax = std::numeric_limits<int>::max();
  if (p.partials > kLargeMerge)
    return refuse("supports at most ", kLargeMerge, " partial results (got ", p.partials,
                  "); merge groups of them first, then their results");
  if (p.batch * p.heads_q * p.seq_q > kMax || p.dim_v > kMax / 2)
    return refuse("supports at most ", kMax, " rows of at most ", kMax / 2, " elements (got ",
                  p.batch * p.heads_q * p.seq_q, " rows of ", p.dim_v, ")");
  return MergeConfig{.dim = static_cast<int>(p.dim_v),
                     .input = scalar_type_of(p.dtype),
                     .output = scalar_type_of(p.out_dtype),
                     .capacity = p.partials <= kSmallMerge ? kSmallMerge : kLargeMerge};
}

KernelProgram merge_program(const MergeConfig& config, const std::string& arch) {
  return {"cuda/merge/merge.cuh", "merge_parts",
          config_line("cuda/merge/merge_params.hpp", "onepass", "MergeConfig merge_config", config), arch};
}

MergeArguments merge_arguments(const Problem& p, const MergeConfig& config, const Tensors& t) {
  MergeArguments a;
  a.out = t.out.data;
  a.lse = t.lse.given() ? static_cast<float*>(t.lse.data) : nullptr;
  rows_of(a.out_stride, t.out, t.out.rank - 1);
  rows_of(a.lse_stride, t.lse, t.lse.rank);
  a.rows = static_cast<unsigned>(p.batch * p.heads_q * p.seq_q);
  a.heads = static_cast<unsigned>(p.heads_q);
  a.seq = static_cast<unsigned>(p.seq_q);
  a.parts = static_cast<int>(p.partials);
  const int stored = std::min(16, config.at_once() * bytes_of(config.output));
  a.write_pieces = piece_bytes(t.out.data, a.out_stride, t.out.dtype) >= stored;
  a.alike = true;
  int pieces = 16;
  for (int i = 0; i < a.parts; ++i) {
    MergePart& part = a.part[i];
    const ConstTensor &out = t.outs[static_cast<std::size_t>(i)], &lse = t.lses[static_cast<std::size_t>(i)];
    part.out = out.data;
    part.lse = static_cast<const float*>(lse.data);
    rows_of(part.out_stride, out, out.rank - 1);
    rows_of(part.lse_stride, lse, lse.rank);
    part.type = scalar_type_of(out.dtype);
    a.alike = a.alike && std::ranges::equal(part.out_stride, a.part[0].out_stride) &&
              std::ranges::equal(part.lse_stride, a.part[0].lse_stride);
    pieces = std::min(pieces, part.type == config.input ? piece_bytes(out.data, part.out_stride, out.dtype) : 0);
  }
  a.read_bytes = pieces == 16 ? 16 : pieces >= 4 ? 4 : 0;
  return a;
}

std::int64_t merge_blocks(const Problem& p, const MergeConfig& config) {
  return ceil_div(p.batch * p.heads_q * p.seq_q, config.rows());
}

constinit const Implementation kMergeImplementation{"cuda.merge", plan_row<State, config_on>, kMerge};

}  // namespace onepass::cuda
