#!/usr/bin/env bash
# tests/cuda/sanitize.sh ONEPASS [TOOL...]: on a machine with a GPU, compute-sanitizer over the kernels of sanitize.txt and
# on_host/kernels.txt, each by the family that its line names; the results are judged by the float64 oracle as well.
# TOOL: memcheck, racecheck, initcheck, synccheck; all four by default. $JOBS: processes at once (all cores), $FILTER: a
# regular expression that lines must match, $KERNELS: other lists. Exit status 1: somebody found something.
set -euo pipefail
[[ $# -ge 1 ]] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
onepass=$(realpath "$1")
tools=("${@:2}")
[[ ${#tools[@]} -gt 0 ]] || tools=(memcheck racecheck initcheck synccheck)
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
export onepass reports

# one LINE TOOL...: says in files of $reports how the check went on its own, then under each tool.
one() {
  local family name problem said
  read -r family name problem <<<"$1"
  local implementation=cuda.${family%b}
  [[ $family != *b ]] || implementation+=_backward
  case $family:$problem in
    rowstates:*) return ;;  # the first of two launches, on its own only on the host emulator
    jvpplain:*) implementation=cuda.jvp_plain ;;
    jvpsm90:*) implementation=cuda.sm90_jvp ;;
    backwardjvp:*) implementation=cuda.backward_jvp ;;
    backwardjvpsm90:*) implementation=cuda.sm90_backward_jvp ;;
    backwardplain:bwd_jvp*) implementation=cuda.backward_jvp_plain ;;
    backwardplain:*) implementation=cuda.backward_plain ;;
    rows:softmax_bwd*) implementation=cuda.softmax_backward ;;
    rows:*) implementation=cuda.softmax ;;
    gemm:*) implementation=cuda.flat_gemm ;;
  esac
  [[ $name != *fp8rows* ]] || implementation=cuda.decode_fp8  # on_host/decode_config.hpp has these names
  local check=("$onepass" check "$problem cuda" --implementation "$implementation" --distribution normal --threads 1)
  for tool in "${@:2}"; do  # their exit status is 9 if they found something, 1 if the result was wrong
    unset ONEPASS_RACECHECK
    [[ $tool != racecheck ]] || export ONEPASS_RACECHECK=1  # kernels in which every lane arrives at barriers
    said=$("${check[@]}" 2>&1) || { found check "$1: $said"; continue; }
    if said=$(timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "${check[@]}" 2>&1); then
      touch "$reports/$family.$name.$tool.clean"
      printf '%s, %s: clean\n' "$1" "$tool"
    else
      found "$tool" "$1, $tool: exit status $?"$'\n'"$(head -40 <<<"$said")"
    fi
  done
}
found() {  # what is found is said at once
  printf '%s\n' "$2" | tee "$reports/$family.$name.$1.bad"
}
export -f one found

lists=("$here/sanitize.txt" "$here/on_host/kernels.txt")
# shellcheck disable=SC2206
[[ -z ${KERNELS:-} ]] || lists=($KERNELS)
cat "${lists[@]}" | grep -v '^#' | grep -E "${FILTER:-.}" | tr '\n' '\0' |
  xargs -0 -P "${JOBS:-$(nproc)}" -I LINE bash -c 'one "$@"' one LINE "${tools[@]}"
shopt -s nullglob
bad=("$reports"/*.bad)
for tool in "${tools[@]}"; do
  clean=("$reports"/*."$tool".clean) found=("$reports"/*."$tool".bad)
  printf '%s: %d kernels clean, %d not\n' "$tool" ${#clean[@]} ${#found[@]}
done
wrong=("$reports"/*.check.bad)
printf 'without a tool: %d wrong or refused\n' ${#wrong[@]}
[[ ${#bad[@]} -eq 0 ]]
