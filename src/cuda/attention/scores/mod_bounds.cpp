// The steps of a mask_mod as a device function over intervals.
#include <array>
#include <bit>

#include "base/text.hpp"
#include "cuda/attention/scores/mods.hpp"
#include "expression/expression.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

// The function of interval.hpp for a step; nullptr: bounds_of_step writes it itself.
const char* function_of(const ExprStep& s) {
  const bool numbers = s.operands == ExprType::number;
  switch (s.code) {
    case ExprCode::to_integer: return "to_integer";
    case ExprCode::to_number: return "to_number";
    case ExprCode::to_boolean: return "to_boolean";
    case ExprCode::add: return numbers ? "add" : "int_add";
    case ExprCode::subtract: return numbers ? "subtract" : "int_subtract";
    case ExprCode::multiply: return numbers ? "multiply" : "int_multiply";
    case ExprCode::divide: return numbers ? "divide" : "int_divide";
    case ExprCode::negate: return numbers ? "negate" : "int_negate";
    case ExprCode::abs: return numbers ? "abs" : "int_abs";
    case ExprCode::remainder: return "int_remainder";
    case ExprCode::min: return "min";
    case ExprCode::max: return "max";
    case ExprCode::less: return "less";
    case ExprCode::less_equal: return "less_equal";
    case ExprCode::equal: return "equal";
    case ExprCode::not_equal: return "not_equal";
    case ExprCode::bit_and: return "int_and";
    case ExprCode::bit_or: return "int_or";
    case ExprCode::bit_xor: return "int_xor";
    case ExprCode::shift_left: return "int_shift_left";
    case ExprCode::shift_right: return "int_shift_right";
    case ExprCode::select: return "select";
    case ExprCode::floor: return "floor";
    case ExprCode::ceil: return "ceil";
    default: return "unknown_function";
  }
}

std::string call_of(const char* function, const ExprStep& s, std::string arguments = {}) {
  for (const std::int16_t id : s.operand)
    if (id >= 0) arguments += text(arguments.empty() ? "v" : ", v", id);
  return text(function, "(", arguments, ")");
}

std::string bounds_of_step(const ExprStep& s, const Problem& p) {
  switch (s.code) {
    case ExprCode::batch: return "batch";
    case ExprCode::head: return "head";
    case ExprCode::q_index: return "q_index";
    case ExprCode::k_index: return "k_index";
    case ExprCode::literal:
      if (s.type != ExprType::number)
        return text("interval::just(", s.integer == -2147483647 - 1 ? "-2147483648.0" : text(s.integer), ")");
      return text("interval::just(__uint_as_float(", std::bit_cast<std::uint32_t>(s.number), "u))");
    case ExprCode::load: {
      const ModBuffer& b = p.mod_buffers[static_cast<std::size_t>(s.integer)];
      const char* const any = s.type == ExprType::integer   ? "interval::any_integer()"
                              : s.type == ExprType::boolean ? "interval::any_boolean()"
                                                            : "interval::any_number()";
      return call_of(text("elements<", element_text(b.dtype), ", ", b.rank, ">").c_str(), s,
                     text("buffers_[", s.integer, "], ", any));
    }
    default: return call_of(text("interval::", function_of(s)).c_str(), s);
  }
}

}  // namespace

std::string mask_bounds_source(const Problem& p) {
  std::string s =
      "#include \"cuda/attention/scores/mask_bounds.cuh\"\nnamespace onepass::user {\ntemplate <class Buffers>\n"
      "DEV Bounds mask_bounds([[maybe_unused]] Bounds batch, [[maybe_unused]] Bounds head, [[maybe_unused]] Bounds "
      "q_index, [[maybe_unused]] Bounds k_index, [[maybe_unused]] const Buffers& buffers_) {\n";
  Expression mask;
  try {
    mask = read_expression(ModKind::mask, p.mask_mod, p.mod_buffers);
  } catch (const Error&) {  // text for the CUDA compiler alone
    return s + "return interval::any_boolean();\n}\n}\n";
  }
  for (std::size_t i = 0; i < mask.steps.size(); ++i)
    s += text("const Bounds v", i, " = ", bounds_of_step(mask.steps[i], p), ";\n");
  return s + text("return v", mask.steps.size() - 1, ";\n}\n}\n");
}

}  // namespace onepass::cuda
