#!/usr/bin/env bash
# neon_packages.sh FOLDER: unpacks Debian's arm64 libraries there. Uses apt with a state of its own in the folder, so
# the machine's own list of architectures stays as it is and no root is needed.
set -euo pipefail
folder=$(realpath -m "$1")
packages=(libhwy-dev libhwy1 libtbb-dev libtbb12 libtbbbind-2-5 libtbbmalloc2 libhwloc15 libgtest-dev librapidcheck-dev)
[[ $(cat "$folder/complete" 2>/dev/null) == "${packages[*]}" ]] && exit

rm -rf "$folder"
mkdir -p "$folder"/apt/{lists/partial,cache/archives/partial} "$folder/archives"
touch "$folder/apt/status"
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State="$folder/apt"
     -o Dir::State::status="$folder/apt/status" -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User=)
"${apt[@]}" update
(cd "$folder/archives" && "${apt[@]}" download "${packages[@]}")
for archive in "$folder"/archives/*.deb; do dpkg-deb -x "$archive" "$folder"; done
rm -rf "$folder/apt" "$folder/archives"
echo "${packages[*]}" >"$folder/complete"
