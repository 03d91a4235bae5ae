// Attention on numbers that are quantized for it: three quantizes and an attention.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/text.hpp"
#include "base/workspace.hpp"
#include "cuda/quantize/quantize.hpp"
#include "onepass/quantize.hpp"
#include "plan/no_work.hpp"
#include "plan/scratch.hpp"
#include "problem/attention/arguments.hpp"
#include "problem/callers_layout.hpp"
#include "problem/implementation.hpp"
#include "problem/roles.hpp"
#include "problem/tensor_checks.hpp"

namespace onepass::inline v0 {
namespace {

// One of q, k and v as [batch, heads, seq, dim], in fp8_e4m3 and with its factors.
struct Quantized {
  ConstTensor x;                       // packed: of one batch entry
  const std::int32_t* used = nullptr;  // packed, on a device: how many rows belong to a sequence
  Tensor y, descale, mean;
  ConstTensor seen;  // y as attention takes it
  QuantizeOptions options;
};

constexpr std::size_t kLine = 256;   // of a device's memory
constexpr std::int64_t kPitch = 16;  // between rows of e4m3: TMA's strides are multiples of 16 bytes
std::size_t whole(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// The same code books the memory and, without any, counts it.
Tensor book(Workspace& w, DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  Tensor t(nullptr, dtype, shape, device);
  const auto bytes = static_cast<std::size_t>(t.elements()) * size_of(dtype);
  t.data = w.take<std::byte>(static_cast<std::int64_t>(whole(bytes + 1)));
  return t;
}

class Fp8Call {
 public:
  Fp8Call(const Tensors& t, const Fp8Options& o) : t_(t), o_(o), packed_(t.cu_seqlens_q.given()) {
    for (const RoleRow& row : kRoleTable) {
      const bool cache = row.role == Role::seqused_k || row.role == Role::page_table;
      const bool fp8 = row.types == Types::f32 && row.fit == Fit::trailing_optional;
      want(!tensor_of(t, row).given() || !(cache || fp8), ErrorCode::bad_value, "attention_fp8 does not support ",
           row.name, cache ? "" : "; it computes the scales and means");
    }
    for (const auto& [name, x] : {std::pair{"q", &t.q}, {"k", &t.k}, {"v", &t.v}}) {
      want(x->rank == (packed_ ? 3 : 4), ErrorCode::bad_shape, name, " must have shape ",
           packed_              ? "[total, heads, dim]"
           : is_turned(name, 4) ? "[batch, seq, heads, dim]"
                                : "[batch, heads, seq, dim]",
           " (got ", PassedShape{name, *x}, ")");
      want(is_data(x->dtype), ErrorCode::bad_dtype, name, " must be fp32, fp16 or bf16 (got ", name_of(x->dtype), ")");
    }
    want(!t.dout.given(), ErrorCode::bad_value, "attention_fp8 does not support gradients (got dout)");
    want(t.out.dtype == t.q.dtype || t.out.dtype == DType::f32, ErrorCode::bad_dtype, "out must be ",
         name_of(t.q.dtype), ", as q", or_fp32(t.q.dtype), " (got ", name_of(t.out.dtype), ")");
  }
  std::size_t place(void* memory) {
    Workspace w(memory);
    const auto book_part = [&](Quantized& part, const ConstTensor& x, const ConstTensor& cu, bool blocks, bool rotated,
                               bool centered) {
      part.options = {rotated && o_.hadamard, rotated && o_.hadamard ? o_.seed : 0};
      const ConstTensor rows = packed_ ? x.permuted({1, 0, 2}) : x;
      part.x = rows;
      const std::int64_t heads = rows.shape[rows.rank - 3], seq = rows.shape[rows.rank - 2],
                         dim = rows.shape[rows.rank - 1], batch = packed_ ? 1 : rows.shape[0];
      const std::int64_t factors = blocks && !packed_ ? descale_blocks(seq) : 1;
      const std::int64_t pitch = (dim + kPitch - 1) / kPitch * kPitch;
      Tensor y = packed_ ? book(w, DType::f8e4m3, {seq, heads, pitch}, x.device)
                         : book(w, DType::f8e4m3, {batch, heads, seq, pitch}, x.device);
      y.shape[y.rank - 1] = dim;
      part.seen = y, part.y = packed_ ? y.permuted({1, 0, 2}) : y;
      part.descale = book(w, DType::f32, {batch, heads, factors}, x.device);
      if (centered) part.mean = book(w, DType::f32, {batch, heads, dim}, x.device);
      if (packed_) leave_out_the_rest(part, cu);
    };
    book_part(q_, t_.q, t_.cu_seqlens_q, true, true, false);
    book_part(k_, t_.k, t_.cu_seqlens_k, o_.by_block, true, false);
    book_part(v_, t_.v, t_.cu_seqlens_k, o_.by_block, false, o_.center);
    return w.bytes();
  }
  const std::array<const Quantized*, 3> parts() const { return {&q_, &k_, &v_}; }
  Tensors tensors() const {
    Tensors all = t_;
    all.q = q_.seen, all.k = k_.seen, all.v = v_.seen;
    all.q_descale = q_.descale, all.k_descale = k_.descale, all.v_descale = v_.descale, all.v_mean = v_.mean;
    return all;
  }

 private:
  // Tokens behind the last sequence enter neither scales nor means. Only a device can read its own prefix sums. What is
  // wrong with a cu_seqlens is said when the attention's problem is made.
  static void leave_out_the_rest(Quantized& part, const ConstTensor& cu) {
    part.used = nullptr;
    if (cu.rank != 1 || cu.shape[0] < 1 || cu.dtype != DType::i32 || !cu.data || cu.device != part.x.device) return;
    const std::int32_t* const used = static_cast<const std::int32_t*>(cu.data) + (cu.shape[0] - 1) * cu.stride[0];
    if (cu.device.kind != DeviceKind::cpu) return void(part.used = used);
    part.x.shape[1] = part.y.shape[1] = std::clamp<std::int64_t>(*used, 0, part.x.shape[1]);
  }

  const Tensors& t_;
  const Fp8Options& o_;
  const bool packed_;
  Quantized q_, k_, v_;
};

// Their plans: three quantizes and the attention, with memory that each needs for itself.
class Steps {
 public:
  Steps(const Fp8Call& call, const Attention& a, std::string_view implementation, const Executor* executor)
      : attention_(make_plan(make_problem(a, call.tensors()), implementation, executor)) {
    for (const Quantized* x : call.parts()) quantizes_.push_back(make_plan(problem_of(*x), {}, executor));
  }
  static Problem problem_of(const Quantized& x) { return make_problem(tensors_of(x), x.options); }
  bool need_no_kernel(const Tensors& t) const { return plan::ran_without_kernel(attention_.problem(), t); }
  std::size_t bytes() const {
    std::size_t all = whole(attention_.workspace_bytes());
    for (const Plan& plan : quantizes_) all += whole(plan.workspace_bytes());
    return all;
  }
  void run(const Fp8Call& call, std::byte* memory, const Launch& launch) const {
    std::vector<Tensors> tensors;
    std::vector<cuda::QuantizeCall> calls;
    tensors.reserve(quantizes_.size());
    Launch own{.stream = launch.stream, .executor = launch.executor};
    const auto take = [&](const Plan& plan) {
      const std::span<std::byte> part(memory, plan.workspace_bytes());
      memory += whole(part.size());
      return part;
    };
    for (std::size_t i = 0; i < quantizes_.size(); ++i) {
      tensors.push_back(tensors_of(*call.parts()[i]));
      calls.push_back({*quantizes_[i].state(), tensors[i], take(quantizes_[i]).data(), call.parts()[i]->used});
    }
    if (!cuda::quantize_all(calls, static_cast<cuda::Stream>(launch.stream))) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        own.workspace = {static_cast<std::byte*>(calls[i].workspace), quantizes_[i].workspace_bytes()};
        onepass::run(quantizes_[i], tensors[i], own);
      }
    }
    own.workspace = take(attention_);
    onepass::run(attention_, call.tensors(), own);
  }

 private:
  static Tensors tensors_of(const Quantized& x) {
    Tensors t;
    t.x = x.x, t.y = x.y, t.descale = x.descale, t.mean = x.mean;
    return t;
  }
  const Plan attention_;
  std::vector<Plan> quantizes_;
};

}  // namespace

void attention_fp8(const Tensors& t, const Attention& a, const Fp8Options& options, const Launch& launch,
                   std::string_view implementation) {
  Fp8Call call(t, options);
  const std::size_t bytes = whole(call.place(nullptr));
  alignas(kLine) std::byte nowhere[kLine];  // nothing is read or written: tensors have an address
  (void)call.place(nowhere);
  // Errors come before anything is written.
  const Steps steps(call, a, implementation, launch.executor);
  check_apart(Op::forward, t);
  if (steps.need_no_kernel(t)) return;
  const Scratch memory(t.q.device, bytes + steps.bytes(), launch.stream);
  (void)call.place(memory.data());
  steps.run(call, static_cast<std::byte*>(memory.data()) + bytes, launch);
}

std::string explain_fp8(const Tensors& t, const Attention& a, const Fp8Options& options) {
  Fp8Call call(t, options);
  alignas(kLine) std::byte nowhere[kLine];
  call.place(nowhere);
  std::string lines;
  for (const Quantized* x : call.parts()) lines += explain(Steps::problem_of(*x));
  return lines + explain(make_problem(a, call.tensors()));
}

}  // namespace onepass::inline v0
