// The work as a line, and how CTAs share it.
//
// A group is the rows of one K/V head of one sequence, or of `co_scheduled` heads: neighbouring CTAs have the same
// segments, a head each, and read the same pages at the same time. Where a kernel has blocks of kRows rows
// (kRowBlocks), a group is `co_scheduled` of these blocks, and the keys that one of them reads are in L2 for the
// others. A group's work is the tiles of keys that any of the head's rows sees. All groups' tiles in order, or runs of
// kStepTiles of them, are the steps of a line, which is cut into as many equal parts as there are CTAs; or every
// group's steps are (DecodeParams::splits), where that leaves few multiprocessors without work. So a block works on
// segments: runs of steps of one group. A group that several blocks work on has partial results, which the last of them
// merges. With pieces of kPieceSteps steps, a segment is one of them, and a block has those whose middles are in its
// part. Where there are enough blocks for all pieces, each has one: a short piece then counts as a whole one.
//
// Blocks of rows with keys of their own (kOwnBlocks) are whole for a CTA: a step for each piece, or without pieces one
// segment. They come in rounds of one for each CTA, every other round in reverse, and those of a sequence that see most
// keys first.
//
// The constants of a kernel stand before this text: decode_tile.cuh or tile.cuh.
#pragma once
#include "cuda/decode/partition/groups.cuh"

namespace onepass::decode {

// Called by whole warps.
struct Line {
  const DecodeParams& p;
  i32 steps, blocks;  // of all groups; that share them, co-scheduled CTAs counted as one
  i32 span;           // steps that are cut into parts for themselves: a group's, or all
  i32 parts;          // of a span: blocks
  i32 each, rest;     // steps of a part; how many parts have one more
  Group pattern{};    // of sequences of one length

  DEV explicit Line(const DecodeParams& params) : p(params) {
    if constexpr (kOwnBlocks) {
      steps = row_blocks_of_head() * p.groups;
      blocks = span = parts = each = rest = 0;
      return;
    }
    if constexpr (kLengthsVary) {
      pattern.set_granule(kPieceSteps);
      steps = sequences().all();
      if (kHasGranule && steps > p.blocks * kPieceSteps) pattern.set_granule(1), steps = sequences().all();
    } else {
      take_lengths(p, pattern);
      if constexpr (kPieceSteps > 1) pattern.steps = p.steps;
      steps = (pattern.steps + lead_of(p)) * p.groups * p.batch;
    }
    if constexpr (kPieceSteps > 1) {
      const i32 most = (steps + (kPieceSteps - 1) * p.batch * p.groups) / kPieceSteps;  // pieces
      blocks = pattern.granule() > 1 ? steps / kPieceSteps : kLengthsVary ? min(most, p.blocks) : p.blocks;
      span = steps, parts = max(blocks, 1);
      each = span / parts, rest = span - each * parts;
    } else if (cut_evenly(p)) {
      blocks = p.blocks, span = pattern.steps, parts = p.splits;
      each = p.each, rest = p.rest;
    } else {
      blocks = min(max(steps * kStepTiles / p.min_tiles, p.batch * p.groups), blocks_beside(p.blocks));
      span = steps, parts = max(blocks, 1);
      each = span / parts, rest = span - each * parts;
    }
  }
  // A copy in shared memory, for callers without registers for it.
  struct Stored {
    u32 at;
  };
  DEV Line(const DecodeParams& params, Stored from) : p(params) {
    load_four(from.at, steps, blocks, span, parts);
    each = load_word(from.at + 16), rest = load_word(from.at + 20);
    if constexpr (!kLengthsVary) take_lengths(p, pattern);
  }
  DEV void store(Stored to) const {
    store_four(to.at, steps, blocks, span, parts);
    store_word(to.at + 16, each), store_word(to.at + 20, rest);
  }
  DEV SequenceParts<StepsOfSequence> sequences() const { return {{p, pattern}, p.batch}; }
  DEV i32 begin_of(i32 block) const {
    if (block >= blocks) return steps;
    const i32 spans = cut_evenly(p) ? p.by_splits(block) : 0, part = block - spans * parts;
    return spans * span + part * each + min(part, rest);
  }
  // A block's first segment, and the end of its steps.
  DEV Segment open(i32 block, i32& end) const {
    if constexpr (kOwnBlocks) {
      end = 0x7fffffff;
      return own_block(block);
    }
    if constexpr (kPieceSteps == 1) {
      end = begin_of(block + 1);
      return first(begin_of(block), end);
    }
    const i32 from = begin_of(block);
    end = begin_of(block + 1);
    if (from >= steps) return {};
    Group g = group_of(from);
    const i32 step = whole_pieces(g, from);
    if (end < steps) end = whole_pieces(end <= g.end() ? g : group_of(end), end);
    if (step >= end) return {};
    return segment(step == g.end() ? after(g) : g, step, end);
  }
  // A group's pieces from a block's first one up to this one of the block.
  DEV i32 pieces_up_to(const Segment& s, i32 block) const {
    const i32 from = begin_of(block);
    const i32 own = from <= s.group.step ? s.group.step : whole_pieces(s.group, from);
    return (s.step - own) / kPieceSteps + 1;
  }
  // The blocks that work on a group, and how many; with pieces some may have none of it.
  DEV i32 first_block(const Group& g) const {
    if constexpr (kPieceSteps > 1) return block_of(middle(g, 0));
    return cut_evenly(p) ? g.number * parts : block_of(g.step);
  }
  DEV i32 blocks_of(const Group& g) const {
    return cut_evenly(p) ? parts : block_of(g.end() - 1) - block_of(g.step) + 1;
  }
  DEV Group group_of(i32 step) const {
    Group g = pattern;
    if constexpr (kLengthsVary) {
      const i32 in = sequences().find(step, g.batch);
      take_lengths(p, g);
      const i32 all = g.steps + lead_of(p);
      g.head = in / all;
      g.step = step - in + g.head * all + lead_of(p);
    } else {
      g.number = p.by_steps(step);
      g.step = g.number * (g.steps + lead_of(p)) + lead_of(p);
      g.batch = p.by_heads(g.number);
      g.head = g.number - g.batch * p.groups;
    }
    g.number = g.batch * p.groups + g.head;
    return g;
  }
  DEV Group group(i32 number) const {
    Group g = pattern;
    g.number = number;
    g.batch = p.by_heads(number);
    g.head = number - g.batch * p.groups;
    if constexpr (kLengthsVary) {
      take_lengths(p, g);
      g.step = SequenceParts<StepsOfSequence>{{p}, g.batch}.all() + g.head * (g.steps + lead_of(p)) + lead_of(p);
    } else {
      g.step = number * (g.steps + lead_of(p)) + lead_of(p);
    }
    return g;
  }
  DEV Group after(Group g) const {
    g.step = g.end() + lead_of(p);
    ++g.number;
    if (++g.head < p.groups) return g;
    g.head = 0;
    ++g.batch;
    if constexpr (kLengthsVary) {
      if (g.batch < p.batch) take_lengths(p, g);
    }
    if constexpr (features.shared()) {  // sequences without rows of this kernel are not on the line
      while (g.batch < p.batch && is_left_out(g)) {
        if (++g.batch < p.batch) take_lengths(p, g);
      }
      g.number = g.batch * p.groups;
    }
    return g;
  }

  // The segment from step `at` on, for a CTA whose steps end at `end`. A group's lead steps come before its own; a
  // split inside them counts as one before its first step.
  DEV Segment segment(const Group& group, i32 at, i32 end) const {
    const i32 step = max(at, group.step), most = kPieceSteps > 1     ? min(kPieceSteps, group.end() - step)
                                                 : config.piece != 0 ? 1
                                                                     : group.end() - step;
    return {group, step, max(min(most, end - step), 0)};
  }
  DEV Segment first(i32 step, i32 end) const { return step < end ? segment(group_of(step), step, end) : Segment{}; }
  DEV Segment next(const Segment& s, i32 end) const {
    if constexpr (kOneSegment) return {};
    const i32 step = s.step + s.steps;
    if constexpr (kOwnBlocks) return step < s.group.steps ? Segment{s.group, step, 1} : next_block(s.group);
    return step < end ? segment(step == s.group.end() ? after(s.group) : s.group, step, end) : Segment{};
  }
  // kOwnBlocks: this CTA's block of the round after that of g.
  DEV Segment next_block(const Group& g) const {
    const i32 round = g.number / p.blocks + 1, block = static_cast<i32>(blockIdx.x);
    return own_block(round * p.blocks + (round % 2 == 0 ? block : p.blocks - 1 - block));
  }

 private:
  // kOwnBlocks: blocks of rows of all sequences, for each K/V head.
  DEV SequenceParts<BlocksOfSequence> row_blocks() const { return {{p}, p.batch}; }
  DEV i32 row_blocks_of_head() const { return features.packed ? row_blocks().all() : row_blocks().of(0) * p.batch; }
  // The first piece of a block; the heads of the same rows come together.
  DEV Segment own_block(i32 number) const {
    if (number >= steps) return {};
    i32 at = p.by_heads(number), batch = 0;
    Group g;
    g.number = number, g.head = number - at * p.groups;
    if constexpr (features.packed) {
      at = row_blocks().find(at, batch);
    } else {
      const i32 all = row_blocks().of(0);
      batch = at / all, at -= batch * all;
    }
    g.batch = batch;
    g.row = (features.bounded_right ? row_blocks().of(batch) - 1 - at : at) * kRows;
    take_lengths(p, g);
    return {g, 0, kWholeRows ? g.steps : 1};
  }
  // The step of a group's piece whose block has the piece.
  static DEV i32 middle(const Group& g, i32 piece) {
    return g.step + piece * kPieceSteps + min(kPieceSteps, g.steps - piece * kPieceSteps) / 2;
  }
  // The first step of the pieces from `step` of a group on, for the block that begins there.
  static DEV i32 whole_pieces(const Group& g, i32 step) {
    const i32 piece = (step - g.step) / kPieceSteps, ahead = piece + (step > middle(g, piece));
    return step >= g.end() ? g.end() : min(g.step + ahead * kPieceSteps, g.end());
  }
  // How many of all blocks work, so that a prefill kernel that runs beside this one ends with it on the others. Memory
  // is read at 92 % of its speed by two thirds of the multiprocessors, and by fewer at much less.
  DEV i32 blocks_beside(i32 all) const {
    if constexpr (features.shared()) {
      if (p.concurrent == 0) return all;
      const float others = static_cast<float>(SequenceParts<StepsOfOthers>{{p}, p.batch}.all()),
                  own = static_cast<float>(steps + 1);
      return max(static_cast<i32>(static_cast<float>(all) * (1.0f - fminf(others / own, 0.35f)) + 0.5f), 1);
    }
    return all;
  }
  DEV i32 block_of(i32 step) const {  // where all work is cut into equal parts
    const i32 longer = rest * (each + 1);
    return step < longer ? step / (each + 1) : rest + (step - longer) / max(each, 1);
  }
};

}  // namespace onepass::decode
