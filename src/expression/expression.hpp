// score_mod and mask_mod on the CPU: one C++ expression, read once into a list of typed instructions that
// expression/eval.hpp runs over a tile of scores. docs/features/score_mod.md shows the language to users.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "expression/check_mods.hpp"
#include "onepass/options.hpp"

namespace onepass {

enum class ExprType : std::uint8_t { boolean, integer, number };  // C++'s bool (0 or 1), int and float

enum class ExprCode : std::uint8_t {
  score,
  batch,
  head,
  q_index,
  k_index,
  literal,
  to_integer,
  to_number,
  to_boolean,
  add,
  subtract,
  multiply,
  divide,
  remainder,
  min,
  max,
  negate,
  abs,
  less,
  less_equal,
  equal,
  not_equal,
  bit_and,
  bit_or,
  bit_xor,
  shift_left,
  shift_right,
  select,
  load,
  exp,
  exp2,
  log,
  log2,
  sqrt,
  tanh,
  sin,
  cos,
  floor,
  ceil,
};

// The dependence of an instruction's value: it is computed once for a row of lanes, once for a key, or for every score.
enum ExprVaries : std::uint8_t { kSame = 0, kByLane = 1, kByKey = 2, kByBoth = 3 };

// One value. Operands are the numbers of earlier instructions; load has its indices there and the buffer in `integer`.
struct ExprStep {
  ExprCode code = ExprCode::literal;
  ExprType type = ExprType::number;      // of the value
  ExprType operands = ExprType::number;  // of what arithmetic and comparisons work on: integer or number
  std::uint8_t varies = kSame;
  bool spread = false;  // kByKey only: some kByBoth instruction reads it
  std::int16_t operand[kMaxRank] = {-1, -1, -1, -1};
  float number = 0;  // literals
  std::int32_t integer = 0;
};

struct Expression {
  static constexpr int kMaxSteps = 128;  // a longer text is refused: each worker has memory for this number of values
  std::vector<ExprStep> steps;           // the last one is the result; none: there is no expression
  bool given() const { return !steps.empty(); }
};

enum class ModKind { score, mask };  // a mask_mod has no score to read, and its result is a bool

// Reads `source`. Throws Error (bad_text) with the column, the line and a caret under what it cannot read.
Expression read_expression(ModKind kind, std::string_view source, std::span<const ModBuffer> buffers);

// Both of a call; a text that is empty gives no expression.
struct Mods {
  Expression score, mask;
  bool given() const { return score.given() || mask.given(); }
};
Mods mods_of(const Attention& options, std::span<const ModBuffer> buffers);

// ---- what expression/eval.hpp works on

inline constexpr int kExprBlock = 512;  // values of a step at a time: 2 KB, so that some twenty steps stay in L1

// Scores [key][lane] of one batch entry. head and q_index: one per lane. Indices are positions within the sequence.
template <class F>
struct ExprTile {
  F* scores;
  std::int64_t stride;  // from key to key
  int width;            // lanes; at most kExprBlock
  std::int64_t keys;
  std::int32_t batch;
  std::int64_t first_key;
  const std::int32_t *head, *q_index;
};

// The memory of a worker: values of every step.
template <class F>
struct ExprMemory {
  F* numbers = nullptr;              // [kMaxSteps][kExprBlock]
  std::int32_t* integers = nullptr;  // the same
};

}  // namespace onepass
