#!/usr/bin/env bash
# Compiles every kernel with the real compiler for every architecture of the library, and checks the
# result. Fails on spills, stack frames, static shared memory and warnings. Fails also where a
# kernel's machine code lacks the wide loads, asynchronous copies, ldmatrix or tensor-core
# instructions that the kernel is written for. Prints the registers of each kernel.
#
#   kernels/ptxas.sh             compiles the kernels that have changed, checks all, and writes
#                                kernels/compiled.txt: the sums of the sources that passed, and what
#                                nvcc made of them
#   kernels/ptxas.sh --built     checks the kernels in the release build of the library
#   kernels/ptxas.sh --release   checks all kernels as scripts/nvcc12 compiles them for releases
#   kernels/ptxas.sh --current   whether compiled.txt is of these sources. If so, nvcc would only
#                                say once more what stands there. Needs no nvcc
#
# The environment variable NVCC names another nvcc (13.0 or newer) with cuobjdump beside it. Without
# it, scripts/nvcc finds or fetches both.
set -euo pipefail
cd "$(dirname "$0")/.."

passed=kernels/compiled.txt
names=()
for source in kernels/*.cu; do names+=("$(basename "$source" .cu)"); done

# The sum of files without comments and white space, which nvcc does not see. (No kernel has a block
# comment, and no string in one has two slashes.)
sum_of() {
  sed -E 's://.*::' "$@" | tr -d '[:space:]' | sha256sum | cut -d' ' -f1
}

# What compiled.txt begins with. All kernels include gpu.h, and that all other headers.
sums() {
  local name
  echo "nvcc.flags $(sha256sum <kernels/nvcc.flags | cut -d' ' -f1)"
  echo "driver $(sum_of kernels/emu/cuda/*.{h,cpp} src/backend/gpu/driver.rs)"
  for name in "${names[@]}"; do echo "$name $(sum_of kernels/*.h "kernels/$name.cu")"; done
}

if [[ ${1:-} == --current ]]; then
  changed=$(diff <(sed -n '/^sources$/,/^$/p' $passed | sed '1d;$d') <(sums) | sed -n 's/^> \([^ ]*\) .*/\1/p' | paste -sd' ')
  [[ -z $changed ]] || { echo "kernels/ptxas.sh: $passed is not of these sources ($changed): make kernels"; exit 1; }
  echo "kernels/ptxas.sh: nvcc has compiled these sources: $(grep -c ' sm_' $passed) kernels without spills or stack, with the" \
    "instructions meant ($(sed -n 's/^by //p' $passed))"
  exit
fi

nvcc=${NVCC:-$(scripts/nvcc)} dir=build/kernels/ptxas
if [[ ${1:-} == --release ]]; then nvcc=$(scripts/nvcc12) dir=build/kernels/ptxas12; fi
cuobjdump=$(dirname "$nvcc")/cuobjdump
archs=(80 86 89 90a 100 120)
mkdir -p "$dir"

if [[ ${1:-} == --built ]]; then
  fatbins=$(cargo build --release --locked --message-format=json 2>/dev/null |
    sed -n 's|^{"reason":"build-script-executed".*"out_dir":"\([^"]*/llamabi-[^"]*\)".*|\1|p' | tail -n1)
  [[ -e $fatbins/${names[0]}.fatbin ]] || { echo "kernels/ptxas.sh: the library was built without kernels ($fatbins)" >&2; exit 1; }
else
  fatbins=$dir
fi

# Compiles the tests' stand-in driver against NVIDIA's header, which checks its signatures and
# numbers. src/backend/gpu/driver.rs has the same ones.
for source in kernels/emu/cuda/*.cpp; do
  [[ $source == */blaslt.cpp || $source == */nccl.cpp ]] || c++ -std=c++17 -Wall -Wextra -Werror -DEMU_CUDA_H -I"$(dirname "$nvcc")/../include" -fsyntax-only "$source"
done

compile() {
  local name=$1
  # Return if nothing that it depends on has changed since it was compiled.
  if [[ -e $dir/$name.fatbin && -z $(find kernels/*.h "kernels/$name.cu" kernels/nvcc.flags kernels/ptxas.sh -newer "$dir/$name.fatbin" -print -quit) ]]; then return; fi
  rm -f "$dir/$name.fatbin"
  # shellcheck disable=SC2046
  "$nvcc" $(cat kernels/nvcc.flags) -fatbin "kernels/$name.cu" -o "$dir/$name.fatbin" 2>&1 | tee "$dir/$name.words" >&2
}

# Writes "kernel arch registers stack local shared" into NAME.report, and "kernel arch instruction",
# each once, into NAME.used.
read_one() {
  local name=$1
  if [[ $fatbins == "$dir" ]]; then compile "$name"; fi
  "$cuobjdump" -res-usage "$fatbins/$name.fatbin" 2>&1 | awk '
    /^Fatbin (elf|ptx) code/ { ptx = /ptx/ }
    /^arch = / { arch = $3; if (ptx) print "-", "compute" substr(arch, 3), 0, 0, 0, 0 }
    /^ Function / { kernel = $2; sub(/:$/, "", kernel) }
    / REG:/ { for (i = 1; i <= NF; i++) { split($i, part, ":"); value[part[1]] = part[2] }
              print kernel, arch, value["REG"], value["STACK"], value["LOCAL"], value["SHARED"] }' >"$dir/$name.report"
  "$cuobjdump" -sass "$fatbins/$name.fatbin" | awk '
    /^arch = / { arch = $3 }
    /Function : / { kernel = $3 }
    match($0, /(LDG|LDGSTS|LDSM|LDS|LDL|STL|STG|STS|HMMA|HFMA2|F2FP|FFMA|PRMT|LOP3|ACQBULK|PREEXIT|CCTL|HGMMA|UTMALDG|USETMAXREG)(\.[A-Z0-9x_]+)*/) { print kernel, arch, substr($0, RSTART, RLENGTH) }' |
    sort -u >"$dir/$name.used"
}

for name in "${names[@]}"; do
  while (($(jobs -rp | wc -l) >= ${JOBS:-$(nproc)})); do wait -n; done
  read_one "$name" &
done
while (($(jobs -p | wc -l) > 0)); do wait -n || { (($? == 127)) && break; exit 1; }; done

# The instructions that each kernel is written for.
wanted() {
  case $1 in
    # Kernels for quantised weights load lines to registers and decode them there for the tensor
    # cores.
    *_hopper_half_int8 | *_hopper_half_int4 | *_hopper_half_nf4 | *_hopper_half_fp8) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST LDG\.E[A-Z0-9._]*\.128 HGMMA\.64x128x16\.F32$ USETMAXREG' ;;
    *_hopper_int8 | *_hopper_int4 | *_hopper_nf4 | *_hopper_fp8) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST LDG\.E[A-Z0-9._]*\.128 HGMMA\.64x256x16\.F32$ USETMAXREG' ;;
    *_hopper_quarter_f16) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST HGMMA\.64x64x16\.F32$' ;;
    *_hopper_quarter_bf16) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST HGMMA\.64x64x16\.F32\.BF16$' ;;
    *_hopper_half_f16) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST HGMMA\.64x128x16\.F32$' ;;
    *_hopper_half_bf16) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST HGMMA\.64x128x16\.F32\.BF16$' ;;
    *_hopper_f16) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST HGMMA\.64x256x16\.F32$ USETMAXREG' ;;
    *_hopper_bf16) echo 'UTMALDG\.2D UTMALDG\.2D\.MULTICAST HGMMA\.64x256x16\.F32\.BF16$ USETMAXREG' ;;
    attend_hopper_f16_*) echo 'UTMALDG\.2D HGMMA\.64x128x16\.F32$ USETMAXREG' ;;
    attend_hopper_bf16_*) echo 'UTMALDG\.2D HGMMA\.64x128x16\.F32\.BF16$ USETMAXREG' ;;
    attend_prefill_f16_* | attend_prefill_bf16_*) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 HMMA\.16816\.F32' ;;
    attend_prefill_int8_*) echo 'LDG\.E[A-Z0-9._]*\.64 STS\.128 PRMT LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 HMMA\.16816\.F32' ;;
    attend_prefill_fp8_*) echo 'LDG\.E[A-Z0-9._]*\.64 STS\.128 LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 HMMA\.16816\.F32' ;;
    attend_prefill_fma_fp8) echo 'LDG\.E[A-Z0-9._]*\.64' ;;
    attend_prefill_fma_int8) echo 'LDG\.E[A-Z0-9._]*\.64 PRMT' ;;
    attend_f16 | attend_bf16 | attend_fp8) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 HMMA\.16816\.F32' ;;
    attend_int8) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDSM\.16\.M88\.4 LDSM\.16\.MT88\.4 PRMT HFMA2 HMMA\.16816\.F32' ;;
    adapt_*) echo 'LDG\.E[A-Z0-9._]*\.128 FFMA' ;;
    attend_prefill_fma_*) echo 'LDG\.E[A-Z0-9._]*\.128' ;;
    *_prefill_f32) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 FFMA' ;;
    *_prefill_int8 | *_prefill_int4 | *_prefill_uint4 | *_prefill_fp8 | *_prefill_k[4568]) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 STS\.64 LDSM\.16\.M88\.4 HMMA\.16816\.F32' ;;
    *_prefill_nf4 | *_prefill_iq4) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 LDS$ STS\.64 LDSM\.16\.M88\.4 HMMA\.16816\.F32' ;;
    *_prefill_*) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDSM\.16\.M88\.4 HMMA\.16816\.F32' ;;
    prepare_* | silu_add | gather) ;;
    reduce) echo 'LDG\.E[A-Z0-9._]*\.128 STG\.E[A-Z0-9._]*\.128' ;;
    reduce_peers) echo 'STG\.E\.STRONG\.SYS LDG\.E\.STRONG\.SYS LDG\.E[A-Z0-9._]*\.128' ;;
    qkv_epilogue) echo 'LDG\.E[A-Z0-9._]*\.64 STG\.E[A-Z0-9._]*\.64' ;;
    ffn_up_epilogue_*) echo 'LDG\.E[A-Z0-9._]*\.128 STG\.E[A-Z0-9._]*\.64' ;;
    embed_int8 | embed_k8) echo 'PRMT' ;;
    embed_int4 | embed_uint4 | embed_iq4 | embed_k[456] | append_f32 | append_f16 | append_bf16) ;;
    append_int8 | append_fp8) echo 'STG\.E[A-Z0-9._]*\.64' ;;
    attend_* | embed_* | *_f32) echo 'LDG\.E[A-Z0-9._]*\.128' ;;
    *_batch_int8 | *_batch_k8) echo 'LDG\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.128 LDS\.64 PRMT HFMA2 HMMA\.16816\.F32' ;;
    *_batch_int4 | *_batch_uint4 | *_batch_k[456]) echo 'LDG\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.128 LDS\.64 LOP3\.LUT HFMA2 HMMA\.16816\.F32' ;;
    *_batch_nf4 | *_batch_iq4) echo 'LDG\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.128 LDS\.64 LDS$ PRMT HMMA\.16816\.F32' ;;
    *_batch_fp8) echo 'LDG\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.128 LDS\.64 HMMA\.16816\.F32' ;;
    *_batch_*) echo 'LDG\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 HMMA\.16816\.F32' ;;
    *_k8) echo 'LDG\.E[A-Z0-9._]*\.128 PRMT HFMA2 HMMA\.16816\.F32' ;;
    *_iq4) echo 'LDG\.E[A-Z0-9._]*\.128 LDS$ PRMT HMMA\.16816\.F32' ;;
    *_k[456] | *_uint4) echo 'LDG\.E[A-Z0-9._]*\.128 LOP3\.LUT HFMA2 HMMA\.16816\.F32' ;;
    # Lines and their scales are copied to a ring.
    *_int8) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.64 LDS\.128 PRMT HFMA2 HMMA\.16816\.F32' ;;
    *_int4) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 LOP3\.LUT HFMA2 HMMA\.16816\.F32' ;;
    *_fp8) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 HMMA\.16816\.F32' ;;
    *_nf4) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDGSTS\.E[A-Z0-9._]*\.64 LDS\.128 LDS$ PRMT HMMA\.16816\.F32' ;;
    change | sample_max | sample_draw) echo 'LDG\.E[A-Z0-9._]*\.128' ;;
    *) echo 'LDGSTS\.E[A-Z0-9._]*\.128 LDS\.128 HMMA\.16816\.F32' ;;
  esac
}

# And those for compute capability 9.0 and newer. A kernel that may start early lets the next launch
# start and waits for the previous one. Products load weights in the meantime; the float32 ones
# prefetch them into L2.
wanted_early() {
  case $1 in
    adapt_*_prefill_*) echo 'PREEXIT ACQBULK' ;;
    adapt_*) echo 'PREEXIT ACQBULK CCTL\.E\.PF2' ;;
    *_prefill_* | qkv_epilogue | ffn_up_epilogue_*) ;;
    embed_* | silu_add | reduce | reduce_peers | gather) echo 'PREEXIT' ;;
    qkv_f32 | matmul_add_f32 | ffn_up_f32 | logits_f32) echo 'PREEXIT ACQBULK CCTL\.E\.PF2' ;;
    *) echo 'PREEXIT ACQBULK' ;;
  esac
}

# Compute capability 8.9 and newer convert e4m3 with one instruction.
wanted_converted() {
  case $1 in
    append_*) ;;
    *_fp8 | *_fp8_*) echo 'F2FP\.F16\.E4M3\.UNPACK_B' ;;
  esac
}

failed=0
complain() { echo "kernels/ptxas.sh: $*" >&2; failed=1; }
for name in "${names[@]}"; do
  [[ ! -s $fatbins/$name.words ]] || complain "nvcc says of $name: $(<"$fatbins/$name.words")"
  grep -q '^- compute_80 ' "$dir/$name.report" || complain "$name has no PTX for compute_80"
done
reports=("${names[@]/#/"$dir/"}") used=("${names[@]/#/"$dir/"}")
cat "${reports[@]/%/.report}" | grep -v '^- ' >"$dir/report"
cat "${used[@]/%/.used}" >"$dir/used"
while read -r kernel arch _ stack local shared; do
  # Compute capability 9.0 and newer take 1024 bytes for themselves of a block that uses shared
  # memory (CUDA programming guide, "Compute Capability 9.x").
  [[ $arch == sm_8* || $shared != 1024 ]] || shared=0
  ((stack == 0 && local == 0)) || complain "$kernel for $arch: a stack frame of $stack bytes, $local bytes of local memory"
  ((shared == 0)) || complain "$kernel for $arch: $shared bytes of static shared memory"
done <"$dir/report"
while read -r kernel arch instruction; do
  complain "$kernel for $arch: spills ($instruction)"
done < <(grep -E ' (LDL|STL)' "$dir/used")

count=0
while read -r kernel; do
  count=$((count + 1))
  for arch in "${archs[@]}"; do
    # These exist for one architecture only; the library relies on that.
    if [[ $kernel == *_hopper_* && $arch != 90a ]]; then
      ! grep -q "^$kernel sm_$arch " "$dir/report" || complain "$kernel was compiled for sm_$arch"
      continue
    fi
    grep -q "^$kernel sm_$arch " "$dir/report" || complain "$kernel was not compiled for sm_$arch"
    early=$([[ $arch == 8* ]] || wanted_early "$kernel")
    converted=$([[ $arch == 8[06] ]] || wanted_converted "$kernel")
    for instruction in $(wanted "$kernel") $early $converted; do
      grep -qE "^$kernel sm_$arch $instruction" "$dir/used" || complain "$kernel for sm_$arch has no $instruction"
    done
  done
done < <(printf '#include "params.h"\n#define LISTED(name, Params, THREADS) kernel name;\nGPU_KERNELS(LISTED)\n' |
  cc -E -P -Ikernels -xc - | tr ';' '\n' | sed -nE 's/^ *kernel ([a-z0-9_]+)$/\1/p')
((count >= 142)) || complain "only $count kernels were found in params.h"

awk '{ regs[$1] = regs[$1] " " $2 ":" $3 } END { for (k in regs) print k regs[k] }' "$dir/report" | sort >"$dir/registers"
column -t "$dir/registers"
((failed == 0)) || exit 1
if [[ $fatbins == "$dir" && ${1:-} != --release ]]; then
  {
    echo "# The sources that nvcc has compiled for every architecture of the library, and the registers of each"
    echo "# kernel: without spills, stack frames and static shared memory, and with the instructions that the"
    echo "# kernels are written for. kernels/ptxas.sh (make kernels) checks that and writes this file; make test"
    echo "# runs nvcc only where the file is not of the sources."
    echo
    "$nvcc" --version | sed -nE 's/.*release ([0-9.]+), .*/by nvcc \1/p'
    echo
    echo sources
    sums
    echo
    cat "$dir/registers"
  } >$passed.new
  mv $passed.new $passed
fi
echo "kernels/ptxas.sh: $count kernels for ${archs[*]/#/sm_} and compute_80: no spills, no stack, the instructions meant are there ($SECONDS s)"
