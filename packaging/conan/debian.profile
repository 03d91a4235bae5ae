# Debian 12's Highway, oneTBB and CMake in place of Conan's packages, so that nothing is downloaded.
include(default)
[settings]
build_type=Release
compiler.cppstd=20
[platform_requires]
highway/1.0.3
onetbb/2021.8.0
[platform_tool_requires]
cmake/3.25.1
[conf]
tools.cmake.cmaketoolchain:generator=Ninja
