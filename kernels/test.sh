#!/usr/bin/env bash
# Tests the kernels as C++ on the CPU: `kernels/test.sh [plain|asan|tsan]...`, all three by default.
# `kernels/test.sh library MODE [PLANT]` builds the emulated device as a shared library and prints
# its path. `kernels/test.sh runtime MODE` prints what a program that opens this library must
# preload.
#
# plain is g++ with five schedules of each launch; asan is g++ with AddressSanitizer and UBSan; tsan
# is clang with ThreadSanitizer. Each mode builds the kernels and runs them against their scalar
# twins. Then it builds them with planted bugs: a plant that no test notices fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs=${JOBS:-$(nproc)}
common=(-std=c++17 -march=native -fPIC -fno-plt -Wall -Wextra -Wno-unknown-pragmas -Wno-psabi -fno-strict-aliasing -ffp-contract=off)
kernels=(kernels/*.cu)
emulator=(fibers warp memory launch hopper_clusters hopper_copies hopper_products)
log() { printf '%s\n' "$*"; }

# compile OBJECT SOURCE FLAGS...: compiles unless the object is newer than everything that it could
# depend on.
compile() {
  local object=$1 source=$2
  shift 2
  current "$object" "$source" && return
  touch "$object.begun"
  "$cxx" "${common[@]}" "$@" -x c++ -c "$source" -o "$object.new" && compiled "$object"
}

# The object gets the time at which its compilation began, so what is saved during the compilation
# counts as newer.
compiled() {
  touch -cr "$1.begun" "$1.new" && mv "$1.new" "$1" && rm "$1.begun"
}

# host OBJECT SOURCE: compiles what is neither a kernel nor part of the emulator, once for all
# modes.
host() {
  cxx=g++ compile "$1" "$2" -O2 -D_GLIBCXX_ASSERTIONS
}

current() {
  [[ -e $1 && -z $(find kernels \( -name '*.h' -o -path "$2" -o -name test.sh \) -newer "$1" -print -quit) ]]
}

# plant BUG FILE KERNELS: compiles some kernels of the file with the bug, into an object that is
# linked before the one without it. KERNELS matches kernels by what follows the file's name in
# theirs, or by their whole names, as some|thing; - stands for all. Nothing but what the test
# launches is compiled a second time.
plant() {
  local object=$dir/$2-$1.o source=kernels/$2.cu
  current "$object" "$source" && return
  touch "$object.begun"
  # Each object serves one test with a few shapes. -Og takes a third of the time of -O2, and there
  # are many of them.
  { echo "#line 1 \"$source\""; if [[ $3 == - ]]; then cat "$source"; else sed -E "/^KERNEL/{/\(($2_)?($3)\)/!s/.*//}" "$source"; fi; } |
    # shellcheck disable=SC2086
    "$cxx" "${common[@]}" ${device/-O2/-Og} -Wno-unused-function -DPLANT_$1 -Ikernels -x c++ -c - -o "$object.new"
  compiled "$object"
}

# at_once COMMAND...: runs the commands, a few at a time. Once one has failed, no further one is
# started, and those that run are waited for.
at_once() {
  local command ended failed=0
  local -A running=()
  next() {
    wait -n -p ended "${!running[@]}" || { failed=1 && log "kernels/test.sh $mode: failed: ${running[$ended]}"; }
    unset "running[$ended]"
  }
  for command in "$@"; do
    if ((${#running[@]} >= jobs)); then next; fi
    if ((failed)); then break; fi
    $command &
    running[$!]=$command
  done
  while ((${#running[@]} > 0)); do next; done
  return "$failed"
}

mode_flags() {
  cxx=g++ device='-O2' machine='-O2' link=()
  case $1 in
    plain) ;;
    asan)
      # To compile all these checks takes -Og less than half the time of -O1, and the tests run
      # hardly longer. The emulator itself is small and busy.
      machine='-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer'
      device=${machine/-O1/-Og} link=(-fsanitize=address,undefined)
      export EMU_SCHEDULES=${EMU_SCHEDULES:-1} ASAN_OPTIONS=detect_stack_use_after_return=0
      ;;
    tsan)
      # Only the kernels are instrumented; the emulator announces its fibers and barriers itself.
      cxx=clang++ device='-O1 -g1 -fsanitize=thread' machine='-O1 -DEMU_TSAN' link=(-fsanitize=thread)
      export EMU_SCHEDULES=${EMU_SCHEDULES:-1} TSAN_OPTIONS=halt_on_error=1
      ;;
    *)
      log "kernels/test.sh: plain, asan or tsan, not $1" >&2
      exit 2
      ;;
  esac
}

# PLANT FILE KERNELS TEST PATTERN for each mode: the bug, the file it lies in, the kernels that have
# it, the test that meets it, and what the test must print.
plants() {
  case $1 in
    plain)
      cat <<'END'
NO_BARRIER prepare - prepare twin says|other bits
NO_BARRIER_GEMM matmul_add prefill_bf16 gemm twin says|other bits
NO_BARRIER_GEMM_ENDS matmul_add prefill_bf16 gemm twin says|other bits
NO_BARRIER_GEMM_HALF matmul_add prefill_bf16 gemm twin says|other bits
NO_BARRIER_GEMM_ROWS matmul_add prefill_bf16 gemm twin says|other bits
NO_BARRIER_ATTEND attend bf16 attend twin says|other bits
NO_BARRIER_CHUNK attend_prefill_fma f32 attend_prefill_fma twin says|other bits
WEAK_WAIT_ATTEND attend bf16 attend copies under way|twin says|other bits
QUERIES_OVERWRITTEN attend bf16 attend twin says|other bits
LOST_ATTEND attend bf16 attend_infinity key 9: row
NO_BARRIER_STAGED ffn_up bf16 few twin says|other bits
NO_BARRIER_TURN matmul_add bf16 few twin says|other bits
SAME_TILE ffn_up int4 few twin says|other bits
NO_BARRIER_FEW logits bf16 few twin says|other bits
NO_BARRIER_SUMS matmul_add bf16 few twin says|other bits
WEAK_WAIT_FEW matmul_add int8 few copies under way|twin says|other bits
NO_SYNC_TAKE matmul_add int8 few twin says|other bits
WEAK_WAIT_BATCH matmul_add batch_int4 batch copies under way|twin says|other bits
NO_BARRIER_BATCH qkv batch_bf16 batch twin says|other bits
NO_BARRIER_SPLIT matmul_add batch_bf16 batch twin says|other bits
NO_BARRIER_ADAPT adapt - adapt_add twin says|other bits
OTHER_PART adapt - adapt_qkv twin says
SUMS_LEFT silu_add - silu_add silu_add leaves
OTHER_ORDER reduce - reduce reduce .*twin says
PART_LEFT reduce - reduce reduce leaves
NO_WAIT_PEERS reduce - reduce_peers twin says|reduce_peers leaves
NO_BARRIER_PEERS reduce - reduce_peers twin says|reduce_peers leaves
WIDEST gather - gather outside a buffer|gather .*twin says|other bits
FOREIGN embed f32 embed_ranks embed .*twin says
ONE_RUN adapt - adapt_up twin says|other bits
WEAK_WAIT matmul_add prefill_bf16 gemm twin says|other bits
WRITE_AFTER_READ matmul_add prefill_bf16 gemm twin says|other bits
WRITE_AFTER_READ_ATTEND attend_prefill bf16_128 attend_prefill twin says|other bits
COUNTED_EARLY attend bf16 attend twin says|other bits|left a counter
SHARED_BOUNDS prepare - prepare twin says|other bits
COUNTER_LEFT attend bf16 attend left a counter
COUNTER_LEFT sample - sample left a counter
POSSIBLE_LEFT sample - sample_changed still possible
NO_BARRIER_CHANGE change - sample_changed twin says|other bits
NO_BARRIER_LEFT sample - sample_together twin says
NO_BARRIER_LAST sample - sample a thread exited while|twin says|other bits
NO_BARRIER_PICK sample - sample twin says|other bits
NO_BARRIER_WARPS sample - sample divergent barrier|twin says|other bits
NO_BARRIER_PICKED sample - sample divergent barrier|twin says|other bits
NO_BARRIER_LIST sample - sample twin says|other bits
NO_BARRIER_SELECT sample - sample twin says|other bits
NO_BARRIER_CHOSEN sample - sample twin says|other bits
NO_BARRIER_SLICE sample - sample twin says|other bits
NO_BARRIER_SUMMED sample - sample twin says|other bits
NO_BARRIER_KEPT sample - sample twin says|other bits
NO_BARRIER_SLICES sample - sample twin says|other bits
NO_BARRIER_BOUND sample - sample twin says|other bits
NO_BARRIER_TOTAL sample - sample twin says|other bits
NO_BARRIER_FLAGS sample - sample twin says|other bits
NO_BARRIER_FEW_LISTED sample - sample divergent barrier|twin says|other bits
NO_BARRIER_FEW_PICKED sample - sample divergent barrier|twin says|other bits
SUMS_BY_ROW qkv epilogue library twin says|other bits
UP_AT_STRIDE ffn_up epilogue_bf16 library twin says
E4M3_BIAS matmul_add fp8 fp8 twin says
PLANE matmul_add k6 k_types twin says
E4M3_TRUNCATED append - append append.*not
NO_WAIT prepare - chain prepare_.*no thread waits
NO_WAIT qkv bf16 chain qkv_.*no thread waits
NO_WAIT append - chain append_.*no thread waits
NO_WAIT attend int8 chain attend_.*no thread waits
NO_WAIT matmul_add bf16 chain matmul_add_.*no thread waits
NO_WAIT ffn_up bf16 chain ffn_up_.*no thread waits
NO_WAIT adapt in_bf16 chain adapt_in_.*no thread waits
NO_WAIT logits bf16 chain logits_.*no thread waits
NO_WAIT attend_prefill attend_hopper_bf16_64 chain_prompt a copy before wait_for_last|no thread waits
COPIED_EARLY matmul_add hopper_bf16 chain_prompt a copy before wait_for_last
COPIED_EARLY qkv hopper_int8 chain_prompt a copy before wait_for_last
NO_WAIT sample - chain sample_max.*no thread waits
NO_WAIT change - chain change.*no thread waits
NO_FENCE matmul_add hopper_bf16 hopper made by a store that no async_fence has made visible
NO_BARRIER_HOPPER matmul_add hopper_bf16 hopper a barrier that nobody has made
NO_BARRIER_ENDS matmul_add hopper_bf16 hopper a product reads what threads have stored|twin says|other bits
NO_BARRIER_ROWS qkv hopper_bf16 hopper twin says|other bits
NO_EXPECT matmul_add hopper_bf16 hopper that does not expect them
WRONG_PARITY matmul_add hopper_bf16 hopper no thread can go on|overwrites what a product of warpgroup . still reads
FREED_EARLY matmul_add hopper_bf16 hopper overwrites what a product of warpgroup . still reads
FREED_BY_ONE matmul_add hopper_bf16 hopper overwrites what a product of warpgroup . still reads
FREED_BY_ONE attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper overwrites what a product of warpgroup . still reads
NOT_EMPTY matmul_add hopper_quarter_bf16 hopper more arrivals than|overwrites what a product of warpgroup . still reads|twin says
NO_FENCE_CLUSTER matmul_add hopper_bf16 hopper by a store that no cluster_fence has made visible
NO_BARRIER_CLUSTER matmul_add hopper_bf16 hopper a barrier that nobody has made
NO_WAIT_CLUSTER matmul_add hopper_bf16 hopper a block of its cluster that has ended|ended with copies under way
READ_BY_ONE matmul_add hopper_bf16 hopper overwrites what a product of warpgroup . still reads
QUARTER_TURN matmul_add hopper_quarter_bf16 hopper two copies to the same place|overwrites what a product
QUARTER_ROWS qkv hopper_quarter_bf16 hopper other bits
WRONG_SWIZZLE ffn_up hopper_bf16 hopper twin says
DECODED_EARLY matmul_add hopper_int8 codes registers were written while a product read them
CODES_FREED_EARLY matmul_add hopper_int8 codes overwrites what a product of warpgroup . still reads
NO_FENCE_CLUSTER ffn_up hopper_nf4 codes by a store that no cluster_fence has made visible
NO_BARRIER_CLUSTER ffn_up hopper_nf4 codes a barrier that nobody has made
NO_WAIT_CLUSTER ffn_up hopper_nf4 codes a block of its cluster that has ended|ended with copies under way
READ_BY_ONE ffn_up hopper_nf4 codes overwrites what a product of warpgroup . still reads
NO_BARRIER_CODES matmul_add hopper_int8 codes a product reads what threads have stored
NO_BARRIER_CODES_ROWS ffn_up hopper_nf4 codes twin says|other bits
NOT_PERMUTED prepare - codes twin says
NO_FENCE_QUERIES attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper no async_fence has made visible
NO_ZEROS attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper nan, twin says|depends on the cut
NO_WAIT_VALUES attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper twin says|other bits
KEYS_FREED_EARLY attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper overwrites what a product of warpgroup . still reads
ROUNDED_EARLY attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper registers were written while a product read them
NOT_TRANSPOSED attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper twin says
LOST attend_prefill bf16_32|attend_hopper_bf16_64 attend_infinity key 9: row
UNBOUNDED prepare - large prepare: .* is inf
UNBOUNDED ffn_up int8 large ffn_up: .* in .* is -?(inf|nan)
UNBOUNDED logits int8 large twin says
UNBOUNDED attend bf16 attend_large f16 that is finite: -?inf is not
UNBOUNDED attend_prefill bf16_32|attend_hopper_bf16_64 attend_large f16 that is finite: -?inf is not
MASK attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper twin says
READ_EARLY append - chain started early, a kernel gives other bits
SLICES_EARLY sample - chain started early, a kernel gives other bits
ONE_SLICE sample - chain has the largest logit
NO_BARRIER_TURN logits bf16 chain started early, a kernel gives other bits
COUNTER_LEFT qkv batch_int4 chain left a counter
CONST_UNIT attend int8 chain reads by .nc what an earlier launch
WRITTEN_EARLY qkv bf16 chain written to global memory before wait_for_last
MISALIGNED embed - embed past a multiple of 16
DIVERGENT_BARRIER prepare - prepare divergent barrier
END
      ;;
    asan)
      cat <<'END'
SHARED_BOUNDS prepare - prepare heap-buffer-overflow.*
MISALIGNED embed - embed past a multiple of 16
DIVERGENT_BARRIER prepare - prepare divergent barrier
WEAK_WAIT matmul_add prefill_bf16 gemm twin says|other bits
END
      ;;
    tsan)
      cat <<'END'
NO_BARRIER prepare - prepare data race
NO_WAIT_PEERS reduce - reduce_peers data race|twin says|reduce_peers leaves
NO_BARRIER_PEERS reduce - reduce_peers data race|twin says|reduce_peers leaves
NO_BARRIER_GEMM matmul_add prefill_bf16 gemm data race
NO_BARRIER_GEMM_ENDS matmul_add prefill_bf16 gemm data race
NO_BARRIER_GEMM_HALF matmul_add prefill_bf16 gemm data race
NO_BARRIER_GEMM_ROWS matmul_add prefill_bf16 gemm data race
NO_BARRIER_ATTEND attend bf16 attend data race
NO_BARRIER_CHUNK attend_prefill_fma f32 attend_prefill_fma data race
QUERIES_OVERWRITTEN attend bf16 attend data race
NO_BARRIER_STAGED ffn_up bf16 few data race
NO_BARRIER_TURN matmul_add bf16 few data race
NO_BARRIER_FEW logits bf16 few data race
NO_BARRIER_SUMS matmul_add bf16 few data race
NO_BARRIER_BATCH qkv batch_bf16 batch data race
NO_BARRIER_SPLIT matmul_add batch_bf16 batch data race
NO_BARRIER_ADAPT adapt - adapt_add data race
NO_DEVICE_FENCE attend f32|bf16|f16 attend data race
WRITE_AFTER_READ matmul_add prefill_bf16 gemm data race
WRITE_AFTER_READ_ATTEND attend_prefill bf16_128 attend_prefill data race
NO_BARRIER_HOPPER matmul_add hopper_bf16 hopper data race|a barrier that nobody has made
NO_BARRIER_ENDS matmul_add hopper_bf16 hopper data race|a product reads what threads have stored
NO_BARRIER_ROWS qkv hopper_bf16 hopper data race
READ_BY_ONE matmul_add hopper_bf16 hopper data race|overwrites what a product of warpgroup . still reads
FREED_EARLY matmul_add hopper_bf16 hopper data race|overwrites what a product of warpgroup . still reads
NOT_EMPTY matmul_add hopper_bf16 hopper data race|more arrivals than|overwrites what a product of warpgroup . still reads
NO_BARRIER_QUERIES attend_prefill attend_hopper_bf16_64|attend_hopper_bf16_128 attend_hopper data race
NO_BARRIER_CODES matmul_add hopper_int8 codes data race|a product reads what threads have stored
NO_BARRIER_CODES_ROWS ffn_up hopper_nf4 codes data race
NOT_ATOMIC sample - sample data race
NO_BARRIER_CHANGE change - sample_changed data race|twin says
NOT_ATOMIC_SLICE sample - sample data race
NO_BARRIER_PICK sample - sample data race
NO_BARRIER_WARPS sample - sample data race
NO_BARRIER_PICKED sample - sample data race|divergent barrier
NO_BARRIER_LIST sample - sample data race|twin says
NO_BARRIER_SELECT sample - sample data race
NO_BARRIER_CHOSEN sample - sample data race|twin says
NO_BARRIER_MAX sample - sample data race
NO_BARRIER_SLICE sample - sample data race
NO_BARRIER_SUMMED sample - sample data race|twin says
NO_BARRIER_KEPT sample - sample data race
NO_BARRIER_SLICES sample - sample data race
NO_BARRIER_BOUND sample - sample data race
NO_BARRIER_BOUNDED sample - sample data race
NO_BARRIER_TOTAL sample - sample data race
NO_BARRIER_FLAGS sample - sample data race|twin says
NO_BARRIER_FEW_LISTED sample - sample data race
NO_BARRIER_FEW_PICKED sample - sample data race
END
      ;;
  esac
}

tables=build/kernels/table.o

# Fills `list` with the commands that compile a mode, and `objects` and `emu` with its objects.
start() {
  local name
  mode=$1 dir=build/kernels/$1 list=() objects=() emu=()
  mode_flags "$mode"
  mkdir -p "$dir"
  for name in "${kernels[@]}"; do
    name=$(basename "$name" .cu)
    list+=("compile $dir/$name.o kernels/$name.cu $device") objects+=("$dir/$name.o")
  done
  for name in "${emulator[@]}"; do list+=("compile $dir/emu-$name.o kernels/emu/$name.cpp $machine") emu+=("$dir/emu-$name.o"); done
  list+=("host $tables kernels/emu/table.cpp")
}

# library MODE [PLANT]: builds the library for the tests in tests/ from the same objects. In mode
# plain, builds the stand-in for NVIDIA's driver beside it.
library() {
  local bug=${2:-} file which planted=() name cuda=(blaslt driver graphs kernels memory nccl state) many=()
  start "$1"
  if [[ -n $bug ]]; then
    read -r file which < <(plants "$mode" | awk -v bug="$bug" '$1 == bug { print $2, $3; exit }') ||
      { log "kernels/test.sh: $mode has no plant $bug" >&2; exit 2; }
    list+=("plant $bug $file $which") planted=("$dir/$file-$bug.o")
  fi
  if [[ $mode == plain ]]; then
    # Many copies of the stand-in driver are loaded into one process (switch.h).
    for name in "${emulator[@]}"; do
      list+=("compile $dir/many-$name.o kernels/emu/$name.cpp $machine -DEMU_LOADED_MANY_TIMES") many+=("$dir/many-$name.o")
    done
    for name in "${cuda[@]}"; do list+=("compile $dir/cuda-$name.o kernels/emu/cuda/$name.cpp $machine -DEMU_LOADED_MANY_TIMES"); done
  fi
  at_once "${list[@]}"
  # The sanitizers' functions come from what is preloaded. If one is missing, opening the library
  # fails.
  shared "libemu$bug.so" "${planted[@]}" "${objects[@]}" "${emu[@]}" $tables
  if [[ $mode == plain ]]; then
    cuda=("${cuda[@]/#/$dir/cuda-}")
    shared libcuda.so.1 "${objects[@]}" "${many[@]}" $tables "${cuda[@]/%/.o}"
  fi
  log "$PWD/$dir/libemu$bug.so"
}

# runtime MODE: prints what a program must preload to open that library.
runtime() {
  local found=() name
  start "$1"
  case $mode in
    asan)
      # For a file that GCC does not have, it prints the name as given.
      for name in libasan.so libubsan.so; do found+=("$(g++ -print-file-name=$name)"); done
      ;;
    tsan)
      # GCC's tsan takes minutes for fibers. Clang's crashes if it is preloaded alone: libstdc++,
      # which it needs, is initialised before it and calls it. So a small library that is
      # initialised before both initialises it.
      found=("$PWD/$dir/libfirst.so" "$(find "$(clang -print-resource-dir)/lib" -name 'libclang_rt.tsan*.so' | head -n1)")
      echo 'void __tsan_init(void); __attribute__((constructor)) static void first(void) { __tsan_init(); }' |
        clang -shared -fPIC -Wl,-z,initfirst -x c - -o "${found[0]}.new"
      mv "${found[0]}.new" "${found[0]}"
      ;;
  esac
  for name in "${found[@]}"; do [[ -e $name ]] || { log "kernels/test.sh: no runtime of $mode; scripts/setup --test installs it" >&2; exit 1; }; done
  log "${found[*]}"
}

# shared NAME OBJECTS...: links the library. A program that has the old file open keeps it.
shared() {
  local to=$dir/$1 object
  shift
  for object; do
    if [[ ! $object -ot $to ]]; then
      "$cxx" -shared -Wl,-Bsymbolic,--allow-multiple-definition -o "$to.new" "$@"
      mv "$to.new" "$to"
      return
    fi
  done
}

# caught BUG FILE: the test that the table names must fail, with the words that the table gives.
caught() {
  local planted=$dir/planted-$2-$1 words=$dir/$2-$1.log test pattern
  read -r _ _ _ test pattern < <(plants "$mode" | grep "^$1 $2 ")
  "$cxx" "${link[@]}" -Wl,--allow-multiple-definition -o "$planted" "$dir/$2-$1.o" "${tests[@]}" "${objects[@]}"
  if "$planted" "$test" >"$words" 2>&1; then
    log "kernels/test.sh $mode: plant $1 in $2 was NOT caught by '$test'"
    return 1
  elif ! grep -qE "$pattern" "$words"; then
    log "kernels/test.sh $mode: plant $1 in $2: expected '$pattern', got:"
    tail -n 5 "$words"
    return 1
  fi
  rm "$planted"
  log "caught $1: $(grep -m1 -E "$pattern" "$words" | cut -c1-150)"
}

run_mode() {
  local name names bug file which checks=()
  start "$1"
  for name in main products qkv attention sampling chain adapters medusa ranks machine; do list+=("host build/kernels/test-$name.o kernels/tests/$name.cpp"); done
  list+=("compile $dir/machine.o kernels/tests/machine.cu $device")
  while read -r bug file which _; do list+=("plant $bug $file $which"); done < <(plants "$mode")
  at_once "${list[@]}"

  tests=(build/kernels/test-{main,products,qkv,attention,sampling,chain,adapters,medusa,ranks}.o "${emu[@]}" $tables)
  "$cxx" "${link[@]}" -pthread -o "$dir/machine" "$dir/machine.o" build/kernels/test-machine.o "${emu[@]}"
  "$cxx" "${link[@]}" -o "$dir/tests" "${tests[@]}" "${objects[@]}"
  # (`for` loses the status of a command in its head.)
  names=$("$dir/tests" names)
  [[ -n $names ]]
  for name in $names; do checks+=("$dir/tests $name"); done
  while read -r bug file _; do checks+=("caught $bug $file"); done < <(plants "$mode")
  at_once "$dir/machine" "${checks[@]}"
  log "kernels/test.sh $mode: everything passed: $(wc -w <<<"$names") tests, $(plants "$mode" | wc -l) plants caught"
}

# Only one run at a time, because objects are shared.
mkdir -p build/kernels
exec 9>build/kernels/lock
flock 9
if [[ ${1:-} == library || ${1:-} == runtime ]]; then
  "$@"
  exit
fi

# What kernels may not contain: PTX, launches, shared memory that the launch does not size, other
# headers.
if grep -nE 'asm|<<<|__shared__|__syncthreads|#include' kernels/*.cu kernels/gemm.h kernels/gemv.h kernels/few.h kernels/batch.h kernels/*_hopper.h kernels/attend_*.h kernels/quant.h kernels/keys.h kernels/choice.h | grep -v '#include "gpu.h"'; then
  log "kernels/test.sh: kernels keep to what gpu.h gives them" >&2
  exit 1
fi
# nvcc may move asm that is not volatile in front of the condition that makes its address valid,
# which no emulator shows.
if grep -nE 'asm\("ld' kernels/*.h; then
  log "kernels/test.sh: a load in asm is volatile, or it is an intrinsic" >&2
  exit 1
fi
if (($# == 0)); then set -- plain asan tsan; fi
for mode; do (run_mode "$mode"); done
others=$({ cat "${CARGO_TARGET_DIR:-target}"/tmp/emulator-seconds-* 2>/dev/null || true; } | awk '{ n += $1 } END { printf "%.0f", n }')
log "the emulator's share of the tests: $SECONDS s here, $others s in the tests of cargo"
