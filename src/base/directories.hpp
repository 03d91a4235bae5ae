// Where the library keeps what it has found out about a machine, and how such a file is read.
#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace onepass {

std::filesystem::path from_environment(const char* name);  // empty if it is unset or empty
std::filesystem::path cache_directory();  // ONEPASS_CACHE, $XDG_CACHE_HOME/onepass, ~/.cache/onepass; empty: none

// The bytes of a regular file of at most `most` bytes. FIFOs, devices and folders are refused without being read. `why`
// afterwards: empty if the file was read or does not exist, else a sentence.
std::optional<std::string> read_file(const std::filesystem::path& path, std::size_t most, std::string& why);

}  // namespace onepass
