// The words of options that are several numbers: masks, FP8, rotary embedding, slots (docs/reference/problem.md).
#include <algorithm>
#include <string>

#include "problem/attention/options.hpp"
#include "problem/grammar/words.hpp"

namespace onepass {

bool read_band(Reading& r, const Word& w) {
  Band& band = r.p.band;
  const auto value = w.value();
  const std::string_view key = w.word.substr(0, w.word.find('='));
  const NamedMask* const mask = mask_named(key);
  if (!mask || (mask->align == Align::offset) != value.has_value()) return false;
  if (mask->causal) band.causal = true;
  band.align = mask->align;
  if (value) band.offset = w.number<std::int64_t>(*value, text(key, "=keys").c_str());
  return true;
}
std::string band_text(const Problem& p) {
  const Band& band = p.band;
  for (const NamedMask& mask : kNamedMasks) {
    if (mask.causal == band.causal && mask.align == band.align)
      return text(" ", mask.name) + (band.align == Align::offset ? "=" + number(band.offset) : "");
  }
  return "";
}

bool read_rotary(Reading& r, const Word& w) {
  constexpr const char* kForm = "rotary=<columns>[:interleaved]";
  const auto value = w.value();
  if (!value) return false;
  const auto [columns, pairs] = w.halves(*value, ':', false, kForm);
  r.p.rotary = true;
  r.p.rotary_dim = w.number<std::int64_t>(columns, kForm);
  r.p.interleaved = pairs.data() != columns.data();
  if (r.p.interleaved && pairs != "interleaved") w.fail(kForm);
  return true;
}

std::string rotary_text(const Problem& p) {
  return p.rotary ? "=" + number(p.rotary_dim) + (p.interleaved ? ":interleaved" : "") : std::string();
}

bool read_slots(Reading& r, const Word& w) {  // slots=dtype of the slots[/of the positions]
  r.p.slots = true;
  if (!w.value()) return w.word == "slots";
  const auto [slots, positions] = w.halves(*w.value(), '/', false, "");
  r.p.slot_dtype = dtype_from_name(slots);
  if (positions.data() != slots.data()) r.p.position_dtype = dtype_from_name(positions);
  return true;
}
std::string slots_text(const Problem& p) {
  if (!p.slots) return "";
  const bool plain = p.position_dtype == DType::i32;
  if (plain && p.slot_dtype == DType::i64) return kAlone;
  return "=" + std::string(name_of(p.slot_dtype)) + (plain ? "" : "/" + std::string(name_of(p.position_dtype)));
}

namespace {

// fp8 is fp8=hadamard
struct Fp8Word {
  std::string_view word;
  bool Fp8Options::* on;
};
constexpr Fp8Word kFp8Words[] = {
    {"hadamard", &Fp8Options::hadamard}, {"by_block", &Fp8Options::by_block}, {"center", &Fp8Options::center}};

}  // namespace

bool read_fp8(Reading& r, const Word& w) {
  const auto value = w.value();
  if (!value && w.word != "fp8") return false;
  Fp8Options& fp8 = r.p.fp8.emplace();
  if (!value || (fp8.hadamard = false, *value == "plain")) return true;
  for (const std::string_view item : w.list(*value, ',')) {
    const auto* const row = std::ranges::find(kFp8Words, item, &Fp8Word::word);
    if (item.starts_with("seed:"))
      fp8.seed = w.number<std::uint64_t>(item.substr(5), "fp8=..,seed:<integer>");
    else if (row != std::end(kFp8Words) && !(fp8.*row->on))
      fp8.*row->on = true;
    else
      w.fail("fp8, fp8=plain, or fp8= with some of hadamard, by_block, center and seed:<integer>, each once");
  }
  return true;
}
std::string fp8_text(const Problem& p) {
  if (!p.fp8) return "";
  if (*p.fp8 == Fp8Options{}) return kAlone;
  std::string words;
  const auto add = [&](const std::string& word) { words += (words.empty() ? "=" : ",") + word; };
  for (const auto& [word, on] : kFp8Words)
    if ((*p.fp8).*on) add(std::string(word));
  if (p.fp8->seed != 0) add("seed:" + number(p.fp8->seed));
  return words.empty() ? "=plain" : words;
}

}  // namespace onepass
