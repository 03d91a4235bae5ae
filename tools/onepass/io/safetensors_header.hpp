// The JSON header of a safetensors file, read as a stream of events: memory stays in proportion to the header, whatever
// it nests, and a key that stands twice is seen.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "tools/onepass/io/safetensors.hpp"

namespace onepass::io {

std::map<std::string, Safetensors::Entry> parse_safetensors_header(const std::string& file, std::string_view header);

}  // namespace onepass::io
