// NaN and infinity put into inputs: they reach the rows that see them, and no other row.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>

#include "algebra/numerics.hpp"
#include "check/inputs.hpp"
#include "support/named_params.hpp"

namespace onepass::test {

struct Poke {
  const char* name;
  std::function<void(check::Inputs&)> poke;
};

inline void set(const ConstTensor& t, std::int64_t head, std::int64_t token, std::int64_t d, float x) {
  std::int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) last += (t.shape[i] - 1) * t.stride[i];
  const std::int64_t at = row_offset(t, 0, head, token) + d;
  if (at > last) throw std::out_of_range("a poke beyond the tensor");
  store_element(check::Inputs::writable<void>(t), t.dtype, at, x);
}
inline std::int64_t a_query(const check::Inputs& in) { return std::min<std::int64_t>(33, in.problem.seq_q - 1); }
inline std::int64_t key_64(const check::Inputs& in) { return std::min<std::int64_t>(64, in.problem.seq_k - 2); }

// Keys 20, 64 (or the last but one) and the last, of K/V head 0; query 33 of head 1.
inline const Poke kPokes[] = {
    {"NaNInV", [](auto& in) { set(in.tensors.v, 0, 20, 3, NAN); }},
    {"InfinityInV", [](auto& in) { set(in.tensors.v, 0, key_64(in), 0, INFINITY); }},
    {"MinusInfinityInV", [](auto& in) { set(in.tensors.v, 0, 20, 7, -INFINITY); }},
    {"BothInfinitiesInV",
     [](auto& in) {
       set(in.tensors.v, 0, 20, 1, -INFINITY), set(in.tensors.v, 0, key_64(in), 1, INFINITY),
           set(in.tensors.v, 0, key_64(in), 2, INFINITY);
     }},
    {"NaNInTheLastV", [](auto& in) { set(in.tensors.v, 0, in.problem.seq_k - 1, in.problem.dim_v - 1, NAN); }},
    {"NaNInTheFirstV", [](auto& in) { set(in.tensors.v, 0, 0, 0, NAN); }},
    {"NaNInK", [](auto& in) { set(in.tensors.k, 0, 20, 3, NAN); }},
    {"InfinityInK", [](auto& in) { set(in.tensors.k, 0, key_64(in), 0, INFINITY); }},
    {"NaNInTheLastK", [](auto& in) { set(in.tensors.k, 0, in.problem.seq_k - 1, 0, NAN); }},
    {"NaNInQ", [](auto& in) { set(in.tensors.q, 1, a_query(in), 0, NAN); }},
    {"InfinityInQ", [](auto& in) { set(in.tensors.q, 1, a_query(in), 0, INFINITY); }},
};

// Many values that are not finite: NaN, infinity and -infinity in turn, or NaN alone. Rows are counted head by head: of
// the first batch entry, or of all packed tokens.
inline void set_where(const ConstTensor& t, const std::function<bool(std::int64_t row, std::int64_t d)>& where,
                      const std::function<float()>& value) {
  const std::int64_t tokens = t.shape[t.rank == 4 ? 2 : 0], dim = t.shape[t.rank - 1];
  for (std::int64_t head = 0, row = 0; head < t.shape[1]; ++head)
    for (std::int64_t token = 0; token < tokens; ++token, ++row)
      for (std::int64_t d = 0; d < dim; ++d)
        if (where(row, d)) set(t, head, token, d, value());
}
inline void set_where(const ConstTensor& t, const std::function<bool(std::int64_t row, std::int64_t d)>& where,
                      bool nan_alone = false) {
  std::int64_t i = -1;
  set_where(t, where, [&] { return ++i % 3 == 0 || nan_alone ? NAN : i % 3 == 1 ? INFINITY : -INFINITY; });
}
inline bool one_of_31(std::int64_t row, std::int64_t d) { return (row * 64 + d) % 31 == 5; }
inline bool one_of_a_row(std::int64_t row, std::int64_t d) { return d == row % 32; }
inline bool whole_rows(std::int64_t row, std::int64_t) { return row % 13 == 7; }
inline bool everywhere(std::int64_t, std::int64_t) { return true; }

inline const Poke kManyPokes[] = {
    {"SomeOfV", [](auto& in) { set_where(in.tensors.v, one_of_31); }},
    {"OneOfEachRowOfV", [](auto& in) { set_where(in.tensors.v, one_of_a_row); }},
    {"WholeRowsOfV", [](auto& in) { set_where(in.tensors.v, whole_rows, true); }},
    {"WholeRowsOfVMixed", [](auto& in) { set_where(in.tensors.v, whole_rows); }},
    {"AllOfV", [](auto& in) { set_where(in.tensors.v, everywhere, true); }},
    {"SomeOfK", [](auto& in) { set_where(in.tensors.k, one_of_31, true); }},
    {"WholeRowsOfK", [](auto& in) { set_where(in.tensors.k, whole_rows, true); }},
    {"AllOfK", [](auto& in) { set_where(in.tensors.k, everywhere, true); }},
    {"SomeOfQ", [](auto& in) { set_where(in.tensors.q, one_of_31, true); }},
    {"AllOfQ", [](auto& in) { set_where(in.tensors.q, everywhere, true); }},
    {"RowsOfQAndSomeOfV",
     [](auto& in) { set_where(in.tensors.q, whole_rows, true), set_where(in.tensors.v, one_of_31); }},
};
// Finite values near the end of their dtype: sums of weighted ones overflow, their mean does not.
inline void enlarge_values(check::Inputs& in) {
  const ConstTensor& v = in.tensors.v;
  const float most = v.dtype == DType::f16 ? 6.5e4f : 3.38e38f;
  std::int64_t i = 0;
  set_where(v, everywhere, [&] { return ++i % 5 == 0 ? most / 3 : most; });
}
inline const Poke kValuePokes[] = {
    {"SomeOfV", kManyPokes[0].poke},
    {"OneOfEachRowOfV", kManyPokes[1].poke},
    {"WholeRowsOfVMixed", kManyPokes[3].poke},
    {"RowsOfQAndSomeOfV", kManyPokes[10].poke},
    {"LargeV", enlarge_values},
    {"LargeVAndSomeOfIt", [](auto& in) { enlarge_values(in), set_where(in.tensors.v, one_of_31); }},
};
inline const Poke kManyUpstreamPokes[] = {
    {"SomeOfDOut", [](auto& in) { set_where(in.tensors.dout, one_of_31); }},
    {"OneOfEachRowOfDOut", [](auto& in) { set_where(in.tensors.dout, one_of_a_row); }},
    {"WholeRowsOfDOut", [](auto& in) { set_where(in.tensors.dout, whole_rows); }},
    {"AllOfDOut", [](auto& in) { set_where(in.tensors.dout, everywhere); }},
    {"WholeRowsOfKAndSomeOfDOut",
     [](auto& in) { set_where(in.tensors.k, whole_rows, true), set_where(in.tensors.dout, one_of_31); }},
};

// In the upstream gradient of a backward.
inline const Poke kUpstreamPokes[] = {
    {"NaNInDOut", [](auto& in) { set(in.tensors.dout, 1, a_query(in), 3, NAN); }},
    {"InfinityInDOut", [](auto& in) { set(in.tensors.dout, 0, 0, 0, INFINITY); }},
    {"NaNInTheLastDOut", [](auto& in) { set(in.tensors.dout, 0, in.problem.seq_q - 1, 1, NAN); }},
};

// For a GEMM. x gets a NaN in its first row and an infinity at the end of its last one. w gets two infinities, which
// meet a 0 and each other, and a NaN in its last element. Rows of y between the first and the last have NaNs in two
// columns.
inline void poke_gemm(check::Inputs& in) {
  const Problem& p = in.problem;
  const auto set_in = [&](const ConstTensor& t, std::int64_t row, std::int64_t k, float value) {
    store_element(check::Inputs::writable<void>(t), t.dtype, row * t.stride[0] + k * t.stride[1], value);
  };
  set_in(in.tensors.x, 0, p.k / 3, NAN);
  set_in(in.tensors.x, p.m - 1, p.k - 1, INFINITY);
  set_in(in.tensors.x, p.m / 2, 2, 0);
  set_in(in.tensors.w, p.n / 2, 2, INFINITY);
  set_in(in.tensors.w, p.n / 2, 3, -INFINITY);
  set_in(in.tensors.w, p.n - 1, p.k - 1, NAN);
  in.changed();
}

}  // namespace onepass::test
