#include "cuda/host/cubin_cache.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include <unistd.h>

#include "cuda/host/api.hpp"
#include "onepass/error.hpp"

namespace onepass::cuda {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[] = "onepass cubin 1";

fs::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? fs::path(value) : fs::path();
}

// Adler-like sums would miss swapped blocks; FNV-1a over the bytes does not, and files are some 50 KB.
std::uint64_t checksum(const std::string& bytes) {
  std::uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : bytes) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

}  // namespace

std::string compiler_version() {
  const Nvrtc* api = nvrtc();
  return api ? text(api->major, ".", api->minor) : std::string();
}

fs::path prebuilt_directory() { return from_environment("ONEPASS_PREBUILT"); }

fs::path cache_directory() {
  if (fs::path p = from_environment("ONEPASS_CACHE"); !p.empty()) return p;
  if (fs::path p = from_environment("XDG_CACHE_HOME"); !p.empty()) return p / "onepass";
  if (fs::path p = from_environment("HOME"); !p.empty()) return p / ".cache" / "onepass";
  return {};
}

// Text header (magic, key, compiler, sizes, checksum), then the log and the cubin.
std::optional<Cubin> read_cubin(const fs::path& directory, const std::string& key, const std::string& compiler) {
  std::ifstream file(directory / (key + ".cubin"), std::ios::binary);
  std::string magic, its_key, its_compiler, sizes;
  if (!std::getline(file, magic) || magic != kMagic || !std::getline(file, its_key) || its_key != key)
    return std::nullopt;
  if (!std::getline(file, its_compiler) || (!compiler.empty() && its_compiler != compiler) ||
      !std::getline(file, sizes))
    return std::nullopt;
  std::size_t log_bytes = 0, cubin_bytes = 0;
  std::uint64_t sum = 0;
  constexpr std::size_t kMost = std::size_t{64} << 20;
  if (!(std::istringstream(sizes) >> log_bytes >> cubin_bytes >> sum) || log_bytes > kMost || cubin_bytes > kMost)
    return std::nullopt;
  std::string body(log_bytes + cubin_bytes, '\0');
  if (!file.read(body.data(), static_cast<std::streamsize>(body.size())) ||
      file.peek() != std::ifstream::traits_type::eof())
    return std::nullopt;
  if (checksum(body) != sum) return std::nullopt;
  return Cubin{body.substr(log_bytes), body.substr(0, log_bytes)};
}

bool write_cubin(const fs::path& directory, const std::string& key, const std::string& compiler, const Cubin& cubin) {
  std::error_code error;
  fs::create_directories(directory, error);
  const fs::path final_path = directory / (key + ".cubin");
  std::string temporary = (directory / (key + ".XXXXXX")).string();
  const int fd = mkstemp(temporary.data());
  if (fd < 0) return false;
  const std::string body = cubin.log + cubin.bytes;
  const std::string all = text(kMagic, "\n", key, "\n", compiler, "\n", cubin.log.size(), " ", cubin.bytes.size(), " ",
                               checksum(body), "\n") +
                          body;
  bool ok = true;
  for (std::size_t done = 0; ok && done < all.size();) {
    const ssize_t n = ::write(fd, all.data() + done, all.size() - done);
    ok = n > 0;
    done += n > 0 ? static_cast<std::size_t>(n) : 0;
  }
  ok = ::close(fd) == 0 && ok;  // a full disk may speak up only here
  if (ok) fs::rename(temporary, final_path, error);
  if (!ok || error) fs::remove(temporary, error);
  return ok && !error;
}

Cubin cubin_for(const KernelProgram& program) {
  const std::string key = key_of(program), compiler = compiler_version();
  if (const fs::path d = prebuilt_directory(); !d.empty()) {
    if (auto found = read_cubin(d, key, "")) return *found;
  }
  const fs::path cache = cache_directory();
  if (!cache.empty()) {
    if (auto found = read_cubin(cache, key, compiler)) return *found;
  }
  Cubin made = compile(program);
  if (!cache.empty()) write_cubin(cache, key, compiler, made);  // not kept is not wrong
  return made;
}

}  // namespace onepass::cuda
