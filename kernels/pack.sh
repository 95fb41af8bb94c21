#!/usr/bin/env bash
# Compiles the kernels without the library: `kernels/pack.sh DIR [flags for nvcc]...` fills DIR with
# them. A library that was built from the same params.h uses them instead of its own kernels while
# the environment variable LLAMABI_KERNELS names DIR. With -lineinfo, profilers and
# compute-sanitizer show source lines.
#
# The environment variable NVCC names another nvcc than the one that scripts/nvcc fetches.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($# == 0)); then
  echo "usage: kernels/pack.sh DIR [flags for nvcc]..." >&2
  exit 2
fi
dir=$1
shift
nvcc=${NVCC:-$(scripts/nvcc)}
mkdir -p "$dir"
rm -f "$dir"/*.fatbin
cp kernels/params.h "$dir/"
"$nvcc" --version | sed -nE 's/.*release ([0-9]+)\..*/\1000/p' >"$dir/driver"
for source in kernels/*.cu; do
  # shellcheck disable=SC2046
  "$nvcc" $(cat kernels/nvcc.flags) "$@" -fatbin -o "$dir/$(basename "$source" .cu).fatbin" "$source" &
  while (($(jobs -rp | wc -l) >= ${JOBS:-2})); do wait -n; done
done
while (($(jobs -p | wc -l) > 0)); do wait -n || { (($? == 127)) && break; exit 1; }; done
echo "$dir: $(cat "$dir"/*.fatbin | wc -c) bytes of kernels for $("$nvcc" --version | sed -nE 's/.*(release [0-9.]+).*/\1/p')"
