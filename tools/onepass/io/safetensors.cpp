#include "tools/onepass/io/safetensors.hpp"
#include "base/text.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "algebra/ceil_div.hpp"
#include "onepass/error.hpp"
#include "tools/onepass/io/safetensors_header.hpp"

namespace onepass::io {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit

struct TypeRow {
  std::string_view name;
  std::uint64_t size;
  std::optional<DType> dtype;  // what onepass calls it
};
constexpr TypeRow kTypes[] = {
    {"F32", 4, DType::f32},
    {"F16", 2, DType::f16},
    {"BF16", 2, DType::bf16},
    {"F8_E4M3", 1, DType::f8e4m3},
    {"BOOL", 1, DType::boolean},
    {"I32", 4, DType::i32},
    {"I64", 8, DType::i64},
    {"F64", 8, {}},
    {"U64", 8, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

const TypeRow* type_named(std::string_view name) {
  const auto* row =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& r) { return r.name == name; });
  return row == std::end(kTypes) ? nullptr : row;
}

[[noreturn]] void fail(const Source& source, const std::string& why) {
  throw Error(ErrorCode::bad_file, text(source.name(), ": ", why));
}

void check_size(const Source& source, const std::string& name, const Safetensors::Entry& e) {
  const TypeRow* row = type_named(e.dtype);
  if (!row) fail(source, text("tensor '", name, "' has the unknown dtype '", e.dtype, "'"));
  const auto elements = static_cast<std::uint64_t>(elements_of(source.name() + ": tensor '" + name + "'", e.shape));
  if (e.begin > e.end)
    fail(source, text("tensor '", name, "' ends at byte ", e.end, ", before it begins at ", e.begin));
  if (elements > UINT64_MAX / row->size || elements * row->size != e.end - e.begin) {
    fail(source, text("tensor '", name, "' of shape ", shape_text(e.shape), " and dtype ", e.dtype,
                      " does not fit the ", e.end - e.begin, " bytes it has"));
  }
}

// In order of their offsets the tensors cover the data exactly.
void check_cover(const Source& source, const std::map<std::string, Safetensors::Entry>& entries, std::uint64_t bytes) {
  std::vector<std::pair<const std::string*, const Safetensors::Entry*>> order;
  order.reserve(entries.size());
  for (const auto& [name, e] : entries) order.emplace_back(&name, &e);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  std::uint64_t at = 0;
  for (const auto& [name, e] : order) {
    if (e->end > bytes)
      fail(source, text("tensor '", *name, "' ends at byte ", e->end, " of the data, which has ", bytes));
    if (e->begin < at)
      fail(source,
           text("tensor '", *name, "' begins at byte ", e->begin, ", inside the tensor before it, which ends at ", at));
    if (e->begin > at) fail(source, text("bytes ", at, " to ", e->begin, " of the data belong to no tensor"));
    at = e->end;
  }
  if (at != bytes) fail(source, text("bytes ", at, " to ", bytes, " of the data belong to no tensor"));
}

}  // namespace

Safetensors::Safetensors(const Source& source) : source_(source) {
  unsigned char start[8];
  source.read(0, std::as_writable_bytes(std::span(start)));
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | start[i];
  const std::uint64_t follow = source.size() - 8;
  if (length > follow) fail(source, text("its header claims ", length, " bytes, but ", follow, " follow"));
  if (length > kMaxHeader) fail(source, text("its header must have at most ", kMaxHeader, " bytes (got ", length, ")"));
  std::string header(length, '\0');
  source.read(8, std::as_writable_bytes(std::span(header)));
  data_ = 8 + length;
  entries_ = parse_safetensors_header(source.name(), header);
  for (const auto& [name, e] : entries_) check_size(source, name, e);
  check_cover(source, entries_, source.size() - data_);
}

Array Safetensors::read(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    std::string names;
    for (const auto& [other, e] : entries_) names += (names.empty() ? "" : ", ") + other;
    if (names.size() > 200) names = names.substr(0, 200) + "..";
    fail(source_, text("it has no tensor '", name, "'; it has ", names.empty() ? "none" : names));
  }
  const Entry& e = found->second;
  const TypeRow* row = type_named(e.dtype);
  if (!row->dtype) {
    throw Error(ErrorCode::bad_dtype, text(source_.name(), ": tensor '", name,
                                           "' must be F32, F16, BF16, F8_E4M3, BOOL, I32 or I64 (got ", e.dtype, ")"));
  }
  Array array(name, *row->dtype, e.shape);
  source_.read(data_ + e.begin, {array.data(), array.bytes()});
  return array;
}

void write_safetensors(OutputFile& file, std::span<const std::pair<std::string, const Array*>> arrays) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  std::uint64_t at = 0;
  for (const auto& [name, array] : arrays) {
    const auto* row = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [dtype = array->dtype()](const TypeRow& r) { return r.dtype == dtype; });
    header[name] = {{"dtype", row->name}, {"shape", array->shape()}, {"data_offsets", {at, at + array->bytes()}}};
    at += array->bytes();
  }
  std::string json = header.dump();
  json.resize(round_up(json.size(), 8), ' ');  // the data begins at a multiple of 8
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(json.size() >> (8 * i));
  file.write(std::as_bytes(std::span(length)));
  file.write(std::as_bytes(std::span(json)));
  for (const auto& [name, array] : arrays) file.write({array->data(), array->bytes()});
}

}  // namespace onepass::io
