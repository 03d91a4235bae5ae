// The units of a task, one after the other.
namespace onepass::cpu::amx {
namespace {

struct Unit {
  int block = 0;
  std::int64_t key = 0;  // first key, a multiple of kGroup
  int keys = 0;          // a multiple of kGroup; 0: no unit
  bool first = false;    // of its row block, or of a split
  bool joins = false;    // first of a split, after others
};

// Walks blocks of kKeys keys, inside them the row blocks, and leaves out what is visible to no row.
class Units {
 public:
  explicit Units(const AttendTask& t) : t_(t) {
    key_ = t.scratch.blocks[0].first;
    for (int b = 0; b < t.blocks; ++b) {
      key_ = t.scratch.blocks[b].first < key_ ? t.scratch.blocks[b].first : key_;
      end_ = t.scratch.blocks[b].last > end_ ? t.scratch.blocks[b].last : end_;
    }
    key_ = key_ / kKeys * kKeys;
  }
  Unit next() {
    for (; key_ < end_; key_ += kKeys, block_ = 0) {
      while (block_ < t_.blocks) {
        const RowBlock& rows = t_.scratch.blocks[block_++];
        const std::int64_t from = rows.first > key_ ? rows.first / kGroup * kGroup : key_;
        const std::int64_t to = rows.last < key_ + kKeys ? round_up(rows.last, kGroup) : key_ + kKeys;
        if (rows.first < rows.last && from < to) {
          const bool joins = t_.joins && from > rows.first && key_ % kJoinKeys == 0;
          return {block_ - 1, from, static_cast<int>(to - from), joins || from <= rows.first, joins};
        }
      }
    }
    return {};
  }

 private:
  const AttendTask& t_;
  std::int64_t key_ = 0, end_ = 0;
  int block_ = 0;
};

}  // namespace
}  // namespace onepass::cpu::amx
