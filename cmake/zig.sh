#!/usr/bin/env bash
# zig.sh FOLDER ZIG TARGET: makes FOLDER ready to compile for another Linux, such as x86_64-linux-gnu.2.28 (glibc 2.28).
# It gets
# - bin/clang and bin/clang++: ZIG, the program of the Python package ziglang, is a Clang that has the headers and the
#   symbols of every glibc, and a libc++ that it links into what it makes;
# - include.d: headers and CMake packages of libraries that Debian has installed, away from those of Debian's glibc;
# - tbb: oneTBB as a static library, compiled from Debian's source package;
# - toolchain.cmake.
set -euo pipefail
folder=$(realpath -m "$1") zig=$2 target=$3
headers=(libhwy-dev libcli11-dev libfmt-dev nlohmann-json3-dev)
for name in libhwy libfmt; do  # their CMake packages look whether the shared libraries are there
  headers+=("$(dpkg-query -S "$(realpath "$(g++ -print-file-name="$name.so")")" | cut -d: -f1)")
done
wanted=$("$zig" version; echo "$target"; dpkg-query -W "${headers[@]}" libtbb-dev; cat "${BASH_SOURCE[0]}")
[[ $(cat "$folder/complete" 2>/dev/null) == "$wanted" ]] && exit

rm -rf "$folder"
mkdir -p "$folder"/{bin,include.d,source/apt/{lists/partial,cache/archives/partial,parts}}
# script NAME COMMAND: a compiler that CMake and ccache take for clang.
script() {
  printf '#!/bin/sh\n# %s\nexec %q %s -target %s "$@"\n' "$("$zig" version)" "$zig" "$2" "$target" >"$folder/bin/$1"
  chmod +x "$folder/bin/$1"
}
script clang cc
script clang++ c++
cat >"$folder/toolchain.cmake" <<CMAKE
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${target%%-*})
set(CMAKE_C_COMPILER $folder/bin/clang)
set(CMAKE_CXX_COMPILER $folder/bin/clang++)
set(CMAKE_LIBRARY_ARCHITECTURE $(dpkg-architecture -qDEB_HOST_MULTIARCH))
set(CMAKE_FIND_ROOT_PATH $folder/include.d/usr $folder/tbb)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
CMAKE

dpkg -L "${headers[@]}" | sort -u | while IFS= read -r path; do [[ -d $path ]] || echo "$path"; done |
  tar -c -h -f - --files-from=- 2>/dev/null | tar -x -C "$folder/include.d"

# apt with a state of its own, in which the machine's sources are sources of source packages too.
cd "$folder/source"
for list in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
  [[ ! -e $list ]] || sed -E 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$list" >"apt/parts/$(basename "$list")"
done
apt=(apt-get -qq -o Dir::State="$PWD/apt" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$PWD/apt/cache"
     -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/apt/parts" -o APT::Sandbox::User=)
"${apt[@]}" update
"${apt[@]}" source "$(dpkg-query -W -f='${source:Package}=${source:Version}' libtbb-dev)"
cmake -S ./*tbb-*/ -B build -G Ninja -DCMAKE_TOOLCHAIN_FILE="$folder/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_INSTALL_PREFIX="$folder/tbb" -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DTBB_TEST=OFF \
  -DTBB_STRICT=OFF -DTBBMALLOC_BUILD=OFF
cmake --build build --target install
rm -rf "$folder/source"
echo "$wanted" >"$folder/complete"
