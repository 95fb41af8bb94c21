#!/usr/bin/env bash
# Builds what tests/gpu/day.sh needs on a machine without Rust, and puts it into one folder
# and into DIR.tar.xz, which is less than 64 MiB together with the checkout:
# `tests/gpu/pack.sh [DIR]`; DIR is build/gpu-day by default. Copy either to the machine with the
# GPU and run DIR/tests/gpu/day.sh there. That machine's glibc must be at least as new as this
# machine's.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${1:-build/gpu-day}
if [[ -e $dir && ! -e $dir/tests/gpu/day.sh && -n $(ls -A "$dir") ]]; then
  echo "$dir: has something else in it" >&2
  exit 2
fi
# A target directory of its own: what `make build` left is not touched.
export LLAMABI_BUILD_KERNELS=required CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-build/with-kernels}
scripts/nvcc >/dev/null
cargo build --release --locked
built=$(cargo test --release --locked --no-run --message-format=json --test gpu)
rm -rf "$dir"
mkdir -p "$dir"/{bin,include,benches/peers,tests/data,tests/gpu,demo,kernels}
strip --strip-unneeded -o "$dir/libllamabi.so" "$CARGO_TARGET_DIR/release/libllamabi.so"
executable=$(sed -nE 's/.*"executable":"([^"]*\/gpu-[0-9a-f]*)".*/\1/p' <<<"$built" | tail -n1)
[[ -x $executable ]] || { echo "cargo does not say where the test gpu is" >&2 && exit 1; }
strip --strip-all -o "$dir/bin/gpu" "$executable"
cp include/llamabi.h "$dir/include/"
cp benches/peers/{llamabi,convert}.py "$dir/benches/peers/"
cp benches/gpu_cost.py "$dir/benches/"
cp tests/gpu/*.py tests/gpu/day.sh "$dir/tests/gpu/"
cp -r tests/data/{reference,families,tokenizer,gguf,quantised} "$dir/tests/data/"
cp -r demo/{meta,hf} "$dir/demo/"
cp kernels/*.cu kernels/*.h kernels/nvcc.flags kernels/pack.sh "$dir/kernels/"
git rev-parse HEAD >"$dir/commit" 2>/dev/null || echo unknown >"$dir/commit"
git diff --quiet HEAD 2>/dev/null || echo "and changes" >>"$dir/commit"
# A fatbin begins with these four bytes; the library also contains them as a constant.
images=$(LC_ALL=C grep -oaP '\x50\xed\x55\xba' "$dir/libllamabi.so" | wc -l)
((images >= 5)) || { echo "$dir/libllamabi.so has no kernels" >&2 && exit 1; }
size=$(du -sm "$dir" | cut -f1)
echo "$dir: $size MiB, $(sort -V <(readelf -W --dyn-syms "$dir/libllamabi.so" "$dir"/bin/* | grep -o 'GLIBC_[0-9.]*') | tail -n1 | tr _ ' ') or newer"
XZ_OPT=-9 tar -C "$(dirname "$dir")" -cJf "$dir.tar.xz" "$(basename "$dir")"
archive=$(du -sm "$dir.tar.xz" | cut -f1)
# Where the whole checkout is copied, the archive goes along in place of the folder.
tree=$(($(git ls-files -z 2>/dev/null | xargs -0 -r stat -c %s -- 2>/dev/null | awk '{ sum += $1 } END { print int(sum / 1048576) + 1 }')))
echo "$dir.tar.xz: the same in $archive MiB; with the checkout's files $((archive + tree)) MiB"
((archive + tree < 64)) || { echo "$dir.tar.xz and the checkout are too large: 64 MiB can be carried" >&2 && exit 1; }
