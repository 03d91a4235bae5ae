// The steps of an expression that is being read: each value once, and C++'s conversions between them.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "expression/expression.hpp"
#include "expression/tokens.hpp"

namespace onepass {

struct Value {
  std::int16_t id = -1;
  ExprType type = ExprType::number;
};

class Steps {
 public:
  Steps(const char* name, std::string_view source) : tokens_(name, source) {}

  // The result is one value per score, whatever it depends on, and stands last.
  Expression finish(Value result) {
    ExprStep& last = expression_.steps[static_cast<std::size_t>(result.id)];
    if (static_cast<std::size_t>(result.id) + 1 != expression_.steps.size() || last.varies != kByBoth) {
      const ExprStep copy{
          ExprCode::select, result.type, result.type, kByBoth, false, {truth(), result.id, result.id, -1}, 0, 0};
      append(copy);
      expression_.steps.back().varies = kByBoth;
    }
    for (const ExprStep& step : expression_.steps) {
      if (step.varies != kByBoth) continue;
      for (const std::int16_t id : step.operand)
        if (id >= 0) expression_.steps[static_cast<std::size_t>(id)].spread = true;
    }
    return std::move(expression_);
  }

 protected:
  // A step that the text has already is computed once: texts of traced functions repeat what several steps read.
  Value push(const ExprStep& step) {
    const auto same = [&](const ExprStep& s) {
      return s.code == step.code && s.type == step.type && s.operands == step.operands && s.number == step.number &&
             s.integer == step.integer && std::ranges::equal(s.operand, step.operand);
    };
    const auto found = std::ranges::find_if(expression_.steps, same);
    if (found == expression_.steps.end()) return append(step);
    return {static_cast<std::int16_t>(found - expression_.steps.begin()), step.type};
  }
  Value append(ExprStep step) {
    if (expression_.steps.size() >= static_cast<std::size_t>(Expression::kMaxSteps))
      tokens_.fail(text("an expression must have at most ", Expression::kMaxSteps, " operations"));
    for (const std::int16_t id : step.operand)
      if (id >= 0) step.varies |= expression_.steps[static_cast<std::size_t>(id)].varies;
    expression_.steps.push_back(step);
    return {static_cast<std::int16_t>(expression_.steps.size() - 1), step.type};
  }
  Value make(ExprCode code, ExprType type, ExprType operands, std::initializer_list<std::int16_t> ids) {
    ExprStep step{code, type, operands, kSame, false, {-1, -1, -1, -1}, 0, 0};
    std::copy(ids.begin(), ids.end(), step.operand);
    return push(step);
  }
  Value input(ExprCode code, ExprType type, ExprVaries varies) {
    return push({code, type, type, varies, false, {-1, -1, -1, -1}, 0, 0});
  }
  Value literal(ExprType type, float number, std::int32_t integer) {
    return push({ExprCode::literal, type, type, kSame, false, {-1, -1, -1, -1}, number, integer});
  }
  std::int16_t truth() { return literal(ExprType::boolean, 0, 1).id; }
  Value number(Value v) {
    return v.type == ExprType::number ? v : make(ExprCode::to_number, ExprType::number, ExprType::integer, {v.id});
  }
  Value integer(Value v) {  // a bool is 0 or 1 already
    if (v.type == ExprType::number) return make(ExprCode::to_integer, ExprType::integer, ExprType::number, {v.id});
    return {v.id, ExprType::integer};
  }
  Value boolean(Value v) {
    return v.type == ExprType::boolean ? v : make(ExprCode::to_boolean, ExprType::boolean, v.type, {v.id});
  }
  Value promoted(Value v) { return {v.id, v.type == ExprType::number ? v.type : ExprType::integer}; }
  // C++'s usual conversions: two integers stay integers.
  ExprType common(Value& a, Value& b) {
    if (a.type == ExprType::number || b.type == ExprType::number) {
      a = number(a);
      b = number(b);
      return ExprType::number;
    }
    return ExprType::integer;
  }

  Tokens tokens_;  // where the reader is, for sentences

 private:
  Expression expression_;
};

}  // namespace onepass
