#include "tools/onepass/io/npy.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "algebra/ceil_div.hpp"
#include "onepass/error.hpp"

namespace onepass::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeader = 1 << 16;  // NumPy itself accepts 10000 bytes

struct Header {
  std::string descr;
  bool fortran_order = false;
  Shape shape;
};

// The header is a Python literal: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Literal {
 public:
  Literal(const std::string& file, std::string_view text) : file_(file), rest_(text) {}

  Header header() {
    Header h;
    bool seen[3] = {};
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      constexpr std::string_view kKeys[] = {"descr", "fortran_order", "shape"};
      const auto at = static_cast<std::size_t>(std::find(std::begin(kKeys), std::end(kKeys), key) - std::begin(kKeys));
      if (at == 3) fail("'" + key + "' is not a key of it");
      if (std::exchange(seen[at], true)) fail("it has '" + key + "' twice");
      if (at == 0) h.descr = descr();
      if (at == 1) h.fortran_order = boolean();
      if (at == 2) h.shape = shape();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    if (!seen[0] || !seen[1] || !seen[2]) fail("descr, fortran_order and shape are expected in it");
    skip_space();
    if (!rest_.empty()) fail("nothing but spaces is expected after it");
    return h;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::bad_file, text("the .npy header of ", file_, " is damaged: ", why));
  }
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }
  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(text("'", c, "' is expected ", rest_.empty() ? "at its end" : "before the rest"));
  }
  std::string string() {
    const char quote = take('\'') ? '\'' : (expect('"'), '"');
    const std::size_t end = rest_.find(quote);
    if (end == rest_.npos || rest_.substr(0, end).find('\\') != rest_.npos) fail("a plain string is expected");
    const std::string s(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return s;
  }
  std::string descr() {
    skip_space();
    if (rest_.starts_with('[') || rest_.starts_with('(')) {
      throw Error(ErrorCode::bad_dtype, text(file_, " must be an array of numbers (got a structured dtype)"));
    }
    return string();
  }
  bool boolean() {
    skip_space();
    for (const std::string_view word : {"True", "False"}) {
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return word == "True";
    }
    fail("True or False is expected after 'fortran_order'");
  }
  Shape shape() {
    Shape s;
    expect('(');
    while (!take(')')) {
      skip_space();
      std::int64_t n = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), n);
      if (error == std::errc::result_out_of_range) fail("a size of its shape does not fit 64 bits");
      if (error != std::errc{}) fail("integers are expected in its shape");
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      s.push_back(n);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return s;
  }

  const std::string& file_;
  std::string_view rest_;
};

struct DescrRow {
  std::string_view descr;
  DType dtype;
};
constexpr DescrRow kDescrs[] = {
    // the first of a dtype is what the writer writes
    {"<f4", DType::f32}, {"<f2", DType::f16}, {"<V2", DType::bf16},      {"|b1", DType::boolean},
    {"<i4", DType::i32}, {"<i8", DType::i64}, {"bfloat16", DType::bf16},
};

DType dtype_of(const std::string& file, const std::string& descr, std::optional<DType> void2) {
  if (descr == "<V2" || descr == "|V2") {
    if (void2 == DType::bf16) return DType::bf16;
    throw Error(ErrorCode::bad_dtype, text(file, " has the void dtype '", descr,
                                           "', as ml_dtypes stores bfloat16; give --dtype bf16 to read it as such"));
  }
  if (descr.starts_with('>')) {
    throw Error(ErrorCode::bad_dtype, text(file, " must be little-endian (got '", descr, "')"));
  }
  const auto* row =
      std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const DescrRow& r) { return r.descr == descr; });
  if (row == std::end(kDescrs)) {
    throw Error(ErrorCode::bad_dtype, text(file,
                                           " must have the dtype '<f4', '<f2', '<V2' (bf16), '|b1', '<i4' or '<i8'"
                                           " (got '",
                                           descr, "')"));
  }
  return row->dtype;
}

}  // namespace

Array read_npy(const Source& source, std::optional<DType> void2) {
  char start[12] = {};
  const auto bytes_of = [](char* p, std::size_t n) { return std::as_writable_bytes(std::span(p, n)); };
  source.read(0, bytes_of(start, std::min<std::uint64_t>(source.size(), kMagic.size())));
  if (std::string_view(start, kMagic.size()) != kMagic)
    throw Error(ErrorCode::bad_file, text(source.name(), " is not an .npy file: it does not begin with \\x93NUMPY"));
  source.read(0, bytes_of(start, 10));
  const int major = static_cast<unsigned char>(start[6]), minor = static_cast<unsigned char>(start[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw Error(ErrorCode::bad_file,
                text(source.name(), " must have the .npy version 1.0, 2.0 or 3.0 (got ", major, ".", minor, ")"));
  }
  const std::size_t begin = major == 1 ? 10 : 12;
  source.read(0, bytes_of(start, begin));
  std::uint64_t length = 0;
  for (std::size_t i = begin; i-- > 8;) length = length << 8 | static_cast<unsigned char>(start[i]);
  if (length > kMaxHeader)
    throw Error(ErrorCode::bad_file, text("the .npy header of ", source.name(), " must have at most ", kMaxHeader,
                                          " bytes (got ", length, ")"));
  std::string literal(length, '\0');
  source.read(begin, bytes_of(literal.data(), length));

  const Header header = Literal(source.name(), literal).header();
  const DType dtype = dtype_of(source.name(), header.descr, void2);
  const std::int64_t elements = elements_of(source.name(), header.shape);
  if (header.fortran_order && header.shape.size() > 1) {
    throw Error(ErrorCode::bad_file,
                text(source.name(), " must be in C order, as numpy.ascontiguousarray makes it (got Fortran order)"));
  }
  // Compared before anything is allocated: a header may claim any shape.
  const std::uint64_t present = source.size() - begin - length,
                      needed = static_cast<std::uint64_t>(elements) * size_of(dtype);
  if (static_cast<std::uint64_t>(elements) > UINT64_MAX / size_of(dtype) || needed != present) {
    throw Error(ErrorCode::bad_file, text(source.name(), " has ", present, " bytes of data, but its shape ",
                                          shape_text(header.shape), " of ", name_of(dtype), " needs ", needed));
  }
  Array array(source.name(), dtype, header.shape);
  source.read(begin + length, {array.data(), array.bytes()});
  return array;
}

std::string npy_header(DType dtype, const Shape& shape) {
  std::string sizes;
  for (std::int64_t n : shape) sizes += (sizes.empty() ? "" : ", ") + std::to_string(n);
  if (shape.size() == 1) sizes += ",";
  const auto* row =
      std::find_if(std::begin(kDescrs), std::end(kDescrs), [&](const DescrRow& r) { return r.dtype == dtype; });
  if (row == std::end(kDescrs)) throw Error(ErrorCode::bad_dtype, text("NumPy has no dtype for ", name_of(dtype)));
  std::string literal =
      "{'descr': '" + std::string(row->descr) + "', 'fortran_order': False, 'shape': (" + sizes + "), }";
  literal.resize(round_up(10 + literal.size() + 1, 64) - 10, ' ');  // the data begins at a multiple of 64
  literal.back() = '\n';
  const char length[] = {static_cast<char>(literal.size() & 0xff), static_cast<char>(literal.size() >> 8)};
  return std::string(kMagic) + std::string("\1\0", 2) + std::string(length, 2) + literal;
}

void write_npy(OutputFile& file, const Array& array) {
  const std::string header = npy_header(array.dtype(), array.shape());
  file.write(std::as_bytes(std::span(header)));
  file.write({array.data(), array.bytes()});
}

}  // namespace onepass::io
