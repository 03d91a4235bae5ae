#include "interfaces/c_convert.hpp"

#include "base/text.hpp"
#include "problem/attention/options.hpp"
#include "problem/roles.hpp"

#include <algorithm>
#include <cstring>

namespace onepass::interfaces {
namespace {

// The fields of `given` that the caller knows, over the defaults in `known`. A newer caller's fields must be at their
// default, which is 0.
template <class Struct>
void take_known_fields(const char* name, const Struct& given, Struct& known) {
  // A size of no struct would cut a pointer in two.
  if (given.size < sizeof given.size || given.size > 4096 || given.size % alignof(Struct) != 0) {
    throw Error(ErrorCode::bad_value,
                text(name, ".size must be as onepass_", name, "_init sets it (got ", given.size, ")"));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(&given);
  if (std::any_of(bytes + std::min(sizeof known, given.size), bytes + given.size,
                  [](unsigned char b) { return b != 0; })) {
    throw Error(ErrorCode::unsupported,
                text("onepass ", onepass_version(), " does not support all fields that are set in ", name));
  }
  std::memcpy(&known, &given, std::min(sizeof known, given.size));
}

Band band_from(const onepass_options& o) {
  const auto band = [&](bool causal, Align align) {
    if (align != Align::offset && o.align_offset != 0) {
      throw Error(ErrorCode::bad_value, text("options.align_offset must be 0 unless options.mask is "
                                             "ONEPASS_CAUSAL_OFFSET or ONEPASS_ALIGNED_OFFSET (got ",
                                             o.align_offset, " and mask ", o.mask, ")"));
    }
    return Band{causal, align, o.window_left, o.window_right, o.align_offset};
  };
  switch (o.mask) {
    case ONEPASS_NO_MASK: return band(false, Align::bottom_right);
    case ONEPASS_CAUSAL_BOTTOM_RIGHT: return band(true, Align::bottom_right);
    case ONEPASS_CAUSAL_TOP_LEFT: return band(true, Align::top_left);
    case ONEPASS_ALIGNED_TOP_LEFT: return band(false, Align::top_left);
    case ONEPASS_CAUSAL_OFFSET: return band(true, Align::offset);
    case ONEPASS_ALIGNED_OFFSET: return band(false, Align::offset);
    default: throw Error(ErrorCode::bad_value, text("options.mask must be a value of onepass_mask (got ", o.mask, ")"));
  }
}

}  // namespace

Tensor tensor_from(const char* name, const onepass_tensor* tensor) {
  const onepass_tensor& t = given(name, tensor);
  if (t.rank < 1 || t.rank > kMaxRank)
    throw Error(ErrorCode::bad_shape, text(name, " must have 1 to ", kMaxRank, " dimensions (got ", t.rank, ")"));
  if (t.dtype < ONEPASS_F32 || t.dtype > ONEPASS_I64)
    throw Error(ErrorCode::bad_dtype,
                text("the dtype of ", name, " must be a value of onepass_dtype (got ", t.dtype, ")"));
  if (t.device_kind != ONEPASS_CPU && t.device_kind != ONEPASS_CUDA) {
    throw Error(ErrorCode::bad_device,
                text("the device_kind of ", name, " must be ONEPASS_CPU or ONEPASS_CUDA (got ", t.device_kind, ")"));
  }
  Tensor view;
  view.data = t.data;
  view.rank = t.rank;
  view.dtype = static_cast<DType>(t.dtype);
  view.device = {static_cast<DeviceKind>(t.device_kind), t.device_index};
  std::copy_n(t.shape, t.rank, view.shape.begin());
  std::copy_n(t.stride, t.rank, view.stride.begin());
  return view;
}

Tensor optional_tensor_from(const char* name, const onepass_tensor* tensor) {
  return tensor ? tensor_from(name, tensor) : Tensor();
}

Call call_from(const onepass_tensor* q, const onepass_tensor* k, const onepass_tensor* v, const onepass_tensor* out,
               const onepass_options* options) {
  onepass_options o;
  onepass_options_init(&o, sizeof o);
  if (options) take_known_fields("options", *options, o);
  Call call;
  const Op op = attention_op(o.dout != nullptr, o.tout != nullptr);
  const auto given_as = [&](const RoleRow& row) -> const onepass_tensor* {
    switch (row.role) {
      case Role::q: return q;
      case Role::k: return k;
      case Role::v: return v;
      case Role::out: return out;
      default: return row.c ? o.*row.c : nullptr;
    }
  };
  for_each_role(call.tensors, [&](const RoleRow& row, auto& tensor) {
    // Most of some 60 roles are absent: written only where given, a small call takes 1.2 us less (of 5.3).
    const onepass_tensor* const from = given_as(row);
    if (from || must_be_given(row, op)) tensor = tensor_from(row.name, from);
  });
  if (o.mod_buffer_count > kMaxModBuffers)
    throw Error(ErrorCode::bad_value,
                text("options.mod_buffer_count must be at most ", kMaxModBuffers, " (got ", o.mod_buffer_count, ")"));
  for (std::size_t i = 0; i < o.mod_buffer_count; ++i) {
    const std::string called = text("mod_buffers[", i, "]");
    const char* name = (&given("options.mod_buffer_names", o.mod_buffer_names))[i];
    call.tensors.mod_buffers.push_back({&given((called + "'s name").c_str(), name),
                                        tensor_from(called.c_str(), &given("options.mod_buffers", o.mod_buffers) + i)});
  }
  for (const OptionRow& row : kAttentionOptions)
    if (row.from_c) row.from_c(o, call.attention);
  call.attention.band = band_from(o);
  if (o.implementation) call.implementation = o.implementation;
  call.launch = launch_on(o.executor, o.stream);
  return call;
}

Levels levels_from(const onepass_tensor* q, size_t count, const onepass_level* levels, const onepass_tensor* out) {
  Levels l;
  for (size_t i = 0; i < count; ++i) {
    const onepass_level& level = (&given("levels", levels))[i];
    l.calls.push_back(call_from(q, level.k, level.v, out, level.options));
  }
  for (Call& c : l.calls) {
    if (c.launch.executor || c.launch.stream)
      throw Error(ErrorCode::bad_value,
                  "a level's options must not have an executor or a stream; onepass_cascade has them");
    c.tensors.q = {}, c.tensors.out = {};
    l.all.push_back({c.tensors, c.attention, c.implementation});
  }
  return l;
}

AppendCall append_from(const onepass_append& append) {
  onepass_append a;
  onepass_append_init(&a, sizeof a);
  take_known_fields("append", append, a);
  const auto optional = [](const char* name, const onepass_tensor* t) { return optional_tensor_from(name, t); };
  return {{.k_new = tensor_from("k_new", a.k_new),
           .v_new = tensor_from("v_new", a.v_new),
           .k = tensor_from("k", a.k),
           .v = tensor_from("v", a.v),
           .cache_seqlens = optional("cache_seqlens", a.cache_seqlens ? a.cache_seqlens : a.seqused_k),
           .slot_mapping = optional("slot_mapping", a.slot_mapping),
           .positions = optional("positions", a.positions),
           .page_table = optional("page_table", a.page_table),
           .cu_seqlens_q = optional("cu_seqlens_q", a.cu_seqlens_q),
           .cos = optional("cos", a.cos),
           .sin = optional("sin", a.sin),
           .cos_sin_cache = optional("cos_sin_cache", a.cos_sin_cache),
           .k_descale = optional("k_descale", a.k_descale),
           .v_descale = optional("v_descale", a.v_descale),
           .q = optional("q", a.q),
           .q_out = optional("q_out", a.q_out)},
          a.interleaved != 0,
          launch_on(a.executor, a.stream)};
}

QuantizeCall quantize_from(const onepass_quantize& quantize) {
  onepass_quantize q;
  onepass_quantize_init(&q, sizeof q);
  take_known_fields("quantize", quantize, q);
  return {tensor_from("x", q.x),
          tensor_from("y", q.y),
          tensor_from("descale", q.descale),
          optional_tensor_from("mean", q.mean),
          {q.hadamard != 0, q.seed},
          launch_on(q.executor, q.stream)};
}

SoftmaxCall softmax_from(const onepass_softmax& softmax) {
  onepass_softmax s;
  onepass_softmax_init(&s, sizeof s);
  take_known_fields("softmax", softmax, s);
  return {optional_tensor_from("x", s.x),
          optional_tensor_from("y", s.y),
          optional_tensor_from("lse", s.lse),
          optional_tensor_from("row_lse", s.row_lse),
          optional_tensor_from("bool_mask", s.bool_mask),
          optional_tensor_from("dy", s.dy),
          optional_tensor_from("dx", s.dx),
          {s.scale, s.log != 0},
          launch_on(s.executor, s.stream)};
}

}  // namespace onepass::interfaces
