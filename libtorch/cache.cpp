// append_kv and quantize.
#include <string>

#include "algebra/ceil_div.hpp"
#include "base/text.hpp"
#include "libtorch/operators.hpp"
#include "libtorch/options.hpp"
#include "libtorch/run.hpp"
#include "libtorch/views.hpp"
#include "onepass/append.hpp"
#include "onepass/quantize.hpp"
#include "problem/callers_layout.hpp"
#include "problem/checks/accepted.hpp"
#include "problem/checks/tensor_checks.hpp"
#include "problem/role_row.hpp"

namespace onepass::libtorch {
namespace {

// Autograd may have saved what a cache was for a backward: writing nothing into it counts as a write, and is refused
// where PyTorch refuses one. Tensors of inference mode count no writes.
void count_write(AtenTensorHandle tensor) {
  Owned all = kept(tensor);
  StableIValue inference = torch::stable::detail::from(all);
  check(torch_call_dispatcher("aten::is_inference", "", &inference, TORCH_ABI_VERSION), "is_inference");
  if (torch::stable::detail::to<bool>(inference)) return;
  Owned nothing = torch::stable::narrow(all, 0, 0, 0);
  torch::stable::zero_(nothing);
}

}  // namespace

void append_kv(StableIValue* stack, std::uint64_t, std::uint64_t) {
  constexpr auto& items = kAppendItems;
  const Arguments a(stack, items);
  const CallersLayout layout(tokens_first(*a.text(at<items>("layout"))),
                             a.given(at<items>("page_table")) || a.given(at<items>("slot_mapping")));
  Views views;
  const auto read = [&](const char* name, int i, Types types, bool unit_last = false) -> Tensor {
    if (!a.given(i)) return {};
    const AtenTensorHandle tensor = views.readable(name, a.tensor(i), types, unit_last);
    return turned(name, views.view(name, tensor, accepted_of(types), false));
  };
  const auto written = [&](const char* name, AtenTensorHandle tensor, Types types) {
    return turned(name, views.view(name, tensor, accepted_of(types), true));
  };
  const AtenTensorHandle k_new = a.tensor(at<items>("k_new")), q = a.tensor(at<items>("q")),
                         k_cache = a.tensor(at<items>("k_cache")), v_cache = a.tensor(at<items>("v_cache"));
  // Tables of another type than the data's are float32.
  const auto table = [&](const char* name, int i) {
    return read(name, i, a.given(i) && dtype_of(a.tensor(i)) != dtype_of(k_new) ? Types::f32 : Types::data);
  };
  AppendTensors t;
  t.k_new = read("k_new", at<items>("k_new"), Types::data, true);
  t.v_new = read("v_new", at<items>("v_new"), Types::data, true);
  t.k = written("k", k_cache, Types::key_value);
  t.v = written("v", v_cache, Types::key_value);
  t.cache_seqlens = read("cache_seqlens", at<items>("cache_seqlens"), Types::i32);
  t.page_table = read("page_table", at<items>("page_table"), Types::i32);
  t.cu_seqlens_q = read("cu_seqlens_q", at<items>("cu_seqlens_q"), Types::i32);
  t.slot_mapping = read("slot_mapping", at<items>("slot_mapping"), Types::index);
  t.positions = read("positions", at<items>("positions"), Types::index);
  t.cos = table("cos", at<items>("cos"));
  t.sin = table("sin", at<items>("sin"));
  t.cos_sin_cache = table("cos_sin_cache", at<items>("cos_sin_cache"));
  t.k_descale = read("k_descale", at<items>("k_descale"), Types::f32);
  t.v_descale = read("v_descale", at<items>("v_descale"), Types::f32);
  t.q = read("q", at<items>("q"), Types::data, true);
  Owned rotated = [&] {
    if (q) return empty_in_order(sizes_of(q), dtype_of(q), q);
    const std::int64_t nothing = 0;
    return empty({&nothing, 1}, {}, dtype_of(k_new), k_new);
  }();
  if (q) {
    if (t.cu_seqlens_q.given()) torch::stable::zero_(rotated);  // tokens beyond the last sequence
    t.q_out = written("q_out", rotated.get(), Types::data);
  }
  if (!views.meta()) {
    Place place(t.k_new.device, a.integer(at<items>("threads")));
    count_write(k_cache);
    count_write(v_cache);
    onepass::append_kv(t, a.boolean(at<items>("interleaved")), place.launch());
  }
  stack[0] = result(rotated);
}

void quantize(StableIValue* stack, std::uint64_t, std::uint64_t) {
  constexpr auto& items = kQuantizeItems;
  const Arguments a(stack, items);
  const bool tokens_are_first = tokens_first(*a.text(at<items>("layout")));
  const CallersLayout layout(tokens_are_first, false);
  Views views;
  const AtenTensorHandle x = views.readable("x", a.tensor(at<items>("x")), Types::data, true);
  const auto rows = [&](const char* name, AtenTensorHandle tensor, const char* accepted, bool writable) {
    Tensor view = views.view(name, tensor, accepted, writable);
    if (tokens_are_first) widen(view, kMaxRank);
    return turned(name, view);
  };
  const Tensor from = rows("x", x, accepted_of(Types::data), false);
  Tensor four = from;
  widen(four, kMaxRank);
  want(from.rank >= 2, ErrorCode::bad_shape, "x must have 2 to 4 dimensions (got ", from.rank, ")");
  const auto [batch, heads, count, columns] = four.shape;
  const std::string_view factors = *a.text(at<items>("factors"));
  want(factors == "block" || factors == "head" || factors == "tensor", ErrorCode::bad_value,
       "factors must be 'block', 'head' or 'tensor' (got '", factors, "')");
  const bool one = factors == "tensor", with_mean = a.boolean(at<items>("mean"));
  const std::int64_t of_factors[] = {one ? 1 : batch, one ? 1 : heads,
                                     factors == "block" ? ceil_div(count, kDescaleRows) : 1},
                     of_means[] = {batch, heads, columns}, nothing = 0;
  const std::int32_t f32 = code_of(DType::f32);
  const Owned data = empty_in_order(sizes_of(x), code_of(DType::f8e4m3), x), descale = empty(of_factors, {}, f32, x),
              mean = with_mean ? empty(of_means, {}, f32, x) : empty({&nothing, 1}, {}, f32, x);
  const Tensor to = rows("y", data.get(), "float8_e4m3fn", true),
               scales = views.view("descale", descale.get(), accepted_of(Types::f32), true),
               means = with_mean ? views.view("mean", mean.get(), accepted_of(Types::f32), true) : Tensor{};
  if (!views.meta()) {
    Place place(from.device, a.integer(at<items>("threads")));
    const QuantizeOptions options{a.boolean(at<items>("hadamard")),
                                  static_cast<std::uint64_t>(*a.integer(at<items>("seed")))};
    onepass::quantize(from, to, scales, means, options, place.launch());
  }
  stack[0] = result(data);
  stack[1] = result(descale);
  stack[2] = result(mean);
}

}  // namespace onepass::libtorch
