#include "tools/onepass/bench/device_inputs.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "check/random.hpp"
#include "core/numerics.hpp"
#include "onepass/attention.hpp"

namespace onepass::bench {
namespace {

Tensor row_major(DType dtype, int rank, const Dims& shape) {
  Tensor t;
  t.dtype = dtype;
  t.rank = rank;
  for (std::int64_t i = rank - 1, step = 1; i >= 0; --i) {
    t.shape[i] = shape[i];
    t.stride[i] = step;
    step *= std::max<std::int64_t>(1, shape[i]);
  }
  return t;
}

std::vector<std::int32_t> prefix_sums(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int32_t> sums{0};
  for (const std::int64_t n : lengths) sums.push_back(static_cast<std::int32_t>(sums.back() + n));
  return sums;
}

}  // namespace

void fill_random(std::byte* to, std::size_t bytes, DType dtype, std::uint64_t seed) {
  check::Random random(seed, {});
  if (dtype == DType::i32) {  // ids of documents of 512 tokens
    for (std::size_t i = 0; i < bytes / 4; ++i)
      reinterpret_cast<std::int32_t*>(to)[i] = static_cast<std::int32_t>(i / 512);
    return;
  }
  if (dtype == DType::boolean) {
    for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(random.below(2));
    return;
  }
  with_float_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> normals(65536);
    for (T& x : normals) x = from_float<T>(random.normal());
    T* const all = reinterpret_cast<T*>(to);
    const std::size_t n = bytes / sizeof(T);
    for (std::size_t i = 0; i < n; i += 4) {
      const std::uint64_t bits = random.bits();
      for (std::size_t j = 0; j < std::min<std::size_t>(4, n - i); ++j)
        all[i + j] = normals[(bits >> (16 * j)) & 0xffffu];
    }
  });
}

Arguments shaped(const Problem& p) {
  const auto of_tokens = [&](DType dtype, std::int64_t heads, std::int64_t seq, std::int64_t total, std::int64_t dim,
                             const Dims& s) {
    return p.varlen ? Tensor(nullptr, dtype, {total, heads, dim}, {s[2], s[1], 1})
                    : Tensor(nullptr, dtype, {p.batch, heads, seq, dim}, {s[0], s[1], s[2], 1});
  };
  const auto spread = [&](DType dtype, const BroadcastDims& s) {
    return row_major(dtype, 4,
                     {s.batch ? p.batch : 1, s.heads ? p.heads_q : 1, s.rows ? p.seq_q : 1, s.keys ? p.seq_k : 1});
  };
  Arguments a;
  a.q = of_tokens(p.dtype, p.heads_q, p.seq_q, p.total_q, p.dim_qk, p.layout.q);
  a.k = of_tokens(p.dtype, p.heads_kv, p.seq_k, p.total_k, p.dim_qk, p.layout.k);
  a.v = of_tokens(p.dtype, p.heads_kv, p.seq_k, p.total_k, p.dim_v, p.layout.v);
  a.out = of_tokens(p.out_dtype, p.heads_q, p.seq_q, p.total_q, p.dim_v, p.layout.out);
  if (p.want_lse) {
    a.lse = p.varlen ? row_major(DType::f32, 2, {p.heads_q, p.total_q})
                     : row_major(DType::f32, 3, {p.batch, p.heads_q, p.seq_q});
  }
  if (p.bias) a.bias = spread(p.bias->dtype, p.bias->spans);
  if (p.bool_mask) a.bool_mask = spread(DType::boolean, *p.bool_mask);
  if (p.alibi) a.alibi_slopes = row_major(DType::f32, 1, {p.heads_q});
  if (p.sinks) a.sinks = row_major(DType::f32, 1, {p.heads_q});
  if (p.varlen) a.cu_seqlens_q = a.cu_seqlens_k = row_major(DType::i32, 1, {p.batch + 1});
  for (const ModBuffer& b : p.mod_buffers) a.mod_buffers.push_back({b.name, row_major(b.dtype, b.rank, b.shape)});
  return a;
}

std::size_t bytes_spanned(const Tensor& t) {
  if (!t.given() || t.elements() == 0) return 0;
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
  return static_cast<std::size_t>(last + 1) * size_of(t.dtype);
}

DeviceMemory::DeviceMemory(const cuda::DeviceFacts& device, std::size_t bytes) : device_(&device) {
  const cuda::ContextScope scope(device);
  cuda::check_cuda(cuda::driver()->mem_alloc(&at, bytes + 256), "cuMemAlloc");  // no tensor is without memory
}
DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept : at(std::exchange(other.at, 0)), device_(other.device_) {}
DeviceMemory::~DeviceMemory() {
  cuda::Context popped = nullptr;
  const cuda::Driver& d = *cuda::driver();
  if (at == 0 || d.push_context(device_->context) != 0) return;
  d.mem_free(at);
  d.pop_context(&popped);
}

DeviceInputs::DeviceInputs(const Problem& p) : tensors(shaped(p)) {
  const cuda::DeviceFacts& device = cuda::device_facts(p.device.index);
  const cuda::Driver& d = *cuda::driver();
  const auto place = [&](Tensor& t, const void* bytes) {
    if (!t.given()) return;
    const std::size_t n = bytes_spanned(t);
    t.device = p.device;
    t.data = reinterpret_cast<void*>(memory_.emplace_back(device, n).at);
    const cuda::ContextScope scope(device);
    if (bytes && n > 0) cuda::check_cuda(d.copy_to_device(memory_.back().at, bytes, n, nullptr), "cuMemcpyHtoDAsync");
    cuda::check_cuda(d.stream_synchronize(nullptr), "cuStreamSynchronize");  // `bytes` goes after this
  };
  std::uint64_t seed = 0;
  std::vector<std::byte> drawn;
  std::vector<Tensor*> random = {&tensors.q, &tensors.k, &tensors.v, &tensors.bias, &tensors.bool_mask, &tensors.sinks};
  for (NamedTensor& named : tensors.mod_buffers) random.push_back(&named.tensor);
  for (Tensor* t : random) {
    drawn.resize(bytes_spanned(*t));
    if (t->given()) fill_random(drawn.data(), drawn.size(), t->dtype, ++seed);
    place(*t, drawn.data());
  }
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < p.heads_q; ++h)
    slopes.push_back(std::ldexp(1.0f, static_cast<int>(-1 - h % 8)));  // as the ALiBi paper has them for 8 heads
  place(tensors.alibi_slopes, slopes.data());
  const std::vector<std::int32_t> cu_q = prefix_sums(p.lengths_q), cu_k = prefix_sums(p.lengths_k);
  place(tensors.cu_seqlens_q, cu_q.data());
  place(tensors.cu_seqlens_k, cu_k.data());
  place(tensors.out, nullptr);
  place(tensors.lse, nullptr);

  options.band = p.band;
  options.scale = p.scale;
  options.softcap = p.softcap;
  options.dropout_p = p.dropout_p;
  options.seed = p.seed;
  options.lse = tensors.lse;
  options.bias = tensors.bias;
  options.bool_mask = tensors.bool_mask;
  options.alibi_slopes = tensors.alibi_slopes;
  options.sinks = tensors.sinks;
  options.score_mod = p.score_mod;
  options.mask_mod = p.mask_mod;
  options.mod_buffers = tensors.mod_buffers;
  options.cu_seqlens_q = tensors.cu_seqlens_q;
  options.cu_seqlens_k = tensors.cu_seqlens_k;
  problem = make_problem(tensors.q, tensors.k, tensors.v, tensors.out, options);
}

}  // namespace onepass::bench
