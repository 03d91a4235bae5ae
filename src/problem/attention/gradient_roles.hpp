// The tensors of attention's backward and of its forward mode beside those of attention.
#pragma once
#include "problem/role_row.hpp"

namespace onepass {

inline constexpr auto kGradientRoles = [] {
  using namespace axes;
  using R = Role;
  using C = onepass_options;
  return std::to_array<RoleRow>({
      {ONEPASS_INPUT(dout), .help = "the gradient of out", .types = Types::as_out, .axes = kOut, .packed = kPackedOut,
       .unit_last = true, .gradient_of = R::out, .backward = Use::needs, .c = &C::dout},
      {ONEPASS_INPUT(dlse), .help = "the gradient of lse, fp32", .types = Types::f32, .axes = kRows,
       .packed = kPackedRows, .gradient_of = R::lse, .backward = Use::takes, .c = &C::dlse, .word = "dlse",
       .flag = &Problem::dlse},
      {ONEPASS_OUTPUT(dq), .help = "the gradient of q", .types = Types::gradient, .axes = kQ, .packed = kPackedQ,
       .unit_last = true, .gradient_of = R::q, .backward = Use::may_write, .c = &C::dq,
       .given = [](const Problem& p) { return p.gradients.dq; }},
      {ONEPASS_OUTPUT(dk), .help = "the gradient of k", .types = Types::gradient, .axes = kK, .packed = kPackedK,
       .unit_last = true, .gradient_of = R::k, .backward = Use::may_write, .c = &C::dk,
       .given = [](const Problem& p) { return p.gradients.dk; }},
      {ONEPASS_OUTPUT(dv), .help = "the gradient of v", .types = Types::gradient, .axes = kV, .packed = kPackedV,
       .unit_last = true, .gradient_of = R::v, .backward = Use::may_write, .c = &C::dv,
       .given = [](const Problem& p) { return p.gradients.dv; }},
      {ONEPASS_OUTPUT(dbias), .help = "the gradient of bias, fp32 of its shape", .types = Types::f32, .axes = kScores,
       .fit = Fit::broadcast, .gradient_of = R::bias, .backward = Use::may_write, .c = &C::dbias,
       .given = [](const Problem& p) { return p.gradients.dbias; }},
      {ONEPASS_OUTPUT(dsinks), .help = "the gradient of sinks, fp32 [heads]", .types = Types::f32, .axes = kHeads,
       .gradient_of = R::sinks, .backward = Use::may_write, .c = &C::dsinks,
       .given = [](const Problem& p) { return p.gradients.dsinks; }},
      {ONEPASS_OUTPUT(dalibi_slopes), .help = "the gradient of alibi_slopes, fp32 of its shape", .types = Types::f32,
       .axes = kSlopes, .fit = Fit::leading_optional, .gradient_of = R::alibi_slopes, .backward = Use::may_write,
       .c = &C::dalibi_slopes, .given = [](const Problem& p) { return p.gradients.dalibi_slopes; }},
      {ONEPASS_INPUT(tq), .help = "the tangent of q", .types = Types::as_q, .axes = kQ, .packed = kPackedQ,
       .unit_last = true, .gradient_of = R::q, .jvp = Use::needs, .c = &C::tq},
      {ONEPASS_INPUT(tk), .help = "the tangent of k", .types = Types::as_q, .axes = kK, .packed = kPackedK,
       .unit_last = true, .gradient_of = R::k, .jvp = Use::needs, .c = &C::tk},
      {ONEPASS_INPUT(tv), .help = "the tangent of v", .types = Types::as_q, .axes = kV, .packed = kPackedV,
       .unit_last = true, .gradient_of = R::v, .jvp = Use::needs, .c = &C::tv},
      {ONEPASS_INPUT(tbias), .help = "the tangent of bias, of its dtype and shape", .types = Types::data,
       .axes = kScores, .fit = Fit::broadcast, .gradient_of = R::bias, .dtype_of = R::bias, .jvp = Use::takes,
       .c = &C::tbias, .word = "tbias", .flag = &Problem::tbias},
      {ONEPASS_INPUT(tsinks), .help = "the tangent of sinks, fp32 [heads]", .types = Types::f32, .axes = kHeads,
       .gradient_of = R::sinks, .jvp = Use::takes, .c = &C::tsinks, .word = "tsinks", .flag = &Problem::tsinks},
      {ONEPASS_OUTPUT(tout), .help = "the derivative of out", .types = Types::as_out, .axes = kOut,
       .packed = kPackedOut, .unit_last = true, .gradient_of = R::out, .jvp = Use::writes, .c = &C::tout},
      {ONEPASS_OUTPUT(tlse), .help = "the derivative of lse, fp32", .types = Types::f32, .axes = kRows,
       .packed = kPackedRows, .gradient_of = R::lse, .jvp = Use::may_write, .c = &C::tlse, .word = "tlse",
       .flag = &Problem::want_tlse},
  });
}();

}  // namespace onepass
