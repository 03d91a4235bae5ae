// Pages, and the choice of the rows of each step: single tokens with their drafts first, then chunks of prompts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "drafts.hpp"

namespace engine {

struct Sequence {
  Ints tokens;  // the prompt and the tokens that were chosen
  std::size_t prompt, wanted;
  Ints pages{};
  std::size_t cached = 0;  // tokens whose keys and values are in the pages
  Numbers logits{};        // of the tokens that were chosen

  std::size_t length() const { return prompt + wanted; }
  bool finished() const { return tokens.size() == length(); }
  std::int64_t slot(std::size_t position, std::size_t page_size) const {  // of a token in the pool
    return pages[position / page_size] * static_cast<std::int64_t>(page_size) +
           static_cast<std::int64_t>(position % page_size);
  }
};

// The rows of a sequence in a step: `own` of its tokens from `cached` on, then drafts of the tokens that may follow.
struct Rows {
  Sequence* of;
  std::size_t own;
  Drafts drafts{};
  std::size_t count() const { return own + drafts.size(); }
};

// The keys and values of an accepted draft go from one slot of the pool to another.
struct Move {
  std::int64_t from, to;
};

class Scheduler {
 public:
  explicit Scheduler(const Limits& limits) : limits_(limits), free_(limits.pages) {
    if (limits.rows == 0 || limits.page_size == 0) throw std::invalid_argument("rows and page size must be at least 1");
    if (limits.drafts > 64) throw std::invalid_argument("drafts must be at most 64, the largest tree");
    std::iota(free_.begin(), free_.end(), 0);
  }
  void add(Sequence& s) {
    if (pages_of(s) > limits_.pages) throw std::invalid_argument("the pool is smaller than one sequence");
    waiting_.push_back(&s);
  }
  bool idle() const { return waiting_.empty() && running_.empty(); }
  std::size_t free_pages() const { return free_.size(); }
  std::size_t drafted() const { return drafted_; }
  std::size_t accepted() const { return accepted_; }

  // Sequences join while there are pages for all that they will be. A sequence without room
  // in this step has no rows in it.
  std::vector<Rows> next() {
    while (!waiting_.empty() && pages_of(*waiting_.front()) <= free_.size()) {
      Sequence& s = *waiting_.front();
      waiting_.pop_front();
      const auto first = free_.end() - static_cast<std::ptrdiff_t>(pages_of(s));
      s.pages.assign(first, free_.end());
      free_.erase(first, free_.end());
      running_.push_back(&s);
    }
    std::vector<Rows> step;
    std::size_t room = limits_.rows;
    for (const bool single : {true, false}) {
      for (Sequence* s : running_) {
        const std::size_t left = s->tokens.size() - s->cached, own = std::min(left, room);
        if ((left == 1) != single || own == 0) continue;
        room -= own;
        step.push_back({s, own});
      }
    }
    for (Rows& r : step) {
      if (r.of->cached + r.own < r.of->tokens.size()) continue;  // the middle of a prompt
      const std::size_t most = std::min({limits_.drafts, room, r.of->length() - r.of->tokens.size() - 1});
      r.drafts = Drafts::of(r.of->tokens, most, limits_.branches);
      room -= r.drafts.size();
      drafted_ += r.drafts.size();
    }
    return step;
  }

  // Chooses tokens by the logits [rows][words] of the step: from the last own row down the tree, as long as a child
  // holds the token that its parent chose. The drafts on that way become the next tokens of the text; their keys move
  // to where they would be without the others. Keys of other drafts are behind the sequence's end, and are overwritten.
  std::vector<Move> take(const std::vector<Rows>& step, const Numbers& logits) {
    std::vector<Move> moves;
    const float* row = logits.data();
    for (const Rows& r : step) {
      Sequence& s = *r.of;
      const float* const own = row + r.own * kWords;
      row += r.count() * kWords;
      s.cached += r.own;
      if (s.cached < s.tokens.size()) continue;
      const std::size_t first = s.cached;  // the place of draft 0
      for (std::int32_t at = -1;;) {
        const float* const last = own + at * kWords;
        s.tokens.push_back(static_cast<std::int32_t>(std::max_element(last, last + kWords) - last));
        s.logits.insert(s.logits.end(), last, last + kWords);
        at = r.drafts.child(at, s.tokens.back());
        if (s.finished() || at < 0) break;
        const std::size_t place = first + static_cast<std::size_t>(at);
        if (place != s.cached) moves.push_back({s.slot(place, limits_.page_size), s.slot(s.cached, limits_.page_size)});
        s.cached += 1;
        accepted_ += 1;
      }
      if (s.finished()) free_.insert(free_.end(), s.pages.begin(), s.pages.end());
    }
    std::erase_if(running_, [](const Sequence* s) { return s->finished(); });
    return moves;
  }

 private:
  std::size_t pages_of(const Sequence& s) const { return (s.length() + limits_.page_size - 1) / limits_.page_size; }

  Limits limits_;
  Ints free_;
  std::deque<Sequence*> waiting_;
  std::vector<Sequence*> running_;
  std::size_t drafted_ = 0, accepted_ = 0;
};

}  // namespace engine
