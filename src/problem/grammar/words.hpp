// The words of problem lines, a row for each thing that they speak of, in the order of a printed line
// (docs/reference/problem.md).
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "problem/grammar/text.hpp"
#include "problem/grammar/word.hpp"
#include "problem/roles.hpp"

namespace onepass {

// A line that is being read.
struct Reading {
  Problem p;
  Lengths used;  // of a cache
  bool own_out_dtype = false, bshd = false, has_strides = false, own_pages = false, own_lengths_k = false;
  std::vector<std::pair<const RoleRow*, Dims>> side_strides;
};

inline constexpr std::string_view kOthers = "*";  // the row behind which words stand that have no row
inline constexpr const char* kAlone = "=";        // printed: the subject itself

// The words about one subject. Without functions they are those of an option of attention
// (attention/options.hpp), or of a tensor that is given or not (roles.hpp).
struct WordRow {
  std::string_view subject;
  // False: not a word of the grammar. Throws Error about a value.
  bool (*read)(Reading& reading, const Word& word) = nullptr;
  // Words with a blank before each, or "=value" behind the subject; "": none.
  std::string (*print)(const Problem& problem) = nullptr;
};

std::span<const WordRow> word_rows();
// masks, FP8, rotary embedding, slots
bool read_band(Reading& reading, const Word& word);
std::string band_text(const Problem& problem);
bool read_fp8(Reading& reading, const Word& word);
std::string fp8_text(const Problem& problem);
bool read_rotary(Reading& reading, const Word& word);
std::string rotary_text(const Problem& problem);
bool read_slots(Reading& reading, const Word& word);
std::string slots_text(const Problem& problem);
// lengths, pages
bool read_varlen(Reading& reading, const Word& word);
std::string varlen_text(const Problem& problem);
bool read_packed(Reading& reading, const Word& word);
std::string packed_text(const Problem& problem);
bool read_pages(Reading& reading, const Word& word);
std::string pages_text(const Problem& problem);
bool read_used(Reading& reading, const Word& word);
std::string used_text(const Problem& problem);
// layout, strides and align
bool read_layout(Reading& reading, const Word& word);
bool read_side_strides(Reading& reading, const Word& word, const RoleRow& row);
bool read_align(Reading& reading, const Word& word);
std::string layout_text(const Problem& problem);  // all three

// The subject of a word: two words of one line may not speak of the same, but for buffers.
std::string_view subject_of(std::string_view word);
// True if an operator has a use for words of the subject; each tensor's strides are of those that have the tensor.
bool speaks_of(Op op, std::string_view subject);
bool read_word(Reading& reading, const Word& word);  // false: not a word of the grammar

}  // namespace onepass
