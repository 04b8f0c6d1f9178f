#!/usr/bin/env bash
# Installs what Weft needs from the system's own packages (Debian 12, Ubuntu 22.04 and 24.04, and their relatives).
#
#   scripts/install_deps.sh [build] [mpi] [demo] [bench] [tidy]      default: build demo
#
# Does nothing, at once, when everything is there. Uses sudo when it is not root.
# WEFT_SKIP_DEPS=1 leaves the machine alone: for systems where the libraries were installed by other means.
set -euo pipefail

# "a|b" means: whichever of these names this system knows.
declare -A groups=(
  [build]="g++ cmake ninja-build ccache pkg-config libdnnl-dev|libonednn-dev|onednn-dev libfmt-dev nlohmann-json3-dev
           libtomlplusplus-dev|libtoml++-dev libpcre2-dev libxxhash-dev libgtest-dev"
  [mpi]="libopenmpi-dev|libmpich-dev openmpi-bin|mpich"
  [demo]="bible-kjv"
  [bench]="libbenchmark-dev"
  [tidy]="clang-format clang-tidy"
)

say() { echo "install_deps: $*" >&2; }
is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }
# An uninstallable or purely virtual name has no candidate.
is_known() { [[ $(LC_ALL=C apt-cache policy "$1" 2>/dev/null) == *"Candidate: "[^\(]* ]]; }

if [[ ${WEFT_SKIP_DEPS:-0} == 1 ]]; then exit 0; fi
[[ $# -gt 0 ]] || set -- build demo

wanted=()
for group in "$@"; do
  [[ -n ${groups[$group]:-} ]] || { say "unknown group '$group' (there are: ${!groups[*]})"; exit 2; }
  read -r -d '' -a names <<<"${groups[$group]}" || true
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  say "this is no Debian or Ubuntu system; please install by hand what these packages hold:"
  say "  ${wanted[*]}"
  say "going on; the configuration step names whatever is missing."
  exit 0
fi

missing=()
for names in "${wanted[@]}"; do
  found=0
  for name in ${names//|/ }; do is_installed "$name" && found=1 && break; done
  [[ $found == 1 ]] || missing+=("$names")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) != 0 ]]; then
  if ! command -v sudo >/dev/null; then
    say "missing: ${missing[*]}"
    say "Neither root nor sudo here. Ask an administrator for: apt-get install ${missing[*]%%|*}"
    say "or set WEFT_SKIP_DEPS=1 if the libraries are installed by other means."
    exit 1
  fi
  as_root=(sudo)
  # Without a terminal nobody can type a password: fail instead of waiting.
  [[ -t 0 ]] || as_root=(sudo -n)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" \
    >>"$log" 2>&1
}

# Names one package of each entry that the package lists know; sets `chosen`; false when some entry has none.
choose() {
  chosen=()
  unknown=()
  for names in "${missing[@]}"; do
    found=""
    for name in ${names//|/ }; do
      if is_known "$name"; then found=$name; break; fi
    done
    if [[ -n $found ]]; then chosen+=("$found"); else unknown+=("$names"); fi
  done
  [[ ${#unknown[@]} == 0 ]]
}

fresh=0
update() {
  say "refreshing the package lists"
  fresh=1
  apt update || { cat "$log" >&2; say "apt-get update failed"; exit 1; }
}
choose || update
if ! choose; then
  say "this system's package lists do not know: ${unknown[*]}"
  say "On Ubuntu the 'universe' component must be enabled (add-apt-repository universe)."
  exit 1
fi
say "installing ${chosen[*]}"
if ! apt install --yes --no-install-recommends "${chosen[@]}"; then
  # Stale lists point to files that are gone: refresh once and try again.
  if [[ $fresh == 1 ]] || ! { update; apt install --yes --no-install-recommends "${chosen[@]}"; }; then
    tail -n 30 "$log" >&2
    say "apt-get install failed (its last lines are above)"
    exit 1
  fi
fi
say "done"
