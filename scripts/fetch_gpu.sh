#!/usr/bin/env bash
# Fetches what a CUDA build needs beside the CUDA toolkit, by package name, into the ignored folder .gpu:
# headers of cuDNN's C++ frontend always; cuDNN and NCCL (headers and libraries) where the system has none.
#
#   scripts/fetch_gpu.sh [--all]      --all: cuDNN and NCCL even where the system has its own
set -euo pipefail
cd "$(dirname "$0")/.."
out=.gpu
say() { echo "fetch_gpu: $*" >&2; }

python3 -m pip --version >/dev/null 2>&1 || { say "needs python3 with pip to fetch packages (the program itself does not)"; exit 1; }
has_header() { compgen -G "/usr/include/$1" >/dev/null || compgen -G "/usr/local/include/$1" >/dev/null ||
  compgen -G "/usr/local/cuda*/include/$1" >/dev/null || compgen -G "/usr/include/*/$1" >/dev/null; }

packages=(nvidia-cudnn-frontend)
if [[ ${1:-} == --all ]] || ! has_header cudnn.h; then packages+=(nvidia-cudnn-cu13); fi
if [[ ${1:-} == --all ]] || ! has_header nccl.h; then packages+=(nvidia-nccl-cu13); fi

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
say "fetching ${packages[*]}"
python3 -m pip -q --disable-pip-version-check download --no-deps -d "$wheels" "${packages[@]}"
mkdir -p "$out/include" "$out/lib"
for wheel in "$wheels"/*.whl; do
  python3 - "$wheel" "$out" <<'PY'
import pathlib, sys, zipfile
wheel, out = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in wheel.namelist():
    for kind in ("include", "lib"):
        mark = kind + "/"
        at = 0 if name.startswith(mark) else name.find("/" + mark) + 1
        if (at or name.startswith(mark)) and not name.endswith("/") and ".py" not in name:
            to = out / kind / name[at + len(mark):]
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(wheel.read(name))
            break
PY
done
say "done: $(cd "$out" && pwd)"
