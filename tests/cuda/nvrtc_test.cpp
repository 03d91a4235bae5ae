// NVRTC out of a folder that the loader does not search, such as pip's.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <filesystem>

#include "cuda/driver/api.hpp"

namespace onepass::cuda {
namespace {

TEST(Nvrtc, TakesTheBuiltinsThatLieBesideIt) {
  std::string why;
  const Nvrtc* const api = nvrtc(&why);
  if (!api) GTEST_SKIP() << why;
  Dl_info found{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(api->version), &found), 0);
  const std::filesystem::path beside =
      std::filesystem::path(found.dli_fname).parent_path() /
      ("libnvrtc-builtins.so." + std::to_string(api->major) + "." + std::to_string(api->minor));
  if (!std::filesystem::exists(beside)) GTEST_SKIP() << beside << " is not there";
  void* const loaded = dlopen(beside.c_str(), RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(loaded, nullptr) << beside << " is not what NVRTC will open";
  if (loaded) dlclose(loaded);
}

}  // namespace
}  // namespace onepass::cuda
