#!/usr/bin/env bash
# The kernels, as C++ on the CPU: `kernels/test.sh [plain|asan|tsan]...`, all three by default.
# `kernels/test.sh library MODE [PLANT]` builds the emulated device as a shared library and prints its path.
#
# plain: g++, five schedules of each launch; asan: g++ with AddressSanitizer and UBSan; tsan: clang with
# ThreadSanitizer. Each builds the kernels, runs them against their scalar twins, and then builds them with
# planted bugs: a plant that goes unnoticed fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-2}
common=(-std=c++17 -march=native -fPIC -Wall -Wextra -Wno-unknown-pragmas -fno-strict-aliasing -ffp-contract=off)
kernels=(embed prepare qkv append attend attend_prefill matmul_add ffn_up logits sample)
log() { printf '%s\n' "$*"; }

# compile OBJECT SOURCE FLAGS...: unless it is newer than everything it could depend on.
compile() {
  local object=$1 source=$2
  shift 2
  if [[ ! -e $object || -n $(find kernels \( -name '*.h' -o -path "$source" -o -name test.sh \) -newer "$object" -print -quit) ]]; then
    "$cxx" "${common[@]}" "$@" -x c++ -c "$source" -o "$object.new"
    mv "$object.new" "$object"
  fi
}

# build LIST...: each `object source flags...`, some at a time.
build() {
  local item running=0
  for item in "$@"; do
    # shellcheck disable=SC2086
    compile $item &
    if ((++running >= jobs)); then
      wait -n || return 1
      ((running--)) || true
    fi
  done
  while ((running-- > 0)); do wait -n || return 1; done
}

mode_flags() {
  cxx=g++ device='-O2' host='-O2' machine='-O2' link=()
  case $1 in
    plain) ;;
    asan)
      device='-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer'
      host=$device machine=$device link=(-fsanitize=address,undefined)
      export EMU_SCHEDULES=${EMU_SCHEDULES:-1} ASAN_OPTIONS=detect_stack_use_after_return=0
      ;;
    tsan)
      # Only the kernels are watched; the machine announces its fibers and barriers itself.
      cxx=clang++ device='-O1 -g1 -fsanitize=thread' host='-O1 -DEMU_TSAN' machine='-O1 -DEMU_TSAN' link=(-fsanitize=thread)
      export EMU_SCHEDULES=${EMU_SCHEDULES:-1} TSAN_OPTIONS=halt_on_error=1
      ;;
    *)
      log "kernels/test.sh: plain, asan or tsan, not $1" >&2
      exit 2
      ;;
  esac
}

# PLANT FILE TEST PATTERN for each mode: the bug, where it lies, the test that meets it, what must be said.
plants() {
  case $1 in
    plain)
      cat <<'END'
NO_BARRIER prepare prepare twin says|other bits
NO_BARRIER_GEMM matmul_add gemm twin says|other bits
NO_BARRIER_ATTEND attend attend twin says|other bits
NO_WARP_SYNC ffn_up few twin says|other bits
NO_BARRIER_FEW logits few twin says|other bits
NO_BARRIER_SUMS qkv batch twin says|other bits
WEAK_WAIT matmul_add gemm twin says|other bits
WRITE_AFTER_READ matmul_add gemm twin says|other bits
WRITE_AFTER_READ_ATTEND attend_prefill attend_prefill twin says|other bits
SHARED_BOUNDS prepare prepare twin says|other bits
NO_BARRIER_SELECT sample sample twin says|other bits
E4M3_BIAS matmul_add fp8 twin says
E4M3_TRUNCATED append append append.*not
NO_WAIT prepare chain prepare_.*no thread waits
NO_WAIT qkv chain qkv_.*no thread waits
NO_WAIT append chain append_.*no thread waits
NO_WAIT attend chain attend_.*no thread waits
NO_WAIT matmul_add chain matmul_add_.*no thread waits
NO_WAIT ffn_up chain ffn_up_.*no thread waits
NO_WAIT logits chain logits_.*no thread waits
NO_WAIT sample chain sample.*no thread waits
NO_FENCE matmul_add hopper made by a store that no async_fence has made visible
NO_BARRIER_HOPPER matmul_add hopper a barrier that nobody has made
NO_EXPECT matmul_add hopper that does not expect them
WRONG_PARITY matmul_add hopper no thread can go on|overwrites what a product of warpgroup . still reads
FREED_EARLY matmul_add hopper overwrites what a product of warpgroup . still reads
NOT_EMPTY matmul_add hopper more arrivals than|overwrites what a product of warpgroup . still reads|twin says
WRONG_SWIZZLE ffn_up hopper twin says
NO_FENCE_QUERIES attend_prefill attend_hopper no async_fence has made visible
NO_ZEROS attend_prefill attend_hopper nan, twin says
NO_WAIT_VALUES attend_prefill attend_hopper twin says|other bits
KEYS_FREED_EARLY attend_prefill attend_hopper overwrites what a product of warpgroup . still reads
ROUNDED_EARLY attend_prefill attend_hopper registers were written while a product read them
NOT_TRANSPOSED attend_prefill attend_hopper twin says
MASK attend_prefill attend_hopper twin says
READ_EARLY append chain started early, a kernel gives other bits
WRITTEN_EARLY qkv chain written to global memory before wait_for_last
MISALIGNED embed embed past a multiple of 16
DIVERGENT_BARRIER prepare prepare divergent barrier
END
      ;;
    asan)
      cat <<'END'
SHARED_BOUNDS prepare prepare heap-buffer-overflow.*
MISALIGNED embed embed past a multiple of 16
DIVERGENT_BARRIER prepare prepare divergent barrier
WEAK_WAIT matmul_add gemm twin says|other bits
END
      ;;
    tsan)
      cat <<'END'
NO_BARRIER prepare prepare data race
NO_BARRIER_GEMM matmul_add gemm data race
NO_BARRIER_ATTEND attend attend data race
NO_WARP_SYNC ffn_up few data race
NO_BARRIER_FEW logits few data race
NO_BARRIER_SUMS qkv batch data race
WRITE_AFTER_READ matmul_add gemm data race
WRITE_AFTER_READ_ATTEND attend_prefill attend_prefill data race
NO_BARRIER_HOPPER matmul_add hopper data race|a barrier that nobody has made
FREED_EARLY matmul_add hopper data race|overwrites what a product of warpgroup . still reads
NOT_EMPTY matmul_add hopper data race|more arrivals than|overwrites what a product of warpgroup . still reads
NO_BARRIER_QUERIES attend_prefill attend_hopper data race
CLEARED_EARLY sample sample data race
NOT_ATOMIC sample sample data race
END
      ;;
  esac
}

# library MODE [PLANT]: for tests/gpu.rs, from the same objects.
library() {
  local mode=$1 plant=${2:-} dir=build/kernels/$1 list=() objects=() name planted
  mode_flags "$mode"
  mkdir -p "$dir"
  planted=$(plants "$mode" | awk -v plant="$plant" '$1 == plant { print $2 }')
  [[ -z $plant || -n $planted ]] || { log "kernels/test.sh: $mode has no plant $plant" >&2; exit 2; }
  for name in "${kernels[@]}"; do
    if [[ $name == "$planted" ]]; then
      list+=("$dir/$name-$plant.o kernels/$name.cu $device -DPLANT_$plant") objects+=("$dir/$name-$plant.o")
    else
      list+=("$dir/$name.o kernels/$name.cu $device") objects+=("$dir/$name.o")
    fi
  done
  for name in fibers warp memory launch hopper; do list+=("$dir/emu-$name.o kernels/emu/$name.cpp $machine"); done
  list+=("$dir/table.o kernels/emu/table.cpp $host")
  build "${list[@]}"
  # Sanitizers' functions come from what is preloaded; one that is not there is an error when it is opened.
  "$cxx" -shared -o "$dir/libemu$plant.so.new" "${objects[@]}" "$dir"/emu-{fibers,warp,memory,launch,hopper}.o "$dir/table.o"
  mv "$dir/libemu$plant.so.new" "$dir/libemu$plant.so"
  log "$PWD/$dir/libemu$plant.so"
}

run_mode() {
  local mode=$1 dir=build/kernels/$1 list=() objects=() name plant file test pattern
  mode_flags "$mode"
  mkdir -p "$dir"
  for name in "${kernels[@]}"; do list+=("$dir/$name.o kernels/$name.cu $device") objects+=("$dir/$name.o"); done
  for name in fibers warp memory launch hopper; do list+=("$dir/emu-$name.o kernels/emu/$name.cpp $machine"); done
  list+=("$dir/table.o kernels/emu/table.cpp $host")
  for name in main products attention sampling chain machine; do list+=("$dir/test-$name.o kernels/tests/$name.cpp $host"); done
  list+=("$dir/machine.o kernels/tests/machine.cu $device")
  while read -r plant file _; do
    # Each is compiled for one test of a few shapes: -O1 takes half the time of -O2, and there are many.
    list+=("$dir/$file-$plant.o kernels/$file.cu ${device/-O2/-O1} -DPLANT_$plant")
  done < <(plants "$mode")
  build "${list[@]}"

  local emu=("$dir"/emu-{fibers,warp,memory,launch,hopper}.o)
  local tests=("$dir"/test-{main,products,attention,sampling,chain}.o "${emu[@]}" "$dir/table.o")
  "$cxx" "${link[@]}" -pthread -o "$dir/machine" "$dir"/{machine,test-machine}.o "${emu[@]}"
  "$cxx" "${link[@]}" -o "$dir/tests" "${tests[@]}" "${objects[@]}"
  "$dir/machine"
  "$dir/tests"
  while read -r plant file test pattern; do
    local changed=("${objects[@]/#"$dir/$file.o"/"$dir/$file-$plant.o"}")
    "$cxx" "${link[@]}" -o "$dir/planted" "${tests[@]}" "${changed[@]}"
    if "$dir/planted" "$test" >"$dir/$plant.log" 2>&1; then
      log "kernels/test.sh $mode: plant $plant in $file was NOT caught by '$test'"
      return 1
    elif ! grep -qE "$pattern" "$dir/$plant.log"; then
      log "kernels/test.sh $mode: plant $plant in $file: expected '$pattern', got:"
      tail -n 5 "$dir/$plant.log"
      return 1
    fi
    log "caught $plant: $(grep -m1 -E "$pattern" "$dir/$plant.log" | cut -c1-150)"
  done < <(plants "$mode")
  log "kernels/test.sh $mode: everything passed, $(plants "$mode" | wc -l) plants caught"
}

# One at a time: objects are shared.
mkdir -p build/kernels
exec 9>build/kernels/lock
flock 9
if [[ ${1:-} == library ]]; then
  shift
  library "$@"
  exit
fi

# What kernels may not contain: PTX, launches, shared memory the launch does not size, other headers.
if grep -nE 'asm|<<<|__shared__|__syncthreads|#include' kernels/*.cu kernels/gem*.h kernels/few.h kernels/attend_hopper.h kernels/quant.h | grep -v '#include "gpu.h"'; then
  log "kernels/test.sh: kernels keep to what gpu.h gives them" >&2
  exit 1
fi
if (($# == 0)); then set -- plain asan tsan; fi
for mode; do (run_mode "$mode"); done
others=$(cat "${CARGO_TARGET_DIR:-target}"/tmp/emulator-seconds-* 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')
log "the emulator's share of the tests: $SECONDS s here, $others s in tests/*.rs"
