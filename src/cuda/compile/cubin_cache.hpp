// Compiled kernels on disk. A kernel is looked for in a prebuilt directory ($ONEPASS_PREBUILT, read only, for machines
// without NVRTC), then in the cache ($ONEPASS_CACHE, else $XDG_CACHE_HOME/onepass, else ~/.cache/onepass), then
// compiled and kept.
//
// The loaded code runs, so it must come from users that the process trusts already: root and its own (effective) user.
// A directory is used if one of them owns it and no other user may write to it, sticky or not. An entry is used if it
// is a regular file of theirs that no other user may write to. The parent directories are not checked: wherever they
// lead, these two rules hold.
//
// Safe for many processes at once (files appear by rename). A file that is truncated, damaged or of another library is
// as good as absent. A directory that cannot be used costs a compilation per process and nothing else.
#pragma once
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/directories.hpp"
#include "cuda/compile/program.hpp"

namespace onepass::cuda {

std::filesystem::path prebuilt_directory();

Cubin cubin_for(const KernelProgram& program);

std::string compiler_version();  // of NVRTC, "13.0"; empty if there is none

inline constexpr std::size_t kMaxCubinBytes = std::size_t{64} << 20;  // of a file; ours have some 50 KB

// One file of a directory. `compiler` is "13.0"; an empty one accepts what any compiler made. `why` gets a sentence if
// the directory or the file is there and is refused, else "".
std::optional<Cubin> read_cubin(const std::filesystem::path& directory, const std::string& key,
                                const std::string& compiler, std::string* why = nullptr);
// `why` gets a sentence if it could not. The directory is made if it is missing.
bool write_cubin(const std::filesystem::path& directory, const std::string& key, const std::string& compiler,
                 const Cubin& cubin, std::string* why = nullptr);

// The readable entries of a directory, for `onepass info`.
struct CubinDirectory {
  std::string refusal;                // a sentence; empty: it is used, or is made when it is needed
  int kernels = 0;                    // entries that would be taken
  std::vector<std::string> refusals;  // a sentence for each that would not
};
CubinDirectory look_through(const std::filesystem::path& directory);

}  // namespace onepass::cuda
