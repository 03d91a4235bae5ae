#include "tools/onepass/io/safetensors_header.hpp"
#include "base/text.hpp"

#include <cstdint>
#include <utility>

#include <nlohmann/json.hpp>

#include "onepass/error.hpp"

namespace onepass::io {
namespace {

using nlohmann::json;

// {"__metadata__": {name: text}, tensor: {"dtype": text, "shape": [n, ..], "data_offsets": [begin, end]}, ..}
class Events final : public nlohmann::json_sax<json> {
 public:
  explicit Events(const std::string& file) : file_(file) {}
  std::map<std::string, Safetensors::Entry> entries;

  bool start_object(std::size_t) override {
    if (where_ == Where::start)
      where_ = Where::top;
    else if (where_ == Where::value)
      where_ = Where::tensor;
    else if (where_ == Where::metadata_value)
      where_ = Where::metadata;
    else
      unexpected("an object");
    return true;
  }
  bool end_object() override {
    if (where_ == Where::tensor) finish_tensor();
    where_ = where_ == Where::top ? Where::end : Where::top;
    return true;
  }
  bool key(std::string& key) override {
    if (where_ == Where::top) {
      name_ = key;
      seen_ = 0;
      if (key == "__metadata__") {
        if (std::exchange(has_metadata_, true)) fail("it has __metadata__ twice");
        where_ = Where::metadata_value;
      } else {
        if (entries.count(key)) fail("it has tensor '" + key + "' twice");
        entry_ = &entries[key];
        where_ = Where::value;
      }
    } else if (where_ == Where::tensor) {
      const unsigned bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
      if (bit == 0) fail("tensor '" + name_ + "' has the unknown key '" + key + "'");
      if (seen_ & bit) fail("tensor '" + name_ + "' has '" + key + "' twice");
      seen_ |= bit;
      where_ = bit == 1 ? Where::dtype : bit == 2 ? Where::shape : Where::offsets;
    }
    return true;
  }
  bool start_array(std::size_t) override {
    if (where_ == Where::shape)
      where_ = Where::sizes;
    else if (where_ == Where::offsets)
      where_ = Where::begin;
    else
      unexpected("a list");
    return true;
  }
  bool end_array() override {
    if (where_ == Where::begin || where_ == Where::stop) fail("data_offsets of tensor '" + name_ + "' are not a pair");
    where_ = Where::tensor;
    return true;
  }
  bool string(std::string& value) override {
    if (where_ == Where::dtype) {
      entry_->dtype = value;
      where_ = Where::tensor;
    } else if (where_ != Where::metadata) {
      unexpected("a text");
    }
    return true;
  }
  bool number_unsigned(std::uint64_t n) override {
    if (where_ == Where::sizes && n <= INT64_MAX)
      entry_->shape.push_back(static_cast<std::int64_t>(n));
    else if (where_ == Where::begin)
      entry_->begin = n, where_ = Where::stop;
    else if (where_ == Where::stop)
      entry_->end = n, where_ = Where::pair;
    else
      unexpected("the number " + std::to_string(n));
    return true;
  }
  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(std::int64_t n) override { unexpected("the number " + std::to_string(n)); }
  bool number_float(double, const std::string& digits) override { unexpected("the number " + digits); }
  bool binary(json::binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::detail::exception&) override { no_json(at); }

  [[noreturn]] void no_json(std::size_t at) const { fail(text("it is not JSON at byte ", at)); }

 private:
  enum class Where {
    start,
    top,
    value,
    metadata_value,
    metadata,
    tensor,
    dtype,
    shape,
    sizes,
    offsets,
    begin,
    stop,
    pair,
    end
  };

  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::bad_file, text("the safetensors header of ", file_, " is damaged: ", why));
  }
  [[noreturn]] void unexpected(const std::string& what) const {
    fail(what + " is unexpected" + (name_.empty() ? "" : ", at '" + name_ + "'"));
  }
  void finish_tensor() const {
    if (seen_ != 7) fail("tensor '" + name_ + "' lacks dtype, shape or data_offsets");
  }

  const std::string& file_;
  Where where_ = Where::start;
  std::string name_;
  Safetensors::Entry* entry_ = nullptr;
  unsigned seen_ = 0;
  bool has_metadata_ = false;
};

}  // namespace

std::map<std::string, Safetensors::Entry> parse_safetensors_header(const std::string& file, std::string_view header) {
  Events events(file);
  // nlohmann-json takes a 0 for the end of the text; whatever follows it would go unread.
  if (const std::size_t zero = header.find('\0'); zero != header.npos) events.no_json(zero);
  json::sax_parse(header.begin(), header.end(), &events);
  return std::move(events.entries);
}

}  // namespace onepass::io
