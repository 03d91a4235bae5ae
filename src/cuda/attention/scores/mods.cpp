#include "cuda/attention/scores/mods.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <type_traits>

#include "expression/check_mods.hpp"
#include "expression/tokens.hpp"

namespace onepass::cuda {
namespace {

// A number with a fraction and no suffix is a double in C++; here it is a float, as on the CPU: 64-bit arithmetic is up
// to 64 times slower on a GPU. With `real` for the type: what is cast to a dual number keeps its derivative. C++20 has
// no t[i, j]: it becomes t(i, j). A buffer of one element may be named alone: it becomes t(0).
std::string translated(const std::string& source, const Problem& p, std::string_view real = "float") {
  std::string out, brackets;  // what closes those that are open
  std::size_t done = 0;
  Tokens tokens("", source);
  const ModBuffer* buffer = nullptr;  // whose name was the last word
  for (tokens.next(); !tokens.token().empty(); tokens.next()) {
    const std::string_view t = tokens.token();
    const std::size_t end = tokens.column() + t.size();
    const bool single = buffer && is_single(*buffer) && t != "[" && t != "(";
    out.append(single ? "(0)" : "").append(source, done, tokens.column() - done);
    done = end;
    if (t == "[") brackets += buffer && buffer->rank > 1 ? ')' : ']';
    if (t == "[" && brackets.back() == ')')
      out += '(';
    else if (t == "]" && !brackets.empty())
      out += brackets.back();
    else
      out.append(t == "float" ? real : t);
    if (t == "]" && !brackets.empty()) brackets.pop_back();
    const auto found = std::ranges::find(p.mod_buffers, t, &ModBuffer::name);
    buffer = found != p.mod_buffers.end() ? &*found : nullptr;
    const bool number = is_digit(t[0]) || (t[0] == '.' && t.size() > 1),
               hex = t.starts_with("0x") || t.starts_with("0X");
    if (number && !hex && t.find_first_of(".eE") != t.npos && (is_digit(t.back()) || t.back() == '.')) out += 'f';
  }
  return out.append(buffer && is_single(*buffer) ? "(0)" : "").append(source, done);
}

// The user's lines stand alone, under their own numbers; only the last has the end of the function behind it.
std::string function_text(const std::string& head, const char* name, const std::string& source, const Problem& p,
                          std::string_view real = "float") {
  std::string s = head +
                  "[[maybe_unused]] i32 batch, [[maybe_unused]] i32 head, [[maybe_unused]] i32 q_index, "
                  "[[maybe_unused]] i32 k_index, [[maybe_unused]] const ModBufferView* buffers_) {\n";
  for (std::size_t i = 0; i < p.mod_buffers.size(); ++i) {
    const ModBuffer& b = p.mod_buffers[i];
    s += text("[[maybe_unused]] const Buffer<", element_text(b.dtype), ", ", b.rank, "> ", b.name, "{buffers_[", i,
              "]};\n");
  }
  return s + text("return\n#line 1 \"", name, "\"\n", translated(source, p, real), " ;}\n");
}

}  // namespace

const char* element_text(DType t) {
  switch (t) {
    case DType::f16: return "F16";
    case DType::bf16: return "Bf16";
    case DType::i32: return "Int32";
    case DType::boolean: return "Bool";
    default: return "F32";
  }
}

std::string mods_source(const Problem& p, int derivatives) {
  if (p.score_mod.empty() && p.mask_mod.empty()) return {};
  std::string s = p.score_mod.empty() ? "" : "#define ONEPASS_SCORE_MOD\n";
  s += p.mask_mod.empty() ? "" : "#define ONEPASS_MASK_MOD\n";
  if (p.score_mod.empty()) derivatives = 0;
  constexpr const char *kFiles[] = {"mods", "dual", "curve"}, *kReals[] = {"float", "Dual", "Curve"},
                       *kMarks[] = {"", "#define ONEPASS_SCORE_DERIVATIVE\n", "#define ONEPASS_SCORE_CURVE\n"};
  s += text(kMarks[derivatives], "#include \"cuda/attention/scores/", kFiles[derivatives],
            ".cuh\"\nnamespace onepass::user {\n");
  if (!p.score_mod.empty())
    s += function_text("DEV float score_mod([[maybe_unused]] float score, ", "score_mod", p.score_mod, p);
  if (derivatives > 0) {
    const std::string real = kReals[derivatives];
    s += function_text(text("DEV ", real, " score_mod([[maybe_unused]] ", real, " score, "), "score_mod", p.score_mod,
                       p, real);
  }
  if (!p.mask_mod.empty()) s += function_text("DEV bool mask_mod(", "mask_mod", p.mask_mod, p);
  return s + "}\n";
}

std::string mods_key(const Problem& p) {
  if (p.score_mod.empty() && p.mask_mod.empty()) return {};
  std::string key = p.score_mod + '\0' + p.mask_mod;
  for (const ModBuffer& b : p.mod_buffers) {
    key += '\0' + b.name + '\0';
    key += static_cast<char>('0' + static_cast<int>(b.dtype));
    key += static_cast<char>('0' + (is_single(b) ? 0 : b.rank));
  }
  return key;
}

static_assert(std::extent_v<decltype(AttentionParams::mod_buffers)> == kMaxModBuffers);

void fill_mod_buffers(const Tensors& a, ModBufferView* views) {
  for (std::size_t i = 0; i < a.mod_buffers.size(); ++i) {
    const ConstTensor& t = a.mod_buffers[i].tensor;
    views[i].data = t.data;
    for (int d = 0; d < kMaxRank; ++d) {
      views[i].stride[d] = t.stride[d];
      views[i].last[d] = static_cast<int>(t.shape[d] - 1);
    }
  }
}

}  // namespace onepass::cuda
