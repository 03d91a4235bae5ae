// Standard attention as the textbook writes it, to be compared with: S = scale Q K^T, P = softmax(S), O = P V, with the
// whole score matrix of a head in memory. fp32, one thread, loops that the compiler vectorises (K transposed first).
//
//   naive IN.safetensors OUT.safetensors     reads q, k and v [batch, heads, seq, dim], writes out, prints the time
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "tools/onepass/io/npy.hpp"
#include "tools/onepass/io/safetensors.hpp"
#include "tools/onepass/io/source.hpp"

namespace {

// q, o [rows, d], k, v [keys, d], row-major; s [rows, keys] and kt [d, keys] are scratch.
void standard_attention(const float* q, const float* k, const float* v, float* o, std::int64_t rows, std::int64_t keys,
                        std::int64_t d, std::vector<float>& s, std::vector<float>& kt) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t c = 0; c < d; ++c) kt[c * keys + j] = k[j * d + c] * scale;
  for (std::int64_t i = 0; i < rows; ++i) {  // S = scale Q K^T
    float* row = s.data() + i * keys;
    std::fill(row, row + keys, 0.0f);
    for (std::int64_t c = 0; c < d; ++c)
      for (std::int64_t j = 0; j < keys; ++j) row[j] += q[i * d + c] * kt[c * keys + j];
  }
  for (std::int64_t i = 0; i < rows; ++i) {  // P = softmax(S)
    float* row = s.data() + i * keys;
    const float m = *std::max_element(row, row + keys);
    float l = 0;
    for (std::int64_t j = 0; j < keys; ++j) l += row[j] = std::exp(row[j] - m);
    for (std::int64_t j = 0; j < keys; ++j) row[j] /= l;
  }
  for (std::int64_t i = 0; i < rows; ++i) {  // O = P V
    const float* row = s.data() + i * keys;
    std::fill(o + i * d, o + (i + 1) * d, 0.0f);
    for (std::int64_t j = 0; j < keys; ++j)
      for (std::int64_t c = 0; c < d; ++c) o[i * d + c] += row[j] * v[j * d + c];
  }
}

int run(const char* in, const char* to) {
  const onepass::io::FileSource source(in);
  const onepass::io::Safetensors file(source);
  const onepass::io::Array q = file.read("q"), k = file.read("k"), v = file.read("v");
  if (q.dtype() != onepass::DType::f32 || q.shape().size() != 4 || k.shape() != v.shape() ||
      q.shape()[1] != k.shape()[1]) {
    std::fprintf(stderr, "naive: q, k and v must be fp32 and have the same number of heads and the same head dim\n");
    return 1;
  }
  const std::int64_t heads = q.shape()[0] * q.shape()[1], rows = q.shape()[2], keys = k.shape()[2], d = q.shape()[3];
  onepass::io::Array out("out", onepass::DType::f32, q.shape());
  std::vector<float> s(static_cast<std::size_t>(rows * keys)), kt(static_cast<std::size_t>(keys * d));
  const auto floats = [](const onepass::io::Array& a) { return reinterpret_cast<float*>(a.data()); };
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t h = 0; h < heads; ++h) {
    standard_attention(floats(q) + h * rows * d, floats(k) + h * keys * d, floats(v) + h * keys * d,
                       floats(out) + h * rows * d, rows, keys, d, s, kt);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  onepass::io::OutputFile result(to);
  const std::pair<std::string, const onepass::io::Array*> arrays[] = {{"out", &out}};
  onepass::io::write_safetensors(result, arrays);
  result.commit();
  std::printf("{\"seconds\": %.9f, \"extra_bytes\": %zu}\n", seconds, (s.size() + kt.size()) * sizeof(float));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: naive IN.safetensors OUT.safetensors\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "naive: %s\n", e.what());
    return 1;
  }
}
