// Reads expressions: a grammar of C++'s operators by recursive descent.
#include "expression/expression.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "expression/check_mods.hpp"
#include "expression/names.hpp"
#include "expression/steps.hpp"

namespace onepass {
namespace {

class Reader : Steps {
 public:
  Reader(ModKind kind, std::string_view source, std::span<const ModBuffer> buffers)
      : Steps(kind == ModKind::score ? "score_mod" : "mask_mod", source), kind_(kind), buffers_(buffers) {}

  Expression read() {
    Value result = ternary();
    next_token();
    if (!token().empty()) fail("an operator or the end is expected");
    if (kind_ == ModKind::mask && result.type != ExprType::boolean) {
      const char* const type = result.type == ExprType::number ? "a float" : "an int";
      certain_ = true;
      tokens_.fail_at(0, text("a mask_mod must be a bool, such as q_index >= k_index (got ", type, ")"));
    }
    result = kind_ == ModKind::score ? number(result) : result;
    return finish(result);
  }

  // True of a text that is wrong in every backend.
  bool certain() const { return certain_; }

 private:
  [[noreturn]] void fail(const std::string& what) const { tokens_.fail(what); }
  [[noreturn]] void fail_anywhere(const std::string& what) {
    certain_ = true;
    fail(what);
  }
  std::string_view token() const { return tokens_.token(); }
  void next_token() { tokens_.next(); }
  bool accept(std::string_view wanted) { return tokens_.accept(wanted); }
  void want(std::string_view wanted) { tokens_.want(wanted); }

  // ---------------------------------------------------------------------------------------------------- grammar
  struct Deeper {
    Reader& reader;
    explicit Deeper(Reader& r) : reader(r) {
      if (++reader.depth_ > kMaxModDepth)  // the reader recurses
        reader.fail(text("expressions must be nested at most ", kMaxModDepth, " deep"));
    }
    ~Deeper() { --reader.depth_; }
  };

  Value ternary() {
    const Deeper deeper(*this);
    Value condition = binary(0);
    if (!accept("?")) return condition;
    condition = boolean(condition);
    Value then = ternary();
    want(":");
    Value otherwise = ternary();
    ExprType type = then.type;
    if (then.type != otherwise.type) type = common(then, otherwise);
    return make(ExprCode::select, type, type, {condition.id, then.id, otherwise.id});
  }

  Value binary(int level) {
    if (level == kLevels) return unary();
    Value left = binary(level + 1);
    for (;;) {
      next_token();
      tokens_.put_back();
      const auto* op = std::find_if(std::begin(kModOperators), std::end(kModOperators),
                                    [&](const ModOperator& o) { return o.text == token() && o.level == level; });
      if (op == std::end(kModOperators)) return left;
      const std::size_t at = tokens_.column();
      const std::string_view sign = token();
      next_token();
      Value right = binary(level + 1);
      left = combine(*op, left, right, sign, at);
    }
  }

  Value combine(const ModOperator& op, Value left, Value right, std::string_view sign, std::size_t at) {
    if (op.level <= 1) {  // without side effects, && and || need not stop early
      left = boolean(left);
      right = boolean(right);
      return make(op.code, ExprType::boolean, ExprType::integer, {left.id, right.id});
    }
    const bool of_bits = op.level >= 2 && op.level <= 4;
    if (of_bits && left.type == ExprType::boolean && right.type == ExprType::boolean)  // 0 or 1, as C++'s int
      return make(op.code, ExprType::boolean, ExprType::integer, {left.id, right.id});
    const ExprType type = common(left, right);
    const bool integers_only = op.level <= 4 || op.level == 7 || op.code == ExprCode::remainder;
    if (integers_only && type == ExprType::number)
      tokens_.fail_at(at, text("'", sign, "' requires integers; int(...) converts"));
    if (op.level == 5 || op.level == 6) {
      if (sign[0] == '>') std::swap(left, right);
      return make(op.code, ExprType::boolean, type, {left.id, right.id});
    }
    return make(op.code, type, type, {left.id, right.id});
  }

  Value unary() {
    const Deeper deeper(*this);
    if (accept("+")) return promoted(unary());
    if (accept("-")) {
      const Value v = promoted(unary());
      return make(ExprCode::negate, v.type, v.type, {v.id});
    }
    if (accept("!")) {
      const Value v = boolean(unary());
      return make(ExprCode::equal, ExprType::boolean, ExprType::integer, {v.id, literal(ExprType::integer, 0, 0).id});
    }
    if (accept("~")) {
      const Value v = promoted(unary());
      if (v.type == ExprType::number) fail("'~' requires an integer; int(...) converts");
      return make(ExprCode::bit_xor, ExprType::integer, ExprType::integer,
                  {v.id, literal(ExprType::integer, 0, -1).id});
    }
    return primary();
  }

  Value convert(std::string_view type, Value v) {
    return type == "float" ? number(v) : type == "int" ? integer(v) : boolean(v);
  }
  static bool is_type(std::string_view word) { return word == "float" || word == "int" || word == "bool"; }

  Value primary() {
    next_token();
    if (token().empty()) fail("a value is expected");
    if (is_digit(token()[0]) || (token()[0] == '.' && token().size() > 1)) return number_token();
    if (token() == "(") {
      next_token();
      if (is_type(token())) {  // (float)x
        const std::string_view type = token();
        const Tokens at_type = tokens_;
        if (accept(")")) return convert(type, unary());
        tokens_ = at_type;  // (float(x) + 1)
      }
      tokens_.put_back();
      const Value v = ternary();
      want(")");
      return v;
    }
    if (!is_letter(token()[0])) fail("a value is expected");
    return name();
  }

  Value number_token() {
    const std::string_view whole = token();
    const bool hex = whole.size() > 2 && whole[0] == '0' && (whole[1] == 'x' || whole[1] == 'X');
    if (hex || std::all_of(whole.begin(), whole.end(), is_digit)) {
      if (!hex && whole.size() > 1 && whole[0] == '0') fail("a leading 0 makes a number octal in C++; remove it");
      std::int32_t x = 0;
      const std::string_view digits = whole.substr(hex ? 2 : 0);
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), x, hex ? 16 : 10);
      if (error == std::errc::result_out_of_range) fail("integers must fit in 32 bits");
      if (error != std::errc{} || end != digits.data() + digits.size()) fail("a number is expected");
      return literal(ExprType::integer, 0, x);
    }
    std::string_view digits = whole;
    if (digits.back() == 'f' || digits.back() == 'F') digits.remove_suffix(1);
    float x = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), x);
    if (error == std::errc::result_out_of_range) fail("numbers must be in the range of a float");
    const bool fraction = digits.find_first_of(".eE") != digits.npos;
    if (error != std::errc{} || end != digits.data() + digits.size() || !fraction)
      fail("a number such as 2, 0.5f or 1e-3 is expected");
    return literal(ExprType::number, x, 0);
  }

  Value name() {
    const std::string_view word = token();
    if (word == "true" || word == "false") return literal(ExprType::boolean, 0, word == "true");
    if (word == "INFINITY") return literal(ExprType::number, std::numeric_limits<float>::infinity(), 0);
    if (is_type(word)) {
      want("(");
      const Value v = ternary();
      want(")");
      return convert(word, v);
    }
    if (word == "score" && kind_ == ModKind::score) return input(ExprCode::score, ExprType::number, kByBoth);
    if (word == "batch") return input(ExprCode::batch, ExprType::integer, kSame);
    if (word == "head") return input(ExprCode::head, ExprType::integer, kByLane);
    if (word == "q_index") return input(ExprCode::q_index, ExprType::integer, kByLane);
    if (word == "k_index") return input(ExprCode::k_index, ExprType::integer, kByKey);
    for (const ModFunction& f : kModFunctions)
      if (f.name == word || (f.numbers && word.back() == 'f' && f.name == word.substr(0, word.size() - 1)))
        return call(f);
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (buffers_[i].name == word) return element(i);
    if (word == "torch") foreign();
    if (const std::string hint = foreign_name(word); !hint.empty()) fail_anywhere(hint);
    std::string known = kind_ == ModKind::score ? "score, " : "";
    for (const std::string_view n : kIndices) known += std::string(n) + ", ";
    for (const ModBuffer& b : buffers_) known += b.name + ", ";
    fail(word == "score" ? "a mask_mod does not support score; the known names are " + known +
                               "and functions such as min, abs and tanh"
                         : "the known names are " + known + "and functions such as min, abs and tanh");
  }

  // A function of torch's; `torch` is in hand.
  [[noreturn]] void foreign() {
    const std::size_t at = tokens_.column();
    if (accept(".")) next_token();
    const auto is_ours = [&](const ModFunction& f) { return f.name == token(); };
    certain_ = true;
    const std::string hint = foreign_function(token(), std::ranges::any_of(kModFunctions, is_ours));
    tokens_.fail_at(at, text("'torch': ", hint));
  }

  std::vector<Value> arguments(std::string_view open, std::string_view close, std::size_t count,
                               const std::string& of) {
    want(open);
    std::vector<Value> values;
    do values.push_back(ternary());
    while (accept(","));
    if (values.size() != count)
      fail(text(of, " requires ", count, count == 1 ? " argument" : " arguments", " (got ", values.size(), ")"));
    want(close);
    return values;
  }

  Value call(const ModFunction& f) {
    std::vector<Value> v = arguments("(", ")", static_cast<std::size_t>(f.arguments), std::string(f.name));
    for (Value& x : v) x = f.numbers ? number(x) : promoted(x);
    ExprType type = v[0].type;
    if (f.arguments == 2) {
      type = common(v[0], v[1]);
      return make(f.code, type, type, {v[0].id, v[1].id});
    }
    return make(f.code, type, type, {v[0].id});
  }

  Value element(std::size_t buffer) {
    const ModBuffer& b = buffers_[buffer];
    const bool brackets = tokens_.next_is("["), bare = !brackets && !tokens_.next_is("(");
    std::vector<Value> at;
    if (bare && is_single(b))
      at = {literal(ExprType::integer, 0, 0)};
    else
      at = arguments(brackets ? "[" : "(", brackets ? "]" : ")", static_cast<std::size_t>(b.rank),
                     text("buffer ", b.name, " of rank ", b.rank));
    ExprStep step;
    step.code = ExprCode::load;
    step.operands = ExprType::integer;
    step.integer = static_cast<std::int32_t>(buffer);
    if (b.dtype == DType::i32) step.type = ExprType::integer;
    if (b.dtype == DType::boolean) step.type = ExprType::boolean;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (at[i].type == ExprType::number)
        fail(text("an index of ", b.name, " must be an integer (got a float); int(...) converts"));
      step.operand[i] = at[i].id;
    }
    return push(step);
  }

  ModKind kind_;
  std::span<const ModBuffer> buffers_;
  int depth_ = 0;
  bool certain_ = false;
};

}  // namespace

Expression read_expression(ModKind kind, std::string_view source, std::span<const ModBuffer> buffers) {
  return Reader(kind, source, buffers).read();
}

void check_mods(const Attention& a, std::span<const ModBuffer> buffers) {
  for (const auto& [kind, source] : {std::pair{ModKind::score, &a.score_mod}, {ModKind::mask, &a.mask_mod}}) {
    if (source->empty()) continue;
    Reader reader(kind, *source, buffers);
    try {
      (void)reader.read();
    } catch (const Error&) {
      if (reader.certain()) throw;
    }
  }
}

Mods mods_of(const Attention& a, std::span<const ModBuffer> buffers) {
  Mods mods;
  if (!a.score_mod.empty()) mods.score = read_expression(ModKind::score, a.score_mod, buffers);
  if (!a.mask_mod.empty()) mods.mask = read_expression(ModKind::mask, a.mask_mod, buffers);
  return mods;
}

}  // namespace onepass
