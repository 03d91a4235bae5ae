// Compiled kernels on disk. A kernel is looked for in a prebuilt directory ($ONEPASS_PREBUILT, read only, for machines
// without NVRTC), then in the cache ($ONEPASS_CACHE, else $XDG_CACHE_HOME/onepass, else ~/.cache/onepass), then
// compiled and kept.
//
// Safe for many processes at once (files appear by rename). A file that is truncated, damaged or of another library is
// as good as absent. A directory that cannot be written costs a compilation per process and nothing else.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "cuda/host/program.hpp"

namespace onepass::cuda {

std::filesystem::path cache_directory();  // empty: none can be named
std::filesystem::path prebuilt_directory();

Cubin cubin_for(const KernelProgram& program);

std::string compiler_version();  // of NVRTC, "13.0"; empty if there is none

// One file of a directory. `compiler` is "13.0"; an empty one accepts what any compiler made.
std::optional<Cubin> read_cubin(const std::filesystem::path& directory, const std::string& key,
                                const std::string& compiler);
bool write_cubin(const std::filesystem::path& directory, const std::string& key, const std::string& compiler,
                 const Cubin& cubin);

}  // namespace onepass::cuda
