// The fuzz targets' rule for any bytes: an Error, or a result that survives being written and read again.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "expression/dual.hpp"
#include "expression/scalar.hpp"
#include "onepass/error.hpp"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"
#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"

namespace onepass::fuzz {

inline void must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

inline io::MemorySource source(std::string_view bytes) {
  return {"x", std::as_bytes(std::span(bytes.data(), bytes.size()))};
}

constexpr int kKeys = 200, kLanes = 3;

// The value that the backward pass takes of a score_mod beside its derivative is the forward's.
inline void derivatives(const Expression& e, std::span<const NamedTensor> buffers, std::vector<float> scores,
                        const std::int32_t* head, const std::int32_t* row) {
  std::vector<Dual<float>> duals(scores.size()), numbers(Expression::kMaxSteps * kExprBlock);
  for (std::size_t i = 0; i < scores.size(); ++i) duals[i] = {scores[i], 1};
  std::vector<float> values(numbers.size());
  std::vector<std::int32_t> integers(numbers.size());
  const ExprTile<Dual<float>> tile{duals.data(), kLanes, kLanes, kKeys, 3, 2147483400, head, row};
  ExprRun<Dual<float>, DualFunctions<ScalarFunctions>>(e, buffers, {numbers.data(), integers.data()}).change(tile);
  const ExprTile<float> plain{scores.data(), kLanes, kLanes, kKeys, 3, 2147483400, head, row};
  ExprRun<float, ScalarFunctions>(e, buffers, {values.data(), integers.data()}).change(plain);
  for (std::size_t i = 0; i < scores.size(); ++i)
    must(duals[i].value == scores[i] || (std::isnan(duals[i].value) && std::isnan(scores[i])),
         "a score beside its derivative is the same score");
}

// A text that the CPU reads as a score_mod or mask_mod runs for any scores and positions.
inline void expressions(const Problem& p) {
  const Mods mods = mods_of(p, p.mod_buffers);
  const float one = 1.5f;
  std::vector<NamedTensor> buffers;  // of one element, over and over
  for (const ModBuffer& b : p.mod_buffers) {
    buffers.push_back({b.name, ConstTensor(&one, b.dtype, {1})});
    buffers.back().tensor.rank = b.rank;
    buffers.back().tensor.shape = b.shape;
    buffers.back().tensor.stride = {0, 0, 0, 0};
  }
  std::vector<float> scores(kKeys * kLanes);
  for (std::size_t i = 0; i < scores.size(); ++i)
    scores[i] = i % 7 == 0    ? INFINITY
                : i % 11 == 0 ? NAN
                              : std::ldexp(static_cast<float>(i) - 300.0f, int(i % 120) - 60);
  const std::int32_t head[kLanes] = {0, 1, 2147483647}, row[kLanes] = {0, 2147483647, 77};
  std::vector<float> numbers(Expression::kMaxSteps * kExprBlock);
  std::vector<std::int32_t> integers(numbers.size());
  if (mods.score.given()) derivatives(mods.score, buffers, scores, head, row);
  const ExprTile<float> tile{scores.data(), kLanes, kLanes, kKeys, 3, 2147483400, head, row};
  for (const Expression* e : {&mods.score, &mods.mask}) {
    if (!e->given()) continue;
    const ExprRun<float, ScalarFunctions> run(*e, buffers, {numbers.data(), integers.data()});
    e == &mods.score ? run.change(tile) : run.hide(tile, -1.0f);
  }
}

inline bool is_printable(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return (c >= ' ' && c < 0x7f) || c == '\n' || c == '\t'; });
}

// parse -> print -> parse gives the same problem, and the same line.
inline void problem(std::string_view line) {
  Problem p;
  try {
    p = parse_problem(line);
  } catch (const Error& e) {
    must(e.code() != ErrorCode::ok && *e.what() != '\0', "an error has a code and a sentence");
    must(is_printable(e.what()) && std::strlen(e.what()) < 6000, "a sentence can be read");
    return;
  }
  if (p.device.kind == DeviceKind::cpu) expressions(p);
  const std::string printed = to_string(p);
  try {
    const Problem again = parse_problem(printed);
    must(again == p, "parse(print(p)) == p");
    must(to_string(again) == printed, "print(parse(line)) == line");
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    must(false, "a printed problem parses");
  }
}

// An array that was read has exactly the bytes of its shape, and reads the same behind a header of our own.
inline void npy(std::string_view bytes) {
  const auto from = source(bytes);
  try {
    const io::Array a = io::read_npy(from, DType::bf16);
    const std::string copy =
        io::npy_header(a.dtype(), a.shape()) + std::string(reinterpret_cast<const char*>(a.data()), a.bytes());
    const auto again_from = source(copy);
    const io::Array again = io::read_npy(again_from, DType::bf16);
    must(again.dtype() == a.dtype() && again.shape() == a.shape() && again.bytes() == a.bytes(),
         "the same array again");
    must(std::memcmp(again.data(), a.data(), a.bytes()) == 0, "the same data again");
    must(static_cast<std::size_t>(a.view().elements()) * size_of(a.dtype()) == a.bytes(), "the view spans the data");
  } catch (const Error& e) {
    must(e.code() != ErrorCode::ok && *e.what() != '\0', "an error has a code and a sentence");
  }
}

// Tensors lie inside the data, side by side.
inline void safetensors(std::string_view bytes) {
  const auto from = source(bytes);
  try {
    const io::Safetensors file(from);
    std::uint64_t covered = 0;
    for (const auto& [name, entry] : file.entries()) {
      must(entry.begin <= entry.end && entry.end <= bytes.size(), "a tensor lies inside");
      covered += entry.end - entry.begin;
    }
    must(covered <= bytes.size(), "tensors do not overlap");
    for (const auto& [name, entry] : file.entries()) {
      try {
        must(file.read(name).bytes() == entry.end - entry.begin, "a tensor has the bytes it claims");
      } catch (const Error& e) {
        must(e.code() == ErrorCode::bad_dtype, "a checked file reads, but for dtypes that onepass has not");
      }
    }
  } catch (const Error& e) {
    must(e.code() != ErrorCode::ok && *e.what() != '\0', "an error has a code and a sentence");
  }
}

}  // namespace onepass::fuzz
