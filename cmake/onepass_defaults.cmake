# C++20, warnings as errors, ccache where there is one. No fast-math: -inf is a value here. No contraction: what is to be one
# instruction says so (MulAdd), and a product that is rounded for itself (Arith::mul) stays one.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-ffp-contract=off)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
endif()

# Large headers are parsed once instead of once a file. A compiler cache does not cache such objects.
set(precompile OFF)
if(NOT CMAKE_CXX_COMPILER_LAUNCHER AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  set(precompile ON)
endif()
option(ONEPASS_PRECOMPILE "Precompile the standard headers that most files include" ${precompile})

add_library(onepass_warnings INTERFACE)
target_compile_options(onepass_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-psabi
  # GCC 12 reports these falsely on std::string (GCC bug 105651), the last two behind a precompiled header.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
  $<$<BOOL:${ONEPASS_PRECOMPILE}>:-Wno-array-bounds -Wno-stringop-overflow>
  # What is left out here is set by an open() later, or braces are left out.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-field-initializers -Wno-missing-braces>
  $<$<BOOL:${ONEPASS_WERROR}>:-Werror>)
