#include "distributed/attention/call.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "expression/tokens.hpp"

namespace onepass::inline v0::context_parallel {
namespace {

// Packed documents have no batch, and rows before heads.
template <class AnyTensor>
AnyTensor packed(const AnyTensor& t) {
  if (!t.given()) return t;
  AnyTensor view = t;
  view.rank = t.rank - 1;
  for (std::size_t i = 0; i + 1 < 4; ++i) view.shape[i] = t.shape[i + 1], view.stride[i] = t.stride[i + 1];
  view.shape[3] = 1, view.stride[3] = 0;
  return t.rank == 4 ? view.permuted({1, 0, 2}) : view;
}

// ------------------------------------------------------------------------------------------------------- expressions
struct Position {
  std::string_view word, buffer;
};
constexpr std::array<Position, 3> kPositions{
    {{"q_index", "onepass_first_row"}, {"k_index", "onepass_first_key"}, {"head", "onepass_first_head"}}};

bool in_word(char c) { return is_letter(c) || is_digit(c); }

// f(place) of each occurrence of a whole word, from the last to the first.
template <class F>
void each_word(const std::string& text, std::string_view word, const F& f) {
  for (std::size_t end = text.size(); end > 0;) {
    const std::size_t at = text.rfind(word, end - 1);
    if (at == std::string::npos) return;
    const bool before = at > 0 && in_word(text[at - 1]);
    const bool behind = at + word.size() < text.size() && in_word(text[at + word.size()]);
    if (!before && !behind) f(at);
    end = at;
  }
}

// Expressions count from the first row, key and head of the call; here they count within the document and all heads.
std::string shifted(std::string expression, const Position& position) {
  std::vector<std::size_t> places;
  each_word(expression, position.word, [&](std::size_t at) { places.push_back(at); });
  for (const std::size_t at : places)
    expression.replace(at, position.word.size(),
                       "(" + std::string(position.word) + " + " + std::string(position.buffer) + "[0])");
  return expression;
}

bool has_word(const Attention& options, std::string_view word) {
  bool found = false;
  for (const std::string* text : {&options.score_mod, &options.mask_mod})
    each_word(*text, word, [&](std::size_t) { found = true; });
  return found;
}

// ------------------------------------------------------------------------------------------------------------- calls
// The tensors and options of a part's call, and the memory of what they need.
struct PartCall {
  AttentionTensors tensors{};
  Attention options;
  std::vector<Owned> memory{};

  PartCall(const Job& job, const Part& part, const Keys& keys) : options(job.options) {
    set_band(job, part);
    set_places(job, part);
    set_tensors(job, part, keys);
  }
  void pack(const Job& job, const Part& part);

 private:
  void set_band(const Job& job, const Part& part) {
    const Visibility& seen = job.visibility;
    if (part.align == Align::bottom_right)
      options.band = {.causal = true, .left = seen.left};
    else if (part.masked)
      options.band = {.align = Align::offset, .left = seen.left, .right = seen.right, .offset = part.offset};
    else
      options.band = {};
    options.deterministic |= job.how.reproducible;
  }

  void set_places(const Job& job, const Part& part) {
    const Index row = part.row_positions.begin - part.document, key = part.key_positions.begin - part.document;
    if (options.dropout_p > 0) {  // draws count within the document, and documents as the entries of a batch
      const std::vector<Index>& all = job.visibility.documents;
      const auto number = std::upper_bound(all.begin(), all.end(), part.document) - all.begin() - 1;
      const Index entry = std::max<Index>(0, number) * job.tensors.q.shape[0];
      options.dropout_start = {static_cast<std::uint32_t>(entry), static_cast<std::uint32_t>(job.first_head),
                               static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(key)};
    }
    tensors.mod_buffers = job.tensors.mod_buffers;
    const std::array<Index, kPositions.size()> first{row, key, job.first_head};
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (first[i] == 0 || !has_word(options, kPositions[i].word)) continue;
      for (std::string* text : {&options.score_mod, &options.mask_mod}) *text = shifted(*text, kPositions[i]);
      const std::array<std::int32_t, 1> value{static_cast<std::int32_t>(first[i])};
      memory.push_back(on_device(value, job.device(), job.launch));
      tensors.mod_buffers.push_back({std::string(kPositions[i].buffer), memory.back().tensor()});
    }
  }

  void set_tensors(const Job& job, const Part& part, const Keys& keys) {
    const AttentionTensors& t = job.tensors;
    tensors.q = rows_of(t.q, part.rows);
    tensors.k = rows_of(keys.k, part.keys), tensors.v = rows_of(keys.v, part.keys);
    if (part.own) tensors.sinks = t.sinks;
    tensors.alibi_slopes = t.alibi_slopes;
    tensors.q_descale = t.q_descale, tensors.k_descale = t.k_descale, tensors.v_descale = t.v_descale;
    tensors.v_mean = t.v_mean;
    tensors.bias = side(t.bias, part), tensors.bool_mask = side(t.bool_mask, part);
  }

 public:
  // The rows and positions of a part, of a bias, a mask or the gradient of a bias.
  template <class AnyTensor>
  static AnyTensor side(const AnyTensor& t, const Part& part) {
    return t.given() ? slice_repeated(slice_repeated(t, 2, part.rows), 3, part.key_positions) : t;
  }
};

void PartCall::pack(const Job& job, const Part& part) {
  if (part.cu_rows.empty()) return;
  AttentionTensors& t = tensors;
  t.q = packed(t.q), t.k = packed(t.k), t.v = packed(t.v), t.out = packed(t.out), t.lse = packed(t.lse);
  t.row_max = packed(t.row_max);
  t.dout = packed(t.dout), t.dlse = packed(t.dlse), t.dq = packed(t.dq), t.dk = packed(t.dk), t.dv = packed(t.dv);
  const auto prefix = [&](const std::vector<Index>& sums, ConstTensor& cu, std::int64_t& longest) {
    const std::vector<std::int32_t> values(sums.begin(), sums.end());
    memory.push_back(on_device(values, job.device(), job.launch));
    cu = memory.back().tensor();
    longest = 1;
    for (std::size_t i = 0; i + 1 < sums.size(); ++i) longest = std::max(longest, sums[i + 1] - sums[i]);
  };
  prefix(part.cu_rows, t.cu_seqlens_q, options.max_seqlen_q);
  prefix(part.cu_keys, t.cu_seqlens_k, options.max_seqlen_k);
}

// Memory of a gradient that several parts add to.
struct Addend {
  std::optional<Owned> memory{};
  Tensor sum{};

  Tensor of(const Tensor& into, const Job& job) {
    if (!into.given()) return into;
    const Tensor four = as_rank_4(into);
    memory.emplace(DType::f32, std::initializer_list<Index>{four.shape[0], four.shape[1], four.shape[2], four.shape[3]},
                   job.device(), job.launch);
    sum = four;
    Tensor same = into;  // of its rank, row-major
    same.data = memory->tensor().data;
    Index step = 1;
    for (int i = into.rank - 1; i >= 0; --i) {
      same.stride[static_cast<std::size_t>(i)] = step;
      step *= into.shape[static_cast<std::size_t>(i)];
    }
    return same;
  }
  void join(const Job& job) const {
    if (memory) add(memory->tensor(), sum, job.launch);
  }
};

}  // namespace

std::size_t position_buffers(const Attention& options, bool heads) {
  const auto end = kPositions.end() - (heads ? 0 : 1);
  return static_cast<std::size_t>(
      std::count_if(kPositions.begin(), end, [&](const Position& p) { return has_word(options, p.word); }));
}

bool names_batch(const Attention& options) { return has_word(options, "batch"); }

AttentionTensors of_heads(const AttentionTensors& tensors, Range heads, Range heads_kv) {
  AttentionTensors t = tensors;
  const auto cut = [](Range range, auto&... all) { ((all = slice(all, 1, range)), ...); };
  const auto cut_repeated = [](Range range, auto&... all) {
    ((all = all.given() ? slice_repeated(all, 1, range) : all), ...);
  };
  const auto cut_last = [&](auto&... all) {
    ((all = all.given() ? slice(all, static_cast<std::size_t>(all.rank) - 1, heads) : all), ...);
  };
  cut(heads, t.q, t.out, t.lse, t.row_max, t.dout, t.dlse, t.dq);
  cut(heads_kv, t.k, t.v, t.dk, t.dv);
  cut_repeated(heads, t.bias, t.bool_mask, t.dbias, t.q_descale);
  cut_repeated(heads_kv, t.k_descale, t.v_descale, t.v_mean);
  cut_last(t.sinks, t.dsinks, t.alibi_slopes, t.dalibi_slopes);
  return t;
}

void attend(const Job& job, const Part& part, const Keys& keys, const RowResults& into) {
  PartCall call(job, part, keys);
  call.tensors.out = rows_of(into.out, part.rows), call.tensors.lse = rows_of(into.lse, part.rows);
  call.tensors.row_max = rows_of(into.row_max, part.rows);
  call.options.partial |= into.partial;
  call.pack(job, part);
  attention(call.tensors, call.options, job.launch);
}

void attend_backward(const Job& job, const Part& part, const Keys& keys, const Tensor& dq, const KeyGradients& into) {
  PartCall call(job, part, keys);
  const AttentionTensors& given = job.tensors;
  AttentionTensors& t = call.tensors;
  t.out = rows_of(given.out, part.rows), t.lse = rows_of(given.lse, part.rows);
  t.dout = rows_of(given.dout, part.rows), t.dlse = rows_of(given.dlse, part.rows);
  t.dq = dq;
  t.dk = into[0], t.dv = into[1];
  Addend dbias, dsinks, dslopes;
  t.dbias = dbias.of(PartCall::side(given.dbias, part), job);
  if (part.own) t.dsinks = dsinks.of(given.dsinks, job);
  t.dalibi_slopes = dslopes.of(given.dalibi_slopes, job);
  call.pack(job, part);
  attention_backward(t, call.options, job.launch);
  for (const Addend* addend : {&dbias, &dsinks, &dslopes}) addend->join(job);
}

void clear_side_gradients(const Job& job) {
  const AttentionTensors& t = job.tensors;
  const Zeros zeros(std::max({t.dbias.shape[3], t.dsinks.elements(), t.dalibi_slopes.elements(), Index{1}}),
                    job.device(), job.launch);
  for (const Tensor* x : {&t.dbias, &t.dsinks, &t.dalibi_slopes}) {
    if (x->given()) copy(zeros.like(as_rank_4(*x)), as_rank_4(*x), job.launch);
  }
}

}  // namespace onepass::inline v0::context_parallel
