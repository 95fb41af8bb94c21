#!/usr/bin/env bash
# kernels.sh: KERNELS. Which nvcc each choice gives; that `make install` installs what `make build`
# left, whatever the shell that installs would have built; and a library with kernels, in a target
# directory of its own: what `make build` left is not touched. Its kernels are those of a stand-in
# for nvcc. The real ones are compiled and checked where kernels/compiled.txt is not of these
# sources, that is, where a kernel has changed.
#
#   kernels.sh [choice]    choice: only the first of these, in seconds
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
. tests/bindings/lib.sh
need rustc make cc strip
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
asked=${LLAMABI_BUILD_KERNELS:-auto}
release=${CARGO_TARGET_DIR:-target}/release
unset KERNELS LLAMABI_BUILD_KERNELS MAKEFLAGS MAKELEVEL MFLAGS
fail() { echo "kernels: $*" >&2; exit 1; }

# nvcc_at FILE RELEASE: a compiler of nothing.
nvcc_at() {
  mkdir -p "$(dirname "$1")"
  cat >"$1" <<END
#!/bin/sh
[ "\$1" != --version ] || { echo 'Cuda compilation tools, release $2, V$2.0'; exit; }
all=\$*
while [ \$# -gt 0 ]; do [ "\$1" != -o ] || to=\$2; shift; done
printf 'no kernels, of a stand-in for nvcc $2, asked for %s' "\$all" >"\$to"
END
  chmod +x "$1"
}

# ---- build.rs alone ----
rustc --edition 2024 -C debuginfo=0 build.rs -o "$work/build-script"
mkdir -p "$work/tree/kernels" "$work/out" "$work/empty"
touch "$work/tree/kernels/"{one.cu,params.h,nvcc.flags}
# chose EXPECTED [VARIABLE=VALUE...]: what build.rs says it did; its complaint where it fails
chose() {
  local expected=$1 said
  shift
  rm -f "$work/out/"*
  if (cd "$work/tree" && env -i HOME="$work/empty" PATH="$work/path" OUT_DIR="$work/out" CXX=/usr/bin/c++ "$@" "$work/build-script") \
    >"$work/said" 2>"$work/complaint"; then
    said=$(sed -n 's/.*BUILT: &str = "\(.*\)";$/\1/p' "$work/out/images.rs")
    # It has the kernels that it says it has.
    if [[ $said == *'with GPU'* ]]; then grep -q one.fatbin "$work/out/images.rs"; else ! grep -q fatbin "$work/out/images.rs"; fi ||
      fail "with $* build.rs says: $said, and writes: $(cat "$work/out/images.rs")"
  else
    said=$(tr '\n' ' ' <"$work/complaint")
  fi
  [[ $said == *"$expected"* ]] || fail "KERNELS: with $* build.rs says: $said; expected: $expected"
}
mkdir "$work/path"
if compgen -G '/usr/local/cuda*/bin/nvcc' >/dev/null || compgen -G '/usr/l*/python3*/*-packages/nvidia/cu13/bin/nvcc' >/dev/null; then
  echo "kernels: an nvcc is installed here: what there is without one is not tested"
else
  chose 'built without GPU kernels (no nvcc was found)'
  chose 'make nvcc' LLAMABI_BUILD_KERNELS=required
  nvcc_at "$work/tree/build/nvcc/nvidia/cu13/bin/nvcc" 13.7 # the one that `make test` fetches
  chose 'built without GPU kernels (no nvcc was found)'
  chose 'built without GPU kernels (no nvcc was found)' LLAMABI_BUILD_KERNELS=auto
  chose 'built with GPU kernels (nvcc 13.7)' LLAMABI_BUILD_KERNELS=required
fi
nvcc_at "$work/path/nvcc" 13.8
nvcc_at "$work/named" 13.9
chose 'built with GPU kernels (nvcc 13.8)'
chose 'built with GPU kernels (nvcc 13.8)' LLAMABI_BUILD_KERNELS=required
chose 'built with GPU kernels (nvcc 13.9)' LLAMABI_NVCC="$work/named"
chose 'built without GPU kernels (KERNELS was none)' LLAMABI_BUILD_KERNELS=none LLAMABI_NVCC="$work/named"
chose 'no file' LLAMABI_NVCC="$work/nowhere"
chose '"yes", must be auto, none or required' LLAMABI_BUILD_KERNELS=yes
echo "kernels: KERNELS chooses as documented"
[[ ${1:-} != choice ]] || exit 0

# ---- built and installed ----
cat >"$work/says.c" <<'END'
#include <llamabi.h>
#include <stdio.h>
int main(int argc, char **argv) {
  llama_error err = {sizeof err, 0, ""};
  llama_info info = {sizeof info};
  llama_t *llama = NULL;
  if (argc < 2 || llama_build(argv[1], NULL, NULL, &llama, &err) != LLAMA_OK || llama_get_info(llama, &info, &err) != LLAMA_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  printf("%u\n", info.gpu_kernels);
  llama_free(llama);
  return 0;
}
END
# installed TARGET WITH: what lies there, installed by a shell that has no cargo and asks for
# nothing, is the same bytes; and says 0 or 1.
installed() {
  local says
  rm -rf "$work/prefix"
  env PATH=/usr/bin:/bin HOME="$work/empty" CARGO_TARGET_DIR="$1" make --no-print-directory install PREFIX="$work/prefix" DESTDIR= >"$work/said" 2>&1 ||
    fail "make install: $(cat "$work/said")"
  strip --strip-unneeded -o "$work/built.so" "$1/release/libllamabi.so"
  cmp "$work/built.so" "$work/prefix/lib/libllamabi.so" || fail "what is installed is not what was built"
  cc "$work/says.c" -I"$work/prefix/include" -L"$work/prefix/lib" -Wl,-rpath,"$work/prefix/lib" -lllamabi -o "$work/says"
  says=$("$work/says" demo/meta)
  [[ $says == "$2" ]] || fail "the library of $1 says that gpu_kernels is $says: $(CARGO_TARGET_DIR=$1 scripts/built)"
  CARGO_TARGET_DIR=$1 scripts/built | sed 's/^/kernels: /'
}
with() { [[ $(CARGO_TARGET_DIR=$1 scripts/built) == *'built with GPU'* ]] && echo 1 || echo 0; }

installed "$(dirname "$release")" "$(with "$(dirname "$release")")"
# One whose sources have changed is not installed.
mkdir -p "$work/stale/release" && touch -d '1 hour ago' "$work/stale/release/"{libllamabi.so,libllamabi.a,llamabi-info,llamabi-quantize}
touch -d '2 hours ago' "$work/older"
echo "libllamabi.so: $work/older $work/said" >"$work/stale/release/libllamabi.d"
! CARGO_TARGET_DIR=$work/stale scripts/install --prefix "$work/never" >"$work/said" 2>&1 || fail "a stale library is installed"
grep -q "said is newer than $work/stale/release/libllamabi.so: make build" "$work/said" || fail "of a stale library it says: $(cat "$work/said")"

if [[ $asked == none ]]; then
  echo "kernels: KERNELS is none: the library with kernels is not built, nor are they compiled"
  exit
fi
# dependencies FROM TO: what the library depends on is the same with and without kernels, so it is
# copied, with its times, by which cargo knows that it is current. That is everything but the crate
# llamabi itself, whose names end with a hash of 16 digits right after its own.
dependencies() {
  local to
  mkdir -p "$2/deps"
  to=$(realpath "$2")
  find "$1/deps" -maxdepth 1 -type f ! -name 'libllamabi.*' ! -name '*llamabi-????????????????.*' \( -name '*.rlib' -o -name '*.rmeta' -o -name '*.so' -o -name '*.d' \) \
    -exec cp -a -t "$to/deps" {} +
  (cd "$1" && find build .fingerprint -mindepth 1 -maxdepth 1 ! -name 'llamabi-????????????????' -exec cp -a --parents -t "$to" {} +)
}

target=$(dirname "$release")
before=$(cksum "$release/libllamabi.so")
if [[ $(with "$target") == 1 ]]; then
  [[ $asked == auto ]] || export LLAMABI_BUILD_KERNELS=$asked
  kernels/ptxas.sh --built
  unset LLAMABI_BUILD_KERNELS
else
  kernels/ptxas.sh --current || {
    status=0
    scripts/nvcc >/dev/null || status=$?
    case $status in
      0) kernels/ptxas.sh ;;
      3) echo "kernels: SKIPPED: no nvcc, and none can be fetched. Kernels that have changed were not compiled for any" \
        "architecture: their spills, stack frames, shared memory and instructions are NOT checked" ;;
      *) exit 1 ;;
    esac
  }
  target=build/with-kernels
  standin=$target/stand-in/nvcc
  [[ -e $standin ]] || nvcc_at "$standin" 13.0
  [[ -e $target/release ]] || dependencies "$release" "$target/release"
  # What is asked is how it is put together, which optimisation does not change.
  LLAMABI_BUILD_KERNELS=required LLAMABI_NVCC=$standin CARGO_TARGET_DIR=$target \
    cargo build --release --locked --quiet --config 'profile.release.package.llamabi.opt-level=0'
fi
installed "$target" 1
[[ $before == "$(cksum "$release/libllamabi.so")" ]] || fail "this has changed what \`make build\` left"
echo "kernels: everything passed"
