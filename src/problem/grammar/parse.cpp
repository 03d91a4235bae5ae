// A line as its problem: docs/reference/problem.md.
#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>
#include <vector>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"
#include "onepass/problem.hpp"
#include "problem/grammar/foreign_words.hpp"
#include "problem/grammar/on.hpp"
#include "problem/grammar/subject.hpp"
#include "problem/grammar/text.hpp"
#include "problem/grammar/word.hpp"
#include "problem/roles.hpp"
#include "problem/softmax/softmax_problem.hpp"

namespace onepass::inline v0 {
namespace {

std::int64_t longest(const Lengths& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

struct Parser {
  Problem p;
  Lengths used;  // of a cache
  bool own_out_dtype = false, own_grad_dtype = false, bshd = false, has_strides = false, own_pages = false,
       own_lengths_k = false;
  std::vector<std::string_view> words;  // so far
  std::vector<std::pair<const RoleRow*, Dims>> side_strides;

  const std::string_view* said(std::string_view subject) const {
    const auto it =
        std::find_if(words.begin(), words.end(), [&](std::string_view word) { return subject_of(word) == subject; });
    return it == words.end() ? nullptr : &*it;
  }

  void once(const Word& w) {
    const std::string_view subject = subject_of(w.word);
    if (subject == "buffer") return;  // each has a name of its own: validate() looks
    if (const std::string_view* first = said(subject)) {
      throw Error(ErrorCode::bad_text,
                  text("'", shown(w.word), "' in \"", shown(w.line, 1000), "\" conflicts with '", shown(*first), "'"));
    }
    words.push_back(w.word);
  }

  // name=value words
  bool keyed(const Word& w, std::string_view key, std::string_view value) {
    if (key == "causal_offset" || key == "aligned_offset") {
      if (key == "causal_offset") p.band.causal = true;
      p.band.align = Align::offset;
      p.band.offset =
          w.number<std::int64_t>(value, key == "causal_offset" ? "causal_offset=keys" : "aligned_offset=keys");
    } else if (key == "window")
      std::tie(p.band.left, p.band.right) = w.pair(value, ':', true, "window=left:right");
    else if (key == "scale")
      p.scale = w.number<double>(value, "a number");
    else if (key == "unified_max")
      p.unified_max = w.number<float>(value, "a number");
    else if (key == "softcap")
      p.softcap = w.number<float>(value, "a number");
    else if (key == "dropout")
      p.dropout_p = w.number<float>(value, "a number");
    else if (key == "seed")
      p.seed = w.number<std::uint64_t>(value, "an integer");
    else if (key == "score_mod")
      p.score_mod = w.expression(value);
    else if (key == "mask_mod")
      p.mask_mod = w.expression(value);
    else if (key == "buffer")
      p.mod_buffers.push_back(w.buffer(value));
    else if (key == "mask")
      p.bool_mask = w.spread(value);
    else if (key == "kv_dtype")
      p.kv_dtype = dtype_from_name(value);
    else if (key == "q_descale")
      p.q_descale = w.descale(value);
    else if (key == "k_descale")
      p.k_descale = w.descale(value);
    else if (key == "v_descale")
      p.v_descale = w.descale(value);
    else if (key == "v_mean")
      p.v_mean = w.descale(value, 'd');
    else if (key == "descale")
      p.descale = w.descale(value);
    else if (key == "accumulation" && (value == "exact" || value == "fast"))
      p.accumulation = value == "fast" ? Accumulation::fast : Accumulation::exact;
    else if (key == "bias") {
      const auto [dtype, spans] = w.halves(value, ':', true, "bias=dtype:spread, such as bias=fp32:bhqk");
      p.bias = BiasSpec{dtype_from_name(dtype), w.spread(spans)};
    } else if (key == "out") {
      p.out_dtype = dtype_from_name(value);
      own_out_dtype = true;
    } else if (key == "grads") {
      for (const std::string_view name : w.list(value, ',')) w.ask(name, p.gradients);
    } else if (key == "grad") {
      p.grad_dtype = dtype_from_name(value);
      own_grad_dtype = true;
    } else if (key == "packed") {
      p.varlen = true;
      std::tie(p.total_q, p.total_k) = w.pair(value, ':', true, "packed=total_q:total_k");
    } else if (key == "kv") {  // paged:16[:pages:pages of a sequence]
      constexpr const char* kForm = "kv=paged:page_size[:pages:pages of a sequence]";
      const auto items = w.list(value, ':');
      if ((items.size() != 2 && items.size() != 4) || items[0] != "paged") w.fail(kForm);
      p.page_size = w.number<std::int64_t>(items[1], kForm);
      if (p.page_size < 1) w.fail(kForm);
      if (own_pages = items.size() == 4; own_pages) {
        p.pages = w.number<std::int64_t>(items[2], kForm);
        p.max_pages = w.number<std::int64_t>(items[3], kForm);
      }
    } else if (key == "seqused") {
      p.seqused = true;
      used = w.lengths(value);
    } else if (key == "varlen") {
      const auto [q, k] = w.halves(value, '/', false, "");
      p.varlen = true;
      own_lengths_k = k.data() != q.data();
      p.lengths_q = w.lengths(q);
      p.lengths_k = w.lengths(k);
      if (p.lengths_q.size() != p.lengths_k.size()) w.fail("varlen=q/k with one length of k for each length of q");
    } else if (key == "align") {
      for (const std::string_view item : w.list(value, ',')) {
        const auto [name, bytes] = w.halves(item, ':', true, "align=name:bytes, such as align=q:8");
        const RoleRow* row = role_named(name);
        const int n = w.number<int>(bytes, "1, 2, 4, 8 or 16 bytes");
        if (!row || n < 1 || n > 16 || (n & (n - 1)) != 0) w.fail("align=name:bytes, such as align=q:8");
        p.alignment[static_cast<std::size_t>(row->role)] = static_cast<std::uint8_t>(n);
      }
    } else if (const RoleRow* row = role_of_strides(key)) {
      const auto items = w.list(value, ',');
      Dims strides{0, 0, 0, row->unit_last ? 1 : 0};
      const Axes& axes = is_gemm(p.op) ? row->packed : row->axes;  // that word comes first
      if (static_cast<int>(items.size()) != rank_of(axes) - (row->unit_last ? 1 : 0))
        w.fail("a stride for each dimension");
      for (std::size_t i = 0; i < items.size(); ++i) strides[i] = w.number<std::int64_t>(items[i], "integers");
      side_strides.emplace_back(row, strides);
    } else if (key == "layout" && (value == "bshd" || value == "bhsd")) {
      bshd = value == "bshd";
    } else if (key == "strides") {
      has_strides = true;
      const auto items = w.list(value, ';');
      Dims* const into[] = {&p.layout.q, &p.layout.k, &p.layout.v, &p.layout.out};
      for (std::size_t i = 0; i < 4; ++i) {
        if (items.size() != 4 || items[i].size() < 2 || items[i][0] != "qkvo"[i] || items[i][1] != ':')
          w.fail("strides=q:batch,head,token;k:..;v:..;o:..");
        *into[i] = w.strides(items[i].substr(2));
      }
    } else {
      return false;
    }
    return true;
  }

  bool plain(const Word& w) {
    const std::string_view s = w.word;
    if (const auto op = op_named(s))
      p.op = *op;
    else if (s == "log")
      p.log = true;
    else if (s == "lse_only")
      p.want_lse = p.lse_only = true;
    else if (s == "row_lse")
      p.row_lse = true;
    else if (s == "hadamard")
      p.hadamard = true;
    else if (s == "mean")
      p.centered = true;
    else if (s == "column_bias")
      p.column_bias = true;
    else if (s == "dlse")
      p.dlse = true;
    else if (s == "deterministic")
      p.deterministic = true;
    else if (s == "seqused")
      p.seqused = true;
    else if (s == "batch_invariant")
      p.batch_invariant = true;
    else if (s == "recomputed")
      p.want_recomputed = true;
    else if (s == "v_in_k")
      p.v_in_k = true;
    else if (s == "causal_bottom_right" || s == "causal_top_left")
      p.band.causal = true, p.band.align = s == "causal_top_left" ? Align::top_left : Align::bottom_right;
    else if (s == "aligned_top_left")
      p.band.align = Align::top_left;
    else if (s == "alibi")
      p.alibi = true;
    else if (s == "sinks")
      p.sinks = true;
    else if (s == "lse")
      p.want_lse = true;
    else if (s == "cpu")
      p.device = {};
    else if (s == "cuda")
      p.device = {DeviceKind::cuda, 0};
    else if (s.starts_with("cuda:"))
      p.device = {DeviceKind::cuda, device_number(w, s.substr(5))};
    else if (s == "fp32" || s == "fp16" || s == "bf16" || s == "fp8_e4m3")
      p.dtype = dtype_from_name(s);
    else if (s.size() > 1 && s[1] >= '0' && s[1] <= '9')
      return sized(w, s[0], s.substr(1));
    else
      return false;
    return true;
  }

  int device_number(const Word& w, std::string_view value) const {
    const int index = w.number<int>(value, "a device number");
    if (index < 0) w.fail("a device number from 0");
    return index;
  }

  // b2 h16/4 s1024x2048 d192/128
  bool sized(const Word& w, char letter, std::string_view value) {
    switch (letter) {
      case 'n': p.partials = w.number<std::int64_t>(value, "n<partial results, or columns>"); return true;
      case 'm': p.m = w.number<std::int64_t>(value, "m<rows>"); return true;
      case 'k': p.k = w.number<std::int64_t>(value, "k<row length>"); return true;
      case 'b': p.batch = w.number<std::int64_t>(value, "b<batch>"); return true;
      case 'h':
        std::tie(p.heads_q, p.heads_kv) = w.pair(value, '/', false, "h<query heads>[/<K/V heads>]");
        return true;
      case 's': std::tie(p.seq_q, p.seq_k) = w.pair(value, 'x', false, "s<queries>[x<keys>]"); return true;
      case 'd': std::tie(p.dim_qk, p.dim_v) = w.pair(value, '/', false, "d<dim of q and k>[/<dim of v>]"); return true;
      default: return false;
    }
  }

  // A word that the operator has no use for must not be left out in silence.
  void fits_operator() const {
    for (const std::string_view word : words)
      if (!speaks_of(p.op, subject_of(word)))
        throw Error(ErrorCode::bad_text,
                    text(word_of(p.op), " does not support '", shown(word), "' (docs/reference/problem.md)"));
    if (of_rows(p.op) && p.heads_kv != p.heads_q)
      throw Error(ErrorCode::bad_text,
                  text(word_of(p.op), " does not support two numbers of heads (docs/reference/problem.md)"));
    if (p.op == Op::merge && (has_strides || !p.mod_buffers.empty()))
      throw Error(ErrorCode::bad_text,
                  "merge does not support buffer or strides, but out_strides (docs/reference/problem.md)");
  }

  // Its lengths are seqused's.
  void finish_cache() {
    if (own_lengths_k)
      throw Error(ErrorCode::bad_text,
                  "varlen= must have only lengths of queries with a cache; seqused= has the lengths of keys");
    p.lengths_k = used;
    p.total_k = 0;
    if (!p.lengths_q.empty() && !said("s")) p.seq_k = longest(used);
  }

  Problem finish() {
    fits_operator();
    if (of_rows(p.op)) p.heads_kv = 1;
    if (p.op == Op::quantize) p.out_dtype = DType::f8e4m3, own_out_dtype = true;
    if (is_gemm(p.op)) p.n = std::exchange(p.partials, 0);
    if (p.op == Op::merge) p.heads_kv = 1, p.seq_k = 0, p.dim_qk = Problem{}.dim_qk;  // only out's sizes count
    if (!own_out_dtype) p.out_dtype = p.dtype == DType::f8e4m3 ? DType::bf16 : p.dtype;
    if (p.kv_dtype == p.dtype) p.kv_dtype.reset();
    if (p.op == Op::backward) {
      if (!own_grad_dtype) p.grad_dtype = p.dtype;
      if (!said("grads")) p.gradients = {.dq = true, .dk = true, .dv = true};
    }
    if (!p.packed_k() && (p.seqused || p.paged())) finish_cache();
    if (!p.lengths_q.empty()) {
      // Numbers in the line itself must hold them: validate() looks.
      if (!said("b")) p.batch = static_cast<std::int64_t>(p.lengths_q.size());
      if (!said("packed")) p.total_q = sum(p.lengths_q);
      if (!said("packed") && p.packed_k()) p.total_k = sum(p.lengths_k);
      if (!said("s")) p.seq_q = longest(p.lengths_q), p.seq_k = longest(p.lengths_k);
    } else if (!p.lengths_k.empty()) {
      if (!said("b")) p.batch = static_cast<std::int64_t>(p.lengths_k.size());
    }
    if (p.paged() && !own_pages) {
      p.max_pages = pages_for(p.seq_k, p.page_size);
      want(!__builtin_mul_overflow(p.batch, p.max_pages, &p.pages), ErrorCode::bad_shape,
           "the number of pages must be at most 2^62");
    }
    const Layout given = p.layout;
    if (has_strides) {
      Problem sizes = p;
      sizes.layout = {};
      validate(sizes);
      set_contiguous(p);
      p.layout.q = given.q, p.layout.k = given.k, p.layout.v = given.v, p.layout.out = given.out;
    } else {
      validate(p);
      bshd ? set_bshd(p) : set_contiguous(p);
    }
    for (const auto& [row, strides] : side_strides) p.layout.*row->layout = strides;
    if (has_strides || !side_strides.empty()) validate(p);
    return p;
  }
};

}  // namespace

Problem parse_problem(std::string_view line) { return parse_problem_on({}, line); }

Problem parse_problem_on(Device device, std::string_view line) {
  Parser parser;
  parser.p.device = device;
  for (std::string_view rest = line; !rest.empty();) {
    const std::size_t from = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
    rest.remove_prefix(from);
    const std::string_view word = first_word(rest);
    rest.remove_prefix(word.size());
    if (word.empty()) break;
    const Word w{word, line};
    const std::size_t equals = word.find('=');
    const bool read =
        equals == word.npos ? parser.plain(w) : parser.keyed(w, word.substr(0, equals), word.substr(equals + 1));
    if (!read) {
      const std::string theirs = foreign_word(word.substr(0, equals), Dialect::line);
      w.fail("a word of the problem grammar (docs/reference/problem.md)", theirs);
    }
    parser.once(w);
  }
  return parser.finish();
}

}  // namespace onepass::inline v0
