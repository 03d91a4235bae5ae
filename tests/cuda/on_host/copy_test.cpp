// Tiles of tokens on their way to shared memory, without a GPU: every byte of them, for every head dim.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "on_host/copy_source.hpp"
#include "on_host/warps.hpp"
#include "support/named_params.hpp"

namespace warps {
namespace {

constexpr unsigned char kPoison = 0xff;  // in memory around the rows; in shared memory before the copy it is kBefore
constexpr unsigned char kBefore = 0xee;
unsigned char real(int token, int byte) { return static_cast<unsigned char>(1 + (token * 61 + byte * 7) % 200); }

// Rows of `tokens` tokens, apart from each other and followed by poison.
struct Rows {
  Rows(const CopySource& text, int dim, int count, int gap)
      : bytes(dim * text.element_bytes),
        tokens(count),
        stride((bytes + text.copy_bytes - 1) / text.copy_bytes * text.copy_bytes + gap * text.copy_bytes),
        memory(static_cast<std::size_t>((count + 2 * text.rows) * stride + 64), kPoison) {
    while (reinterpret_cast<std::uintptr_t>(at(0)) % 16 != static_cast<std::uintptr_t>(text.copy_bytes) % 16) ++shift;
    for (int t = 0; t < count; ++t)
      for (int b = 0; b < bytes; ++b) at(t)[b] = static_cast<char>(real(t, b));
  }
  char* at(int token) { return reinterpret_cast<char*>(memory.data()) + shift + token * stride; }
  int bytes, tokens, stride, shift = 0;
  std::vector<unsigned char> memory;
};

// Empty, or which byte of the tile is not what it must be.
std::string wrong_byte(const CopySource& text, int dim, const Rows& rows, int first) {
  const int padded = (dim + 15) / 16 * 16 * text.element_bytes;
  for (int row = 0; row < text.rows; ++row) {
    for (int byte = 0; byte < padded; ++byte) {
      const unsigned char got = smem[text.place(dim, row, byte / 16) + byte % 16];
      const unsigned char wanted = first + row < rows.tokens && byte < rows.bytes ? real(first + row, byte) : 0;
      if (got != wanted)
        return "row " + std::to_string(row) + " byte " + std::to_string(byte) + " is " + std::to_string(got) +
               ", not " + std::to_string(wanted);
    }
  }
  for (int i = text.bytes(dim); i < text.bytes(dim) + 1024; ++i)
    if (smem[i] != kBefore) return "byte " + std::to_string(i) + " behind the tile was written";
  return "";
}

class EmulatedCopy : public testing::TestWithParam<const CopySource*> {};

TEST_P(EmulatedCopy, RowsThenZerosInEveryHeadDim) {
  const CopySource& text = *GetParam();
  struct Case {
    int tokens, first, gap;
  };
  for (const Case c : {Case{150, 48, 0}, {150, 144, 1}, {5, 0, 3}, {48, 48, 0}, {49, 48, 1}}) {
    for (int dim = 1; dim <= 512; ++dim) {
      Rows rows(text, dim, c.tokens, c.gap);
      copies_are_early = dim % 2 == 0;
      std::memset(smem, kBefore, static_cast<std::size_t>(text.bytes(dim)) + 1024);
      text.copy(dim, rows.at(0), rows.stride / text.element_bytes, c.tokens, c.first);
      ASSERT_EQ(wrong_byte(text, dim, rows, c.first), "")
          << "head dim " << dim << ", tokens from " << c.first << " on of " << c.tokens << ", stride " << rows.stride;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pieces, EmulatedCopy,
                         testing::Values(&copy_f32_4, &copy_f32_8, &copy_f32_16, &copy_bf16_2, &copy_bf16_4,
                                         &copy_bf16_8, &copy_bf16_16),
                         [](const auto& text) { return text.param->name(); });

}  // namespace
}  // namespace warps
