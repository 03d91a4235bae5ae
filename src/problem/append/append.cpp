#include "problem/append/append.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/overlap.hpp"
#include "base/text.hpp"
#include "problem/attention/cache.hpp"
#include "problem/callers_layout.hpp"
#include "problem/roles.hpp"
#include "problem/tensor_checks.hpp"

namespace onepass {
namespace {

// A dimension of a tensor: what it counts, and how many there must be, once another tensor has said it.
struct Size {
  const char* what;
  std::int64_t& known;  // -1: not yet
  const char*& by;
};

struct Form {
  std::initializer_list<Size> sizes;
  bool turned;  // the caller has the second and the third the other way round
  friend std::ostream& operator<<(std::ostream& out, const Form& f) {
    const char* between = "[";
    for (std::size_t i = 0; i < f.sizes.size(); ++i)
      out << std::exchange(between, ", ") << f.sizes.begin()[f.turned && (i == 1 || i == 2) ? 3 - i : i].what;
    return out << ']';
  }
};

class Checks {
 public:
  explicit Checks(const AppendTensors& t) : t_(t) {}

  // The sizes of `tensor` meet those of the tensors before it.
  void meet(const char* name, const ConstTensor& tensor, std::initializer_list<Size> sizes) {
    check_tensor(name, tensor);
    on_device_of_k_new(name, tensor);
    want(tensor.rank == static_cast<int>(sizes.size()), ErrorCode::bad_shape, name, " must have shape ",
         Form{sizes, is_turned(name, static_cast<int>(sizes.size()))}, " (got ", PassedShape{name, tensor}, ")");
    int i = 0;
    for (const Size& s : sizes) {
      const std::int64_t size = tensor.shape[i++];
      if (s.known < 0) s.known = size, s.by = name;
      want(size == s.known, ErrorCode::bad_shape, "the ", s.what, " of ", name, " must be ", s.known, ", as in ", s.by,
           " (got shape ", PassedShape{name, tensor}, ")");
    }
  }
  // cached: it may be of fp8_e4m3.
  void data(const char* name, const ConstTensor& tensor, std::initializer_list<Size> sizes, bool cached = false) {
    meet(name, tensor, sizes);
    const DType d = tensor.dtype;
    const int last = tensor.rank - 1;
    want(tensor.shape[last] <= 1 || tensor.stride[last] == 1, ErrorCode::bad_stride, "the last dimension of ", name,
         " must have stride 1 (got ", tensor.stride[last], ")");
    if (cached && d == DType::f8e4m3) return;
    want(is_data(d), ErrorCode::bad_dtype, name, " must be fp32, fp16 or bf16 (got ", name_of(d), ")");
    want(d == t_.k_new.dtype, ErrorCode::bad_dtype, name, " must be ", name_of(t_.k_new.dtype), ", as k_new (got ",
         name_of(d), ")");
  }
  // Factors: sizes of 1 are repeated, dimensions at the end may be left out.
  void factors(const char* name, const ConstTensor& tensor, DType of, std::initializer_list<std::int64_t> sizes) {
    if (!tensor.given()) return;
    check_tensor(name, tensor);
    on_device_of_k_new(name, tensor);
    want(tensor.dtype == DType::f32, ErrorCode::bad_dtype, name, " must be fp32 (got ", name_of(tensor.dtype), ")");
    want(of == DType::f8e4m3, ErrorCode::bad_dtype, name, " requires an fp8_e4m3 cache (got ", name_of(of), ")");
    bool fits = tensor.rank <= static_cast<int>(sizes.size());
    for (int i = 0; fits && i < tensor.rank; ++i) fits = tensor.shape[i] == 1 || tensor.shape[i] == sizes.begin()[i];
    want(fits, ErrorCode::bad_shape, name, " must have shape [", sizes.begin()[0], "|1, ", sizes.begin()[1], "|1, ",
         sizes.begin()[2], "|1] (batch, heads_kv, blocks of 128 keys) or a prefix of it (got ", ShownShape{tensor},
         ")");
  }
  void index(const char* name, const ConstTensor& tensor, std::initializer_list<Size> sizes) {
    meet(name, tensor, sizes);
    want(tensor.dtype == DType::i32, ErrorCode::bad_dtype, name, " must be int32 (got ", name_of(tensor.dtype), ")");
  }

 private:
  void on_device_of_k_new(const char* name, const ConstTensor& tensor) const {
    want(tensor.device == t_.k_new.device, ErrorCode::bad_device, name, " must be on ", ShownDevice{t_.k_new.device},
         ", as k_new (got ", ShownDevice{tensor.device}, ")");
  }

  const AppendTensors& t_;
};

bool same_view(const ConstTensor& a, const ConstTensor& b) {
  if (a.data != b.data || a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i) {
    if (a.shape[i] != b.shape[i] || (a.shape[i] > 1 && a.stride[i] != b.stride[i])) return false;
  }
  return true;
}

void check_apart(const AppendTensors& t) {
  struct Place {
    const char* name;
    ConstTensor tensor;
  };
  const std::array<Place, 3> outputs{{{"k", t.k}, {"v", t.v}, {"q_out", t.q_out}}};
  const std::array<Place, 10> inputs{{{"k_new", t.k_new},
                                      {"v_new", t.v_new},
                                      {"q", t.q},
                                      {"seqused_k", t.seqused_k},
                                      {"page_table", t.page_table},
                                      {"cu_seqlens_q", t.cu_seqlens_q},
                                      {"cos", t.cos},
                                      {"sin", t.sin},
                                      {"k_descale", t.k_descale},
                                      {"v_descale", t.v_descale}}};
  const auto want_apart = [](const Place& x, const Place& y) {
    if (x.tensor.given() && y.tensor.given() && share_memory(x.tensor, y.tensor))
      throw Error(ErrorCode::bad_value, text(x.name, " must not share memory with ", y.name));
  };
  constexpr std::size_t kQOut = 2, kQ = 2;
  const bool in_place = t.q_out.given() && same_view(outputs[kQOut].tensor, inputs[kQ].tensor);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) want_apart(outputs[i], outputs[j]);
    for (std::size_t j = 0; j < inputs.size(); ++j)
      if (!(in_place && i == kQOut && j == kQ)) want_apart(outputs[i], inputs[j]);
  }
}

// Sequences may share pages that they only read. Two must not append to the same place, because threads would meet
// there. None may append to a page that holds live keys of another, which would be overwritten now or at its next
// token.
void check_places(const AppendProblem& p, const AppendTensors& t) {
  struct Part {  // tokens of a page that sequence b writes
    std::int64_t page, from, to, b;
  };
  if (p.tokens == 0) return;
  std::vector<Part> parts;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = appended_sequence(p, t, b);
    for (std::int64_t key = s.seq_k, end = s.seq_k + s.seq_q; key < end;) {
      const std::int64_t entry = key / p.page_size, from = key % p.page_size,
                         to = std::min(p.page_size, from + end - key);
      parts.push_back({checked_page(s.pages, b, entry, p.pages), from, to, b});
      key += to - from;
    }
  }
  std::ranges::sort(parts, {}, [](const Part& x) { return std::tuple(x.page, x.from, x.b); });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const Part &x = parts[i - 1], &y = parts[i];
    want(x.page != y.page || x.to <= y.from, ErrorCode::bad_value, "only one new token may be written to token ",
         y.from, " of page ", y.page, " (page_table gives it to sequences ", x.b, " and ", y.b, ")");
  }
  std::vector<bool> written(static_cast<std::size_t>(p.pages));
  for (const Part& part : parts) written[static_cast<std::size_t>(part.page)] = true;
  for (std::int64_t b = 0; b < p.batch && !parts.empty(); ++b) {
    const Sequence s = appended_sequence(p, t, b);
    for (std::int64_t entry = 0; entry * p.page_size < s.seq_k; ++entry) {
      const std::int64_t page = s.pages.entry[entry * s.pages.stride];  // one that is not read may be anything
      if (page < 0 || page >= p.pages || !written[static_cast<std::size_t>(page)]) continue;
      const auto other =
          std::ranges::find_if(parts, [&](const Part& part) { return part.page == page && part.b != b; });
      want(other == parts.end(), ErrorCode::bad_value, "sequence ", other == parts.end() ? 0 : other->b,
           " must not append to page ", page, ", which holds live keys of sequence ", b, " (page_table[", b, ", ",
           entry, "]); copy the page first");
    }
  }
}

// Where the CPU can look.
void check_contents(const AppendProblem& p, const AppendTensors& t) {
  if (p.packed) (void)lengths_from("cu_seqlens_q", t.cu_seqlens_q, p.tokens, "k_new");
  // One entry that is repeated says all about the others.
  const bool one = !p.packed && t.seqused_k.stride[0] == 0;
  for (std::int64_t b = 0; b < (one ? std::min<std::int64_t>(p.batch, 1) : p.batch); ++b) {
    const Sequence s = appended_sequence(p, t, b);
    want(s.seq_k >= 0 && s.seq_k <= p.capacity - s.seq_q, ErrorCode::bad_value, "seqused_k[", b, "] must be 0 to ",
         p.capacity - s.seq_q, " to append ", s.seq_q, " tokens to a cache of ", p.capacity, " (got ", s.seq_k, ")");
    want(!p.rotated || s.seq_q == 0 || s.seq_k <= p.positions - s.seq_q, ErrorCode::bad_value, "seqused_k[", b,
         "] must be at most ", p.positions - s.seq_q, " to append ", s.seq_q, " tokens with ", p.positions,
         " positions of cos and sin (got ", s.seq_k, ")");
  }
  if (p.paged()) check_places(p, t);
}

}  // namespace

AppendProblem append_problem_of(const AppendTensors& t, bool interleaved) {
  AppendProblem p;
  p.packed = t.cu_seqlens_q.given();
  p.rotated = t.cos.given() || t.sin.given();
  p.interleaved = interleaved;
  p.dtype = t.k_new.dtype;
  p.device = t.k_new.device;
  const bool paged = t.page_table.given();
  want(t.q.given() || !t.q_out.given(), ErrorCode::bad_value, "q_out requires q");
  want(p.rotated || !t.q.given(), ErrorCode::bad_value, "q requires cos and sin, which rotate it");

  std::array<std::int64_t, 11> known;
  std::array<const char*, 11> by{};
  known.fill(-1);
  const auto size = [&](std::size_t i, const char* what) { return Size{what, known[i], by[i]}; };
  const Size batch = size(0, "batch"), heads_kv = size(1, "heads_kv"), heads_q = size(2, "heads_q"),
             seq_new = size(3, p.packed ? "total" : "seq_new"), dim_qk = size(4, "dim"), dim_v = size(5, "dim"),
             capacity = size(6, paged ? "page_size" : "capacity"), pages = size(7, "pages"),
             max_pages = size(8, "pages of a sequence"), positions = size(9, "positions"),
             pairs = size(10, "rotary_dim / 2");

  Checks checks(t);
  const auto tokens = [&](const char* name, const ConstTensor& tensor, const Size& heads, const Size& dim) {
    if (p.packed)
      checks.data(name, tensor, {seq_new, heads, dim});
    else
      checks.data(name, tensor, {batch, heads, seq_new, dim});
  };
  const auto cache = [&](const char* name, const Tensor& tensor, const Size& dim) {
    if (paged)
      checks.data(name, tensor, {pages, capacity, heads_kv, dim}, true);
    else
      checks.data(name, tensor, {batch, heads_kv, capacity, dim}, true);
    check_output(name, turned(name, tensor));
  };
  tokens("k_new", t.k_new, heads_kv, dim_qk);
  tokens("v_new", t.v_new, heads_kv, dim_v);
  checks.index("seqused_k", t.seqused_k, {batch});
  cache("k", t.k, dim_qk);
  cache("v", t.v, dim_v);
  p.cache_dtype = t.k.dtype;
  want(t.v.dtype == t.k.dtype, ErrorCode::bad_dtype, "v must be ", name_of(t.k.dtype), ", as k (got ",
       name_of(t.v.dtype), ")");
  p.capacity = capacity.known;
  if (paged) {
    checks.index("page_table", t.page_table, {batch, max_pages});
    p.pages = pages.known;
    p.page_size = capacity.known;
    p.capacity = keys_of_pages(max_pages.known, p.page_size);
  }
  for (const auto& [name, factors] : {std::pair{"k_descale", &t.k_descale}, std::pair{"v_descale", &t.v_descale}})
    checks.factors(name, *factors, p.cache_dtype, {batch.known, heads_kv.known, descale_blocks(p.capacity)});
  if (p.packed) {
    std::int64_t boundaries = batch.known + 1;
    const char* of = batch.by;
    checks.index("cu_seqlens_q", t.cu_seqlens_q, {{"batch + 1", boundaries, of}});
  }
  if (p.rotated) {
    for (const auto& [name, table] : {std::pair{"cos", &t.cos}, std::pair{"sin", &t.sin}}) {
      want(table->given(), ErrorCode::bad_shape, name, " must be given: cos and sin come together");
      checks.meet(name, *table, {positions, pairs});
      want(table->dtype == DType::f32 || table->dtype == p.dtype, ErrorCode::bad_dtype, name, " must be ",
           p.dtype == DType::f32 ? "" : "fp32 or ", name_of(p.dtype), ", as k_new (got ", name_of(table->dtype), ")");
      want(table->dtype == t.cos.dtype, ErrorCode::bad_dtype, name, " must be ", name_of(t.cos.dtype), ", as cos (got ",
           name_of(table->dtype), ")");
    }
    want(pairs.known <= dim_qk.known / 2, ErrorCode::bad_shape, "cos must have at most ", dim_qk.known / 2,
         " columns, half the head dim of k_new (got shape ", ShownShape{t.cos}, ")");
    p.table_dtype = t.cos.dtype;
    p.rotary_dim = 2 * pairs.known;
    p.positions = positions.known;
  }
  if (t.q.given()) {
    tokens("q", t.q, heads_q, dim_qk);
    tokens("q_out", t.q_out, heads_q, dim_qk);
    check_output("q_out", t.q_out);
    p.heads_q = heads_q.known;
  }
  p.batch = batch.known;
  p.heads_kv = heads_kv.known;
  p.dim_qk = dim_qk.known;
  p.dim_v = dim_v.known;
  p.seq_new = p.packed ? 0 : seq_new.known;
  p.tokens = seq_new.known;
  want(p.packed || !__builtin_mul_overflow(p.batch, p.seq_new, &p.tokens), ErrorCode::bad_shape,
       "k_new must have at most 2^62 tokens (got shape ", PassedShape{"k_new", t.k_new}, ")");
  check_apart(t);
  if (p.device.kind == DeviceKind::cpu) check_contents(p, t);
  return p;
}

Sequence appended_sequence(const AppendProblem& p, const AppendTensors& t, std::int64_t b) {
  Sequence s{b, 0, 0, p.seq_new, int32_at(t.seqused_k, b)};
  if (p.packed) {
    s.q_begin = int32_at(t.cu_seqlens_q, b);
    s.seq_q = int32_at(t.cu_seqlens_q, b + 1) - s.q_begin;
  }
  if (p.paged()) s.pages = pages_of(t.page_table, b, p.page_size);
  return s;
}

}  // namespace onepass
