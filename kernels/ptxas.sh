#!/usr/bin/env bash
# Every kernel through the real compiler, for every architecture of the library: fails on spills, stack
# frames, static shared memory, and where the wide loads, asynchronous copies, ldmatrix or tensor-core
# instructions that a kernel is written for are not in its machine code. Prints the registers of each.
#
# NVCC names another nvcc (13.0 or newer); nvdisasm must lie beside it. Without, scripts/nvcc fetches both.
set -euo pipefail
cd "$(dirname "$0")/.."

nvcc=${NVCC:-$(scripts/nvcc)}
tools=$(dirname "$nvcc")
dir=build/kernels/ptxas
archs=(80 86 89 90a)
mkdir -p "$dir"

# The stand-in driver of the tests against NVIDIA's header: signatures and numbers that src/backend/gpu/driver.rs has too.
for source in kernels/emu/cuda/*.cpp; do
  c++ -std=c++17 -Wall -Wextra -Werror -DEMU_CUDA_H -I"$tools/../include" -fsyntax-only "$source"
done

one() {
  local name=$1 out=$dir/$1
  # Nothing it depends on has changed since it last passed.
  if [[ -e $out.ok && -z $(find kernels/*.h "kernels/$name.cu" kernels/nvcc.flags kernels/ptxas.sh -newer "$out.ok" -print -quit) ]]; then return; fi
  rm -rf "$out" "$out.ok"
  mkdir -p "$out"
  # shellcheck disable=SC2046
  "$nvcc" $(cat kernels/nvcc.flags) -fatbin --keep --keep-dir "$out" -Xptxas -v -Werror all-warnings \
    "kernels/$name.cu" -o "$out/$name.fatbin" >"$out/log" 2>&1 || { cat "$out/log" >&2; return 1; }
  local arch cubin
  for arch in "${archs[@]}"; do
    cubin=$(find "$out" -name "*_$arch.cubin")
    "$tools/nvdisasm" -c "$cubin" >"$out/$arch.sass"
  done
  touch "$out.ok"
}

names=()
for source in kernels/*.cu; do
  name=$(basename "$source" .cu)
  names+=("$name")
  one "$name" &
  while (($(jobs -rp | wc -l) >= ${JOBS:-2})); do wait -n; done
done
while (($(jobs -p | wc -l) > 0)); do wait -n || { (($? == 127)) && break; exit 1; }; done

# What ptxas says of each kernel and architecture: "kernel arch registers stack spill shared".
for name in "${names[@]}"; do
  awk '
    /Compiling entry function/ { split($0, q, "\047"); kernel = q[2]; arch = q[4] }
    /bytes stack frame/ { match($0, /[0-9]+ bytes stack/); stack = substr($0, RSTART) + 0
                          match($0, /[0-9]+ bytes spill stores/); spill = substr($0, RSTART) + 0 }
    /Used [0-9]+ registers/ { match($0, /Used [0-9]+/); regs = substr($0, RSTART + 5, RLENGTH - 5)
                              shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
                              print kernel, arch, regs, stack, spill, shared }
  ' "$dir/$name/log"
done >"$dir/report"

# The instructions each kernel is written for.
wanted() {
  case $1 in
    attend_prefill_f16_* | attend_prefill_bf16_*) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 HMMA\.16816\.F32' ;;
    attend_prefill_int8_*) echo 'LDG\.E[A-Z0-9._]*\.64 STS\.128 PRMT LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 HMMA\.16816\.F32' ;;
    attend_int8 | attend_prefill_fma_int8) echo 'LDG\.E[A-Z0-9._]*\.64 PRMT' ;;
    attend_prefill_fma_*) echo 'LDG\.E[A-Z0-9._]*\.128' ;;
    *_prefill_f32) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 FFMA' ;;
    *_prefill_int8 | *_prefill_int4) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 STS\.64 LDSM\.16\.M88\.4 HMMA\.16816\.F32' ;;
    *_prefill_nf4) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 LDS$ STS\.64 LDSM\.16\.M88\.4 HMMA\.16816\.F32' ;;
    *_prefill_*) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDSM\.16\.M88\.4 HMMA\.16816\.F32' ;;
    prepare_*) ;;
    embed_int8) echo 'PRMT' ;;
    append_int8) echo 'STG\.E[A-Z0-9._]*\.64' ;;
    *_int8) echo 'LDG\.E[A-Z0-9._]*\.128 PRMT' ;;
    *_int4) echo 'LDG\.E[A-Z0-9._]*\.128 LOP3\.LUT' ;;
    *_nf4) echo 'LDG\.E[A-Z0-9._]*\.128 LDG\.E[A-Z0-9._]*\.64 LDS$' ;;
    *) echo 'LDG\.E[A-Z0-9._]*\.128' ;;
  esac
}

failed=0
complain() { echo "kernels/ptxas.sh: $*" >&2; failed=1; }
while read -r kernel arch regs stack spill shared; do
  ((stack == 0 && spill == 0)) || complain "$kernel for $arch: a stack frame of $stack bytes, $spill bytes spilled"
  ((shared == 0)) || complain "$kernel for $arch: $shared bytes of static shared memory"
done <"$dir/report"

for name in "${names[@]}"; do
  for arch in "${archs[@]}"; do
    # One line for each kernel and kind of instruction.
    awk '/^\.text\./ { kernel = substr($1, 7); sub(/:$/, "", kernel) }
         kernel && match($0, /(LDG|LDGSTS|LDSM|LDS|STG|STS|HMMA|FFMA|PRMT|LOP3)(\.[A-Z0-9_]+)*/) { print kernel, substr($0, RSTART, RLENGTH) }' \
      "$dir/$name/$arch.sass" | sort -u >"$dir/$name/$arch.used"
  done
done
count=0
while read -r kernel; do
  count=$((count + 1))
  for arch in "${archs[@]}"; do
    grep -q "^$kernel sm_$arch " "$dir/report" || complain "$kernel was not compiled for sm_$arch"
    for instruction in $(wanted "$kernel"); do
      grep -qhE "^$kernel $instruction" "$dir"/*/"$arch.used" || complain "$kernel for sm_$arch has no $instruction"
    done
  done
done < <(sed -n '/^#define GPU_KERNELS/,$p' kernels/params.h | sed -nE 's/^ *X\(([a-z0-9_]+)(##[TQ])?,.*/\1 \2/p' |
  while read -r name typed; do
    case $typed in
      '##T') printf "$name%s\n" f32 f16 bf16 ;;
      '##Q') printf "$name%s\n" int8 int4 nf4 ;;
      *) echo "$name" ;;
    esac
  done)
((count >= 65)) || complain "only $count kernels were found in params.h"

awk '{ regs[$1] = regs[$1] " " $2 ":" $3 } END { for (k in regs) print k, regs[k] }' "$dir/report" | sort | column -t
((failed == 0)) || exit 1
echo "kernels/ptxas.sh: $count kernels for ${archs[*]/#/sm_} and compute_80: no spills, no stack, the instructions meant are there"
