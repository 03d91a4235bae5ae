#include "tools/onepass/bench/device_inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "algebra/numerics.hpp"
#include "check/draw/cache.hpp"
#include "check/draw/random.hpp"
#include "check/draw/side.hpp"
#include "onepass/attention.hpp"
#include "plan/plan.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/roles.hpp"
#include "tools/onepass/bench/cell.hpp"

namespace onepass::bench {
namespace {

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

Tensors shaped(const Problem& p) {
  Tensors tensors;
  for_each_role(tensors, [&](const RoleRow& row, auto& tensor) {
    const ConstTensor as_described = described(p, row);
    tensor.rank = as_described.rank;
    tensor.shape = as_described.shape;
    tensor.stride = as_described.stride;
    tensor.dtype = as_described.dtype;
  });
  for (std::int64_t i = 0; i < p.partials; ++i) {
    tensors.outs.emplace_back(nullptr, p.dtype,
                              std::initializer_list<std::int64_t>{p.batch, p.heads_q, p.seq_q, p.dim_v});
    tensors.lses.emplace_back(nullptr, DType::f32, std::initializer_list<std::int64_t>{p.batch, p.heads_q, p.seq_q});
  }
  for (const ModBuffer& b : p.mod_buffers) {
    ConstTensor t;
    t.dtype = b.dtype;
    t.rank = b.rank;
    t.shape = b.shape;
    for (std::int64_t i = b.rank - 1, step = 1; i >= 0; step *= std::max<std::int64_t>(1, b.shape[i--]))
      t.stride[i] = step;
    tensors.mod_buffers.push_back({b.name, t});
  }
  return tensors;
}

std::size_t bytes_spanned(const ConstTensor& t) {
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

DeviceInputs::DeviceInputs(const Problem& p, const std::vector<Poison>& poisons) : tensors(shaped(p)) {
  const cuda::DeviceFacts& device = cuda::device_facts(p.device.index);
  const cuda::Driver& d = *cuda::driver();
  const auto place = [&](auto& t, const void* bytes) {
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
  const auto draw = [&](ConstTensor& t) {
    drawn.resize(bytes_spanned(t));
    if (t.given()) fill_random(drawn.data(), drawn.size(), t.dtype, ++seed);
    for (const Poison& one : poisons) {
      if (&t != &(tensors.*row_of(one.role).input) || t.elements() == 0) continue;
      ConstTensor on_host = t;
      on_host.data = drawn.data();
      poison(on_host, one.amount);
    }
    place(t, drawn.data());
  };
  const auto draw_slots = [&] {
    Tensors on_host;
    std::array<std::vector<std::byte>, 2> numbers;
    for (const auto& [member, bytes] :
         {std::pair{&Tensors::slot_mapping, &numbers[0]}, {&Tensors::positions, &numbers[1]}}) {
      bytes->resize(bytes_spanned(tensors.*member));
      (on_host.*member = tensors.*member).data = bytes->data();
    }
    check::draw_slots(p, on_host, kDeviceSeed);
    place(tensors.slot_mapping, numbers[0].data());
    place(tensors.positions, numbers[1].data());
  };
  std::vector<float> slopes;
  for (std::int64_t h = 0; h < p.heads_q; ++h)
    slopes.push_back(std::ldexp(1.0f, static_cast<int>(-1 - h % 8)));  // as the ALiBi paper has them for 8 heads
  const std::vector<std::int32_t> cu_q = prefix_sums(p.lengths_q), cu_k = prefix_sums(p.lengths_k),
                                  used = check::draw_lengths(p, kDeviceSeed),
                                  table = check::draw_page_table(p, used, kDeviceSeed),
                                  tree = check::draw_tree(p, kDeviceSeed);
  for (const RoleRow& row : kRoleTable) {
    switch (row.role) {
      case Role::alibi_slopes: place(tensors.alibi_slopes, slopes.data()); break;
      case Role::cu_seqlens_q: place(tensors.cu_seqlens_q, cu_q.data()); break;
      case Role::cu_seqlens_k: place(tensors.cu_seqlens_k, cu_k.data()); break;
      case Role::seqused_k: place(tensors.seqused_k, used.data()); break;
      case Role::cache_seqlens: place(tensors.cache_seqlens, used.data()); break;
      case Role::slot_mapping:
        if (p.slots) draw_slots();
        break;
      case Role::positions: break;
      case Role::page_table: place(tensors.page_table, table.data()); break;
      case Role::tree: place(tensors.tree, tree.data()); break;
      case Role::dropout_seed: place(tensors.dropout_seed, &kDeviceSeed); break;
      case Role::block_mask:
        drawn.resize(bytes_spanned(tensors.block_mask));
        if (tensors.block_mask.data = drawn.data(); p.block_mask)
          check::draw_block_mask(tensors.block_mask, kDeviceSeed);
        place(tensors.block_mask, drawn.data());
        break;
      case Role::v:
        if (!p.v_in_k)
          draw(tensors.v);
        else
          tensors.v.data = tensors.k.data, tensors.v.device = p.device;
        break;
      case Role::y:
        if (reads(row, p.op)) {
          ConstTensor y = tensors.y;
          draw(y);
          tensors.y.data = const_cast<void*>(y.data);
          tensors.y.device = y.device;
          break;
        }
        [[fallthrough]];
      default: row.output ? place(tensors.*row.output, nullptr) : draw(tensors.*row.input);
    }
  }
  for (NamedTensor& named : tensors.mod_buffers) draw(named.tensor);
  for (auto* parts : {&tensors.outs, &tensors.lses})
    for (ConstTensor& part : *parts) draw(part);

  attention = attention_of(p);
  problem = problem_of(p.op, tensors, attention);
  // Inputs of a backward. With an out and lse from another source, it would not be timed at its usual work.
  if (problem.op == kBackward) onepass::attention(tensors_of(kForward, tensors), attention);
  if (problem.op == kBackwardJvp) onepass::jvp(tensors_of(kJvp, tensors), attention);
}

}  // namespace onepass::bench
