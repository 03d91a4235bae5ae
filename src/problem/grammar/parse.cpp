// A line as its problem: docs/reference/problem.md.
#include <algorithm>
#include <vector>

#include "base/shown.hpp"
#include "base/text.hpp"
#include "onepass/error.hpp"
#include "problem/grammar/foreign_words.hpp"
#include "problem/grammar/on.hpp"
#include "problem/grammar/subject.hpp"
#include "problem/grammar/text.hpp"
#include "problem/grammar/words.hpp"
#include "problem/operator.hpp"
#include "problem/problem.hpp"

namespace onepass {
namespace {

std::int64_t longest(const Lengths& v) { return v.empty() ? 0 : *std::max_element(v.begin(), v.end()); }

struct Parser : Reading {
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
      throw Error(ErrorCode::bad_text,
                  text("'", shown(w.word), "' in \"", shown(w.line, 1000), "\" conflicts with '", shown(*first), "'"));
    }
    words.push_back(w.word);
  }

  // A word that the operator has no use for must not be left out in silence.
  void fits_operator() const {
    for (const std::string_view word : words)
      if (!speaks_of(p.op, subject_of(word)))
        throw Error(ErrorCode::bad_text,
                    text(p.op->word, " does not support '", shown(word), "' (docs/reference/problem.md)"));
    if (p.op->parts && (has_strides || !p.mod_buffers.empty()))
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
    if (is_optional(row_of(Role::cache_seqlens), p.op) && !p.slots) p.seqused = true;
    if (!own_out_dtype) p.out_dtype = p.dtype == DType::f8e4m3 ? DType::bf16 : p.dtype;
    if (p.kv_dtype == p.dtype) p.kv_dtype.reset();
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
    if (const auto complete = p.op->complete) {
      std::vector<std::string_view> subjects;
      for (const std::string_view word : words) subjects.push_back(subject_of(word));
      complete(p, subjects);
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
  const std::vector<std::string_view> words = words_in(line);
  for (const std::string_view word : words)  // the names of tensors are the operator's
    if (const auto op = op_named(word)) parser.p.op = *op;
  for (const std::string_view word : words) {
    const Word w{word, line};
    if (!read_word(parser, w)) {
      const std::string theirs = foreign_word(word.substr(0, word.find('=')), Dialect::line);
      w.fail("a word of the problem grammar (docs/reference/problem.md)", theirs);
    }
    parser.once(w);
  }
  return parser.finish();
}

}  // namespace onepass
