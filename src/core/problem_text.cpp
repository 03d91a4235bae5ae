// The one grammar of problems: printing and parsing. docs/problem.md shows it to users.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/problem_on.hpp"
#include "core/shown.hpp"
#include "onepass/error.hpp"
#include "onepass/problem.hpp"

namespace onepass {
namespace {

using Lengths = std::vector<std::int64_t>;
constexpr char kSpreadLetters[] = "bhqk";

// ------------------------------------------------------------------------------------------------------- printing
template <class T>
std::string number(T x) {  // the shortest text that reads back as x
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, x).ptr};
}

std::string spread_text(const BroadcastDims& s) {
  const bool spans[] = {s.batch, s.heads, s.rows, s.keys};
  std::string out;
  for (int i = 0; i < 4; ++i) out += spans[i] ? kSpreadLetters[i] : '1';
  return out;
}

std::string lengths_text(const Lengths& v) {  // 3,7,128x4
  std::string out;
  for (std::size_t i = 0, n; i < v.size(); i += n) {
    for (n = 1; i + n < v.size() && v[i + n] == v[i];) ++n;
    out += (i ? "," : "") + number(v[i]) + (n > 1 ? "x" + number(n) : "");
  }
  return out;
}

std::string strides_text(const Problem& p) {
  std::string out;
  for (const auto& [name, s] :
       {std::pair{'q', &p.layout.q}, {'k', &p.layout.k}, {'v', &p.layout.v}, {'o', &p.layout.out}}) {
    out += (out.empty() ? "" : ";") + std::string(1, name) + ":" + number((*s)[0]) + "," + number((*s)[1]) + "," +
           number((*s)[2]);
  }
  return out;
}

std::string sizes_text(const ModBuffer& b) {  // 8x127
  if (b.rank < 0 || b.rank > kMaxRank)
    throw Error(ErrorCode::bad_shape,
                text("mod buffer ", b.name, " has ", b.rank, " dimensions; 1 to ", kMaxRank, " are accepted"));
  std::string out;
  for (int i = 0; i < b.rank; ++i) out += (i ? "x" : "") + number(b.shape[i]);
  return out;
}

std::int64_t sum(const Lengths& v) { return std::accumulate(v.begin(), v.end(), std::int64_t{0}); }
std::int64_t longest(const Lengths& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

std::string layout_text(const Problem& p) {
  Problem other = p;
  set_contiguous(other);
  if (other.layout == p.layout) return "";
  set_bshd(other);
  return other.layout == p.layout ? " layout=bshd" : " strides=" + strides_text(p);
}

// -------------------------------------------------------------------------------------------------------- parsing
struct Word {
  std::string_view word, line;

  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(ErrorCode::bad_text,
                text("cannot read '", shown(word), "' in \"", shown(line, 1000), "\": ", expected, " is expected"));
  }
  template <class T>
  T number(std::string_view s, const char* expected) const {
    T x{};
    const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), x);
    if (error != std::errc{} || end != s.data() + s.size()) fail(expected);
    return x;
  }
  // "a<separator>b"; without the separator, b = a (or the word fails if `both`).
  std::pair<std::string_view, std::string_view> halves(std::string_view s, char separator, bool both,
                                                       const char* expected) const {
    const std::size_t at = s.find(separator);
    if (at == s.npos && both) fail(expected);
    return at == s.npos ? std::pair{s, s} : std::pair{s.substr(0, at), s.substr(at + 1)};
  }
  std::pair<std::int64_t, std::int64_t> pair(std::string_view s, char separator, bool both,
                                             const char* expected) const {
    const auto [a, b] = halves(s, separator, both, expected);
    return {number<std::int64_t>(a, expected), number<std::int64_t>(b, expected)};
  }
  std::vector<std::string_view> list(std::string_view s, char separator) const {
    std::vector<std::string_view> out;
    for (std::size_t at; (at = s.find(separator)) != s.npos; s.remove_prefix(at + 1)) out.push_back(s.substr(0, at));
    out.push_back(s);
    return out;
  }
  BroadcastDims spread(std::string_view s) const {
    bool spans[4];
    for (std::size_t i = 0; i < 4; ++i) {
      if (s.size() != 4 || (s[i] != kSpreadLetters[i] && s[i] != '1')) fail("a spread such as bhqk or 11qk");
      spans[i] = s[i] != '1';
    }
    return {spans[0], spans[1], spans[2], spans[3]};
  }
  Lengths lengths(std::string_view s) const {
    // A line of text should not allocate without bound, and sums of lengths must fit.
    constexpr std::int64_t kMax = std::int64_t{1} << 20, kLongest = std::int64_t{1} << 40;
    Lengths out;
    if (s.empty()) return out;
    for (std::string_view item : list(s, ',')) {
      const auto [n, times] = halves(item, 'x', false, "");
      const std::int64_t repeat =
          times.data() == n.data() ? 1 : number<std::int64_t>(times, "lengths such as 3,7,128x4");
      if (repeat < 0 || repeat > kMax - static_cast<std::int64_t>(out.size())) fail("at most 1048576 lengths");
      const std::int64_t length = number<std::int64_t>(n, "lengths such as 3,7,128x4");
      if (length < 0 || length > kLongest) fail("lengths from 0 to 2^40");
      out.insert(out.end(), static_cast<std::size_t>(repeat), length);
    }
    return out;
  }
  ModBuffer buffer(std::string_view s) const {  // table:fp32:8x127
    constexpr const char* kForm = "buffer=name:dtype:sizes, such as buffer=table:fp32:8x127,";
    const auto [name, rest] = halves(s, ':', true, kForm);
    const auto [dtype, sizes] = halves(rest, ':', true, kForm);
    const auto items = list(sizes, 'x');
    if (items.size() > kMaxRank) fail("at most 4 sizes");
    ModBuffer b{std::string(name), dtype_from_name(dtype), static_cast<int>(items.size()), {1, 1, 1, 1}};
    for (std::size_t i = 0; i < items.size(); ++i) b.shape[i] = number<std::int64_t>(items[i], kForm);
    return b;
  }
  std::string expression(std::string_view s) const {  // {score * 2}
    if (s.size() < 2 || s.front() != '{' || s.back() != '}') fail("an expression in braces");
    return std::string(s.substr(1, s.size() - 2));
  }
  Dims strides(std::string_view s) const {
    const auto items = list(s, ',');
    if (items.size() != 3) fail("strides=q:batch,head,token;k:..;v:..;o:..");
    Dims d{0, 0, 0, 1};
    for (int i = 0; i < 3; ++i) d[i] = number<std::int64_t>(items[i], "three integers");
    return d;
  }
};

// What a word says something about: two words of one line may not speak of the same, but for buffers.
std::string_view subject_of(std::string_view word) {
  if (word.starts_with("causal") || word.starts_with("aligned")) return "alignment";
  if (const std::size_t equals = word.find('='); equals != word.npos) {
    const std::string_view key = word.substr(0, equals);
    return key == "strides" ? "layout" : key;
  }
  if (word == "cpu" || word.starts_with("cuda")) return "device";
  if (word == "fp32" || word == "fp16" || word == "bf16" || word == "fp8_e4m3") return "dtype";
  return word.size() > 1 && word[1] >= '0' && word[1] <= '9' ? word.substr(0, 1) : word;
}

// Up to the next blank outside braces.
std::string_view first_word(std::string_view s) {
  std::size_t end = 0;
  for (int open = 0; end < s.size(); ++end) {
    const char c = s[end];
    if (open == 0 && (c == ' ' || c == '\t' || c == '\r' || c == '\n')) break;
    if (c == '{') ++open;
    if (c == '}' && open > 0) --open;
  }
  return s.substr(0, end);
}

struct Parser {
  Problem p;
  bool own_out_dtype = false, bshd = false, has_strides = false;
  std::vector<std::string_view> words;  // so far

  const std::string_view* said(std::string_view subject) const {
    const auto it =
        std::find_if(words.begin(), words.end(), [&](std::string_view word) { return subject_of(word) == subject; });
    return it == words.end() ? nullptr : &*it;
  }

  void once(const Word& w) {
    const std::string_view subject = subject_of(w.word);
    if (subject == "buffer") return;  // each has a name of its own: validate() looks
    if (const std::string_view* first = said(subject)) {
      throw Error(ErrorCode::bad_text, text("'", shown(w.word), "' in \"", shown(w.line, 1000),
                                            "\" is one word too many beside '", shown(*first), "'; one is accepted"));
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
    else if (key == "bias") {
      const auto [dtype, spans] = w.halves(value, ':', true, "bias=dtype:spread, such as bias=fp32:bhqk,");
      p.bias = BiasSpec{dtype_from_name(dtype), w.spread(spans)};
    } else if (key == "out") {
      p.out_dtype = dtype_from_name(value);
      own_out_dtype = true;
    } else if (key == "packed") {
      p.varlen = true;
      std::tie(p.total_q, p.total_k) = w.pair(value, ':', true, "packed=total_q:total_k");
    } else if (key == "varlen") {
      const auto [q, k] = w.halves(value, '/', false, "");
      p.varlen = true;
      p.lengths_q = w.lengths(q);
      p.lengths_k = w.lengths(k);
      if (p.lengths_q.size() != p.lengths_k.size()) w.fail("as many lengths of k as of q");
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
    if (s == "fwd")
      p.op = Op::forward;
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
      case 'b': p.batch = w.number<std::int64_t>(value, "b<batch>"); return true;
      case 'h':
        std::tie(p.heads_q, p.heads_kv) = w.pair(value, '/', false, "h<query heads>[/<K/V heads>]");
        return true;
      case 's': std::tie(p.seq_q, p.seq_k) = w.pair(value, 'x', false, "s<queries>[x<keys>]"); return true;
      case 'd': std::tie(p.dim_qk, p.dim_v) = w.pair(value, '/', false, "d<dim of q and k>[/<dim of v>]"); return true;
      default: return false;
    }
  }

  Problem finish() {
    if (!own_out_dtype) p.out_dtype = p.dtype;
    if (!p.lengths_q.empty()) {
      // What the line says itself must hold them: validate() looks.
      if (!said("b")) p.batch = static_cast<std::int64_t>(p.lengths_q.size());
      if (!said("packed")) p.total_q = sum(p.lengths_q), p.total_k = sum(p.lengths_k);
      if (!said("s")) p.seq_q = longest(p.lengths_q), p.seq_k = longest(p.lengths_k);
    }
    validate(p);
    if (has_strides) return p;
    bshd ? set_bshd(p) : set_contiguous(p);
    return p;
  }
};

}  // namespace

std::string to_string(const Problem& p) {
  const auto pair = [](std::int64_t a, std::int64_t b, char separator) {
    return number(a) + (a == b ? "" : separator + number(b));
  };
  std::string s = "fwd b" + number(p.batch) + " h" + pair(p.heads_q, p.heads_kv, '/') + " s" +
                  pair(p.seq_q, p.seq_k, 'x') + " d" + pair(p.dim_qk, p.dim_v, '/') + " " +
                  std::string(name_of(p.dtype));
  if (p.out_dtype != p.dtype) s += " out=" + std::string(name_of(p.out_dtype));
  if (p.band.align == Align::offset)
    s += (p.band.causal ? " causal_offset=" : " aligned_offset=") + number(p.band.offset);
  else if (p.band.causal)
    s += p.band.align == Align::top_left ? " causal_top_left" : " causal_bottom_right";
  else if (p.band.align == Align::top_left)
    s += " aligned_top_left";
  if (p.band.left != -1 || p.band.right != -1) s += " window=" + number(p.band.left) + ":" + number(p.band.right);
  if (p.scale) s += " scale=" + number(*p.scale);
  if (p.softcap > 0) s += " softcap=" + number(p.softcap);
  if (p.bias) s += " bias=" + std::string(name_of(p.bias->dtype)) + ":" + spread_text(p.bias->spans);
  if (p.bool_mask) s += " mask=" + spread_text(*p.bool_mask);
  if (p.alibi) s += " alibi";
  if (!p.score_mod.empty()) s += " score_mod={" + p.score_mod + "}";
  if (!p.mask_mod.empty()) s += " mask_mod={" + p.mask_mod + "}";
  for (const ModBuffer& b : p.mod_buffers)
    s += " buffer=" + b.name + ":" + std::string(name_of(b.dtype)) + ":" + sizes_text(b);
  if (p.sinks) s += " sinks";
  if (p.dropout_p > 0) s += " dropout=" + number(p.dropout_p);
  if (p.seed) s += " seed=" + number(p.seed);
  if (p.want_lse) s += " lse";
  if (p.varlen && !p.lengths_q.empty()) {
    s += " varlen=" + lengths_text(p.lengths_q) + (p.lengths_k == p.lengths_q ? "" : "/" + lengths_text(p.lengths_k));
  }
  if (p.varlen && (p.lengths_q.empty() || sum(p.lengths_q) != p.total_q || sum(p.lengths_k) != p.total_k)) {
    s += " packed=" + number(p.total_q) + ":" + number(p.total_k);
  }
  s += layout_text(p);
  if (p.device.kind == DeviceKind::cuda) s += " " + to_string(p.device);
  return s;
}

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
    if (!read) w.fail("a word of the problem grammar (docs/problem.md)");
    parser.once(w);
  }
  return parser.finish();
}

}  // namespace onepass
