// A caller's text inside a sentence.
#pragma once
#include <string>
#include <string_view>

namespace onepass {

// Printable ASCII as it stands, any other byte as \x and two digits, so that a sentence is whole wherever it is read
// (it ends at a NUL in C and must be UTF-8 in Python); what is longer than `most` ends in "..".
inline std::string shown(std::string_view s, std::size_t most = 200) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : s.substr(0, most)) {
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && code < 0x7f)
      out += c;
    else
      out += {'\\', 'x', kDigits[code >> 4], kDigits[code & 15]};
  }
  return s.size() > most ? out + ".." : out;
}

}  // namespace onepass
