// Files written by hand as bytes and a folder to keep them in.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "onepass/error.hpp"
#include "support/sentence.hpp"
#include "tools/onepass/io/source.hpp"

namespace onepass::test {

inline std::string little_endian(std::uint64_t value, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s += static_cast<char>(value >> (8 * i) & 0xff);
  return s;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The file of numpy.save: the header padded with blanks to a multiple of 64 and ended by a newline.
inline std::string npy(const std::string& literal, const std::string& data, int version = 1) {
  const std::size_t prefix = version == 1 ? 10 : 12;
  std::string header = literal;
  header.resize((prefix + header.size() + 1 + 63) / 64 * 64 - prefix, ' ');
  header.back() = '\n';
  return "\x93NUMPY" + little_endian(static_cast<std::uint64_t>(version), 1) + little_endian(0, 1) +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + data;
}
inline std::string npy_literal(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") + ", 'shape': (" + shape +
         "), }";
}

inline std::string safetensors(const std::string& header, const std::string& data) {
  return little_endian(header.size(), 8) + header + data;
}

inline io::MemorySource source(const std::string& bytes) {
  return {"x", std::as_bytes(std::span(bytes.data(), bytes.size()))};
}

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "onepass-test-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator()(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream((*this)(name), std::ios::binary) << bytes;
    return (*this)(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream file((*this)(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<std::string> names() const {  // sorted
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      all.push_back(entry.path().filename().string());
    std::sort(all.begin(), all.end());
    return all;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace onepass::test
