#include "cuda/append/host.hpp"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <tuple>

#include "base/text.hpp"
#include "cuda/attention/host.hpp"
#include "cuda/host/config_source.hpp"
#include "problem/callers_layout.hpp"
#include "problem/tensor_checks.hpp"

namespace onepass::cuda {
namespace {

// Every row, and every eighth element of it, begins at a multiple of 16 bytes, of e4m3 of 8.
bool in_pieces(const ConstTensor& t) {
  if (!t.given()) return true;
  const int bytes = t.dtype == DType::f8e4m3 ? 8 : 16;
  bool aligned = reinterpret_cast<std::uintptr_t>(t.data) % static_cast<unsigned>(bytes) == 0 &&
                 t.shape[t.rank - 1] % kAppendAtOnce == 0;
  for (int i = 0; i + 1 < t.rank; ++i)
    aligned = aligned && (t.shape[i] <= 1 || t.stride[i] * static_cast<std::int64_t>(size_of(t.dtype)) % bytes == 0);
  return aligned;
}

// cos or sin: as many of a row as go with kAppendAtOnce elements of data begin at a multiple of their bytes.
bool table_in_pieces(const ConstTensor& t, bool interleaved) {
  if (!t.given()) return true;
  const std::int64_t pairs = interleaved ? kAppendAtOnce / 2 : kAppendAtOnce,
                     size = static_cast<std::int64_t>(size_of(t.dtype)),
                     piece = std::min<std::int64_t>(16, pairs * size);
  return t.shape[1] % pairs == 0 && (t.shape[1] <= 1 || t.stride[1] == 1) &&
         (t.shape[0] <= 1 || t.stride[0] * size % piece == 0) &&
         reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(piece) == 0;
}

// batch (0 if packed), head, token; of pages: page, head, token of it.
void take_strides(long long (&to)[3], const ConstTensor& t, bool pages = false) {
  if (!t.given()) return;
  to[0] = t.rank == 4 ? t.stride[0] : 0;
  to[1] = t.stride[pages ? 2 : 1];
  to[2] = t.rank == 3 ? t.stride[0] : t.stride[pages ? 1 : 2];
}

}  // namespace

KernelProgram append_program(const AppendConfig& config, const std::string& arch) {
  return {"cuda/append/append.cuh", "append_kv",
          config_line("cuda/append/append.hpp", "onepass", "AppendConfig append_config", config), arch};
}

AppendPlan plan_append(const AppendProblem& p, const AppendTensors& t) {
  AppendPlan plan{};
  AppendConfig& c = plan.config;
  const bool rotates = p.rotary_dim > 0;
  c.data = scalar_type_of(p.dtype);
  c.cache = scalar_type_of(p.cache_dtype);
  c.table = rotates ? scalar_type_of(p.table_dtype) : ScalarType::none;
  c.interleaved = rotates && p.interleaved;
  c.packed = p.packed;
  c.paged = p.paged();
  bool pieces = !rotates || (table_in_pieces(t.cos, p.interleaved) && table_in_pieces(t.sin, p.interleaved));
  for (const ConstTensor& x : std::initializer_list<ConstTensor>{t.k_new, t.v_new, t.k, t.v, t.q, t.q_out})
    pieces = pieces && in_pieces(x);
  c.at_once = pieces ? kAppendAtOnce : 1;

  const std::int64_t rotated = rotates ? p.rotary_dim / 2 / c.pairs() : 0,
                     copied = (p.dim_qk - p.rotary_dim) / c.at_once, values = p.dim_v / c.at_once;
  for (const auto& [what, count] : {std::pair{"new tokens", p.tokens}, std::pair{"sequences", p.batch},
                                    std::pair{"keys per sequence", p.paged() ? 0 : p.capacity},
                                    std::pair{"keys per page", p.page_size}, std::pair{"pages", p.pages}})
    want(count <= kMaxPosition, ErrorCode::unsupported, "append_kv on CUDA supports at most ", kMaxPosition, " ", what,
         " (got ", count, ")");
  std::int64_t rows = 0, items = 0;
  want(!__builtin_add_overflow(p.heads_kv, p.heads_q, &rows) &&
           !__builtin_mul_overflow(rows, rotated + copied + values, &items) && items <= kMaxPosition,
       ErrorCode::unsupported, "append_kv on CUDA supports at most ", kMaxPosition,
       " elements per token (k_new has shape ", PassedShape{"k_new", t.k_new}, ")");
  AppendParams& k = plan.params;
  for (const auto& [from, to, stride] :
       {std::tuple{&t.k_descale, &k.k_descale, k.k_descale_stride}, {&t.v_descale, &k.v_descale, k.v_descale_stride}}) {
    *to = static_cast<const float*>(from->data);
    for (int i = 0; i < 3; ++i) stride[i] = i < from->rank && from->shape[i] > 1 ? from->stride[i] : 0;
  }
  k.k_new = t.k_new.data, k.v_new = t.v_new.data, k.q = t.q.data;
  k.k = t.k.data, k.v = t.v.data, k.q_out = t.q_out.data;
  take_strides(k.k_new_stride, t.k_new);
  take_strides(k.v_new_stride, t.v_new);
  take_strides(k.q_stride, t.q);
  take_strides(k.q_out_stride, t.q_out);
  take_strides(k.k_stride, t.k, p.paged());
  take_strides(k.v_stride, t.v, p.paged());
  k.cos = t.cos.data, k.sin = t.sin.data;
  for (int i = 0; i < 2; ++i) k.cos_stride[i] = t.cos.stride[i], k.sin_stride[i] = t.sin.stride[i];
  k.seqused = static_cast<const int*>(t.seqused_k.data);
  k.seqused_stride = t.seqused_k.stride[0];
  k.page_table = static_cast<const int*>(t.page_table.data);
  for (int i = 0; i < 2; ++i) k.table_stride[i] = t.page_table.stride[i];
  k.cu = static_cast<const int*>(t.cu_seqlens_q.data);
  k.cu_stride = t.cu_seqlens_q.stride[0];
  k.batch = static_cast<int>(p.batch);
  k.seq_new = static_cast<int>(p.seq_new);
  k.heads_kv = static_cast<int>(p.heads_kv);
  k.rotary_dim = static_cast<int>(p.rotary_dim);
  k.page_size = static_cast<int>(p.page_size);
  k.pages = static_cast<int>(p.pages);
  k.capacity = p.capacity;
  k.positions = p.positions;
  k.rotated = static_cast<int>(rotated);
  k.copied = static_cast<int>(copied);
  k.values = static_cast<int>(values);
  k.items = static_cast<int>(p.heads_kv * (rotated + copied + values) + p.heads_q * (rotated + copied));
  k.all_items = p.batch == 0 ? 0 : p.tokens * k.items;
  return plan;
}

void append_kv(const AppendProblem& p, const AppendTensors& t, Stream stream) {
  const DeviceFacts& device = device_facts(p.device.index);
  AppendPlan plan = plan_append(p, t);
  if (plan.params.all_items == 0) return;
  static KernelTable<AppendConfig> kernels;
  const Kernel& kernel = kernels.find(device.ordinal, plan.config, 0, stream,
                                      [&] { return append_program(plan.config, arch_of(device)); });
  constexpr long long kMaxBlocks = 1 << 30;
  const long long blocks = (plan.params.all_items + kAppendThreads - 1) / kAppendThreads;
  const ContextScope scope(device);
  void* arguments[] = {&plan.params};
  launch(kernel, static_cast<unsigned>(std::min(blocks, kMaxBlocks)), kAppendThreads, 0, stream, arguments);
}

}  // namespace onepass::cuda
