#!/usr/bin/env bash
# neon_packages.sh FOLDER [PYTHON]: unpacks Debian's arm64 libraries there, and with a version (3.11) its Python. Uses apt
# with a state of its own in the folder, so the machine's own list of architectures stays as it is and no root is needed.
set -euo pipefail
folder=$(realpath -m "$1")
packages=(libhwy-dev libhwy1 libtbb-dev libtbb12 libtbbbind-2-5 libtbbmalloc2 libhwloc15 libgtest-dev librapidcheck-dev
          libcli11-dev libfmt-dev libfmt9 nlohmann-json3-dev)
[[ $# -lt 2 ]] || packages+=("python$2-minimal" "libpython$2-minimal" "libpython$2-stdlib" "libpython$2-dev" zlib1g
                             libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libcrypt1)
[[ $(cat "$folder/complete" 2>/dev/null) == "${packages[*]}" ]] && exit

rm -rf "$folder"
mkdir -p "$folder"/apt/{lists/partial,cache/archives/partial} "$folder/archives"
touch "$folder/apt/status"
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$folder/apt"
     -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User=)
"${apt[@]}" update
(cd "$folder/archives" && "${apt[@]}" download "${packages[@]}")
for archive in "$folder"/archives/*.deb; do dpkg-deb -x "$archive" "$folder"; done
# pyconfig.h asks for its other half from one folder up, which a cross compiler does not search.
[[ $# -lt 2 ]] || ln -s ../aarch64-linux-gnu "$folder/usr/include/python$2/aarch64-linux-gnu"
rm -rf "$folder/apt" "$folder/archives"
echo "${packages[*]}" >"$folder/complete"
