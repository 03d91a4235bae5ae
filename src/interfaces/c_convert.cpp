#include "interfaces/c_convert.hpp"

#include <algorithm>
#include <cstring>

namespace onepass::interfaces {
namespace {

// The fields the caller knows, over the defaults. A newer caller's fields must be at their default, which is 0.
onepass_options known_fields(const onepass_options& options) {
  onepass_options known;
  onepass_options_init(&known, sizeof known);
  if (options.size < sizeof options.size || options.size > 4096) {
    throw Error(ErrorCode::bad_value, text("options.size is ", options.size, "; onepass_options_init sets it"));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(&options);
  if (std::any_of(bytes + std::min(sizeof known, options.size), bytes + options.size,
                  [](unsigned char b) { return b != 0; })) {
    throw Error(ErrorCode::unsupported,
                text("options has fields set that onepass ", onepass_version(), " does not know"));
  }
  std::memcpy(&known, &options, std::min(sizeof known, options.size));
  return known;
}

Band band_from(const onepass_options& o) {
  const auto band = [&](bool causal, Align align) {
    if (align != Align::offset && o.align_offset != 0) {
      throw Error(ErrorCode::bad_value, text("options.align_offset is ", o.align_offset, " but options.mask is ",
                                             o.mask, "; ONEPASS_CAUSAL_OFFSET and ONEPASS_ALIGNED_OFFSET read it"));
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
    default:
      throw Error(ErrorCode::bad_value, text("options.mask is ", o.mask, "; a value of onepass_mask is expected"));
  }
}

}  // namespace

Tensor tensor_from(const char* name, const onepass_tensor* tensor) {
  const onepass_tensor& t = given(name, tensor);
  if (t.rank < 1 || t.rank > kMaxRank)
    throw Error(ErrorCode::bad_shape, text(name, " has ", t.rank, " dimensions; 1 to ", kMaxRank, " are accepted"));
  if (t.dtype < ONEPASS_F32 || t.dtype > ONEPASS_I32)
    throw Error(ErrorCode::bad_dtype, text(name, " has dtype ", t.dtype, "; a value of onepass_dtype is expected"));
  if (t.device_kind != ONEPASS_CPU && t.device_kind != ONEPASS_CUDA) {
    throw Error(ErrorCode::bad_device,
                text(name, " has device_kind ", t.device_kind, "; ONEPASS_CPU or ONEPASS_CUDA is expected"));
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

Options options_from(const onepass_options* options) {
  Options out;
  if (!options) return out;
  const onepass_options o = known_fields(*options);
  out.band = band_from(o);
  if (o.has_scale) out.scale = o.scale;
  out.softcap = o.softcap;
  out.dropout_p = o.dropout_p;
  out.seed = o.seed;
  out.lse = optional_tensor_from("lse", o.lse);
  out.bias = optional_tensor_from("bias", o.bias);
  out.bool_mask = optional_tensor_from("bool_mask", o.bool_mask);
  out.alibi_slopes = optional_tensor_from("alibi_slopes", o.alibi_slopes);
  out.sinks = optional_tensor_from("sinks", o.sinks);
  out.cu_seqlens_q = optional_tensor_from("cu_seqlens_q", o.cu_seqlens_q);
  out.cu_seqlens_k = optional_tensor_from("cu_seqlens_k", o.cu_seqlens_k);
  if (o.implementation) out.implementation = o.implementation;
  if (o.executor) out.executor = o.executor->executor.get();
  out.stream = o.stream;
  if (o.score_mod) out.score_mod = o.score_mod;
  if (o.mask_mod) out.mask_mod = o.mask_mod;
  if (o.mod_buffer_count > kMaxModBuffers)
    throw Error(ErrorCode::bad_value, text("options.mod_buffer_count is ", o.mod_buffer_count, "; at most ",
                                           kMaxModBuffers, " are accepted"));
  for (std::size_t i = 0; i < o.mod_buffer_count; ++i) {
    const std::string called = text("mod_buffers[", i, "]");
    const char* name = (&given("options.mod_buffer_names", o.mod_buffer_names))[i];
    out.mod_buffers.push_back({&given((called + "'s name").c_str(), name),
                               tensor_from(called.c_str(), &given("options.mod_buffers", o.mod_buffers) + i)});
  }
  return out;
}

}  // namespace onepass::interfaces
