#!/usr/bin/env bash
# The library's Rust code under AddressSanitizer and ThreadSanitizer, with random calls of the C API
# (fuzz.c): tests/sanitizers/run.sh [--calls N] [--seed S] [--threads N] [address] [thread]
#
# The library's crates are built once for each, with the stable compiler's own sanitizers
# (RUSTC_BOOTSTRAP), and with mistakes in it (planted.rs) that have to be found first. What it
# depends on is not instrumented, and is what `make build` has built.
set -euo pipefail
cd "$(dirname "$0")/../.."

options=() sanitizers=() calls=20000
while (($# > 0)); do
  case $1 in
    --calls) calls=$2; shift 2 ;;
    --seed | --threads) options+=("$1" "$2"); shift 2 ;;
    address | thread) sanitizers+=("$1"); shift ;;
    *) sed -n '2,3s/^# //p' "$0" >&2; exit 2 ;;
  esac
done
((${#sanitizers[@]})) || sanitizers=(address thread)

host=$(rustc -vV | sed -n 's/^host: //p')
runtimes=$(rustc --print sysroot)/lib/rustlib/$host/lib
mkdir -p "${CARGO_TARGET_DIR:-target}/release" "${CARGO_TARGET_DIR:-target}/sanitizers"
built=$(realpath "${CARGO_TARGET_DIR:-target}/release")
target=$(realpath "${CARGO_TARGET_DIR:-target}/sanitizers")
models=(tests/data/adapters/base tests/data/reference/mha-f32/meta tests/data/adapters/plain)
libs=$(sed -n 's/^Libs.private: //p' packaging/llamabi.pc.in)
# Without optimisation a kernel's temporaries, of everything that is inlined, lie side by side on
# the stack: those of tiles take more than the 2 MiB that a thread of Rust has by default.
export RUST_MIN_STACK=16777216
export ASAN_OPTIONS=detect_leaks=1:exitcode=66
# Children fork while other threads run, and start threads of their own.
export TSAN_OPTIONS=halt_on_error=1:exitcode=66:die_after_fork=0:suppressions=$PWD/tests/sanitizers/tsan.txt

# What ThreadSanitizer must be told of the standard library, which is not instrumented: the mangled
# names of four functions in it, see tsan_std.c.
std_symbol() { # std_symbol REGEX, among $symbols
  grep -Em1 "$1" <<<"$symbols" || {
    echo "tests/sanitizers/run.sh: the standard library has no symbol $1" >&2
    return 1
  }
}

runtime() { # runtime SANITIZER: the archive that Rust brings along
  echo "$runtimes"/librustc-*_rt."${1:0:1}"san.a
}

# Without optimisation the crates take half a minute to build and not five. Calls of tiny functions,
# which are what such a build is slow for, are inlined by the compiler's front end.
flags=(-C opt-level=0 -Z inline-mir=yes -Z mir-opt-level=2 -C debuginfo=0 -C unsafe-allow-abi-mismatch=sanitizer)

# A target directory whose parts are those of `make build`, so that no dependency is built again.
# Cargo keeps the crates of the workspace apart for each compiler wrapper, by its path; the library
# itself, which cargo leaves in the upper directory, is apart by the directory. The wrapper gives
# the flags to our two crates and not to the build script.
instrument() { # instrument SANITIZER FLAG...: target/sanitizers/SANITIZER/release/libllamabi.a
  local dir=$target/$1 part wrapper
  mkdir -p "$dir/release" "$built"/{deps,build,.fingerprint}
  for part in deps build .fingerprint; do ln -sfn "$built/$part" "$dir/release/$part"; done
  wrapper=$dir/rustc-$(cksum <<<"${flags[*]} $*" | tr -d ' ')
  cat >"$wrapper.new" <<END
#!/bin/sh
export RUSTC_BOOTSTRAP=1
case " \$* " in
  *' --crate-name llamabi '*) exec "\$@" --cfg llamabi_planted -Zsanitizer=$1 ${flags[*]} ${*:2} ;;
  *' --crate-name llamabi_compute '*) exec "\$@" -Zsanitizer=$1 ${flags[*]} ${*:2} ;;
  *) exec "\$@" ;;
esac
END
  chmod +x "$wrapper.new"
  mv "$wrapper.new" "$wrapper"
  LLAMABI_BUILD_KERNELS=none RUSTC_WORKSPACE_WRAPPER=$wrapper cargo rustc --release --locked --lib \
    --package llamabi --crate-type staticlib --target-dir "$dir"
}

build() { # build SANITIZER: target/sanitizers/SANITIZER/fuzz
  local s=$1 dir=$target/$1 wrap=() objects=() library=$target/$1/release/libllamabi.a
  # The standard library's own checks of what unsafe code hands it cost little beside the one, and
  # as much again beside the other.
  if [[ $s == address ]]; then instrument address -C debug-assertions=on; else instrument thread -C debug-assertions=off; fi
  cc -std=c11 -g -O1 -D_GNU_SOURCE -DPLANTED -Wall -Wextra -Wpedantic -Werror "-fsanitize=$s" -Iinclude \
    -c tests/sanitizers/fuzz.c -o "$dir/fuzz.o"
  if [[ $s == thread ]]; then
    local symbols contended wait timeout once
    symbols=$(readelf -sW "$library" 2>/dev/null | awk '{print $8}')
    contended=$(std_symbol 'std3sys4sync5mutex5futexNt.*Mutex14lock_contended$')
    wait=$(std_symbol 'std3sys4sync7condvar5futexNt.*Condvar4wait$')
    timeout=$(std_symbol 'std3sys4sync7condvar5futexNt.*Condvar12wait_timeout$')
    once=$(std_symbol 'std3sys4sync4once5futexNt.*Once4call$')
    cc -std=c11 -g -O1 "-DLOCK_CONTENDED=$contended" "-DWAIT=$wait" "-DWAIT_TIMEOUT=$timeout" "-DONCE_CALL=$once" \
      -c tests/sanitizers/tsan_std.c -o "$dir/tsan_std.o"
    objects=("$dir/tsan_std.o")
    wrap=("-Wl,--wrap=$contended,--wrap=$wait,--wrap=$timeout,--wrap=$once")
  fi
  # shellcheck disable=SC2086
  cc "$dir/fuzz.o" "${objects[@]}" "${wrap[@]}" "$library" -Wl,--whole-archive "$(runtime "$s")" -Wl,--no-whole-archive \
    $libs -lrt -lresolv -rdynamic -o "$dir/fuzz"
}

found() { # found SANITIZER MISTAKE WORDS: the planted mistake must be seen
  local said dir=$target/$1
  if said=$(LLAMABI_PLANTED=$2 timeout 1200 "$dir/fuzz" "${models[@]}" --calls 5000 2>&1) ||
    ! grep -q "$3" <<<"$said" || ! grep -q "llamabi_planted_$2" <<<"$said"; then
    echo "tests/sanitizers/run.sh: the planted $2 was not found:" >&2
    head -n 40 <<<"$said" >&2
    return 1
  fi
}

with_runtime=() builds=()
for s in "${sanitizers[@]}"; do
  if [[ ! -e $(runtime "$s") ]]; then
    echo "make test: SKIPPED: this Rust has no runtime of $s sanitizer; the library was NOT run under it"
    continue
  fi
  # Side by side, because a crate without optimisation keeps one processor busy.
  build "$s" &
  with_runtime+=("$s") builds+=($!)
done
for pid in "${builds[@]}"; do wait "$pid"; done
for s in "${with_runtime[@]}"; do
  if [[ $s == address ]]; then found address overflow heap-buffer-overflow; else found thread race "data race"; fi
  "$target/$s/fuzz" "${models[@]}" --calls "$calls" "${options[@]}"
done
((${#with_runtime[@]} == 0)) || echo "sanitizers (${with_runtime[*]}): $calls calls each, and the planted mistakes found: passed"
