#!/usr/bin/env bash
# Runs everything that needs a GPU, in one command:
#
#   tests/gpu/day.sh [--steps LIST] [--seconds N] [--work DIR] [--jobs N] [--kernels]
#                    [--tiny DRIVER_DIR [--whole]] OUT
#
# For a bare x86-64 machine with an NVIDIA driver (CUDA 12.2 or newer; CUDA 13 for kernels of nvcc
# 13), Python 3 with torch and transformers, nvcc, compute-sanitizer and ncu; no Rust. It runs from
# where tests/gpu/pack.sh put it, or in a checkout that has build/gpu-day. $LLAMABI_LIBRARY names
# another library.
#
#   --steps    some of these, separated by commas; all by default. They run in the order of `all`
#              below, the most important first:
#              device        what the machine has, and whether the library runs on it
#              short         a few steps of each kind of kernel
#              kernels       each kernel against the CPU backend and against itself: tests/gpu/*.rs
#              reference     recorded cases, every format, and batch invariance through the C API,
#                            CUDA against the CPU
#              choices       grammars, biases, bans and penalties against the CPU, alone and beside
#                            others
#              staged        two and four ranks on this one GPU against as many on the CPU
#              fp8           weights and cache in fp8 against the CPU without fp8; batch invariance
#              transformers  tokens and log probabilities of the 1b and 8b shapes against
#                            transformers; batch invariance of the 1b shape
#              quantised     int8, int4 and nf4 of the 1b shape against the CPU backend
#              cost          the bytes and launches that benches/gpu_cost.py predicts
#              trace         microseconds of each kernel of a step, and the gaps between them,
#                            beside what benches/gpu_cost.py predicts
#              switches      a shortened 8b with each way to run kernels turned off
#              speed         this machine's limits, decode, prefill and start, beside what
#                            benches/gpu_cost.py predicts; on compute capability 9.0, prefill with
#                            its own kernels and with those of all other devices
#              soak          two handles on two threads, to the last bit; a handle while torch
#                            records a graph
#              peers         torch, torch.compile and transformers on the same weights
#              llamacpp      llama.cpp, if llama-bench and Python's gguf are installed
#              sanitizer     compute-sanitizer's memcheck, racecheck, initcheck and synccheck
#              ncu           the time of every kernel, and the three slowest in detail
#   --seconds  time limit for everything: a step gets what is left, and fails if nothing is left
#              570 by default, so that the record is written before a limit of ten minutes
#   --work     where generated checkpoints are kept for the next command; otherwise they are
#              deleted at the end
#   --jobs     how many of the steps that compare results run at a time, each on its share of the
#              processors; one by default. Steps that measure run by themselves
#   --kernels  compile the kernels here, with source lines for the tools, and use them instead of
#              the library's
#   --tiny     a little of each, on a driver that stands in for NVIDIA's: DRIVER_DIR/libcuda.so.1,
#              which `kernels/test.sh library plain` leaves in build/kernels/plain. It is a
#              rehearsal, and its timings mean nothing
#   --whole    with --tiny: all tests of the step kernels, as on a GPU, which takes minutes
#
# OUT gets logs, numbers, and record.txt, which has all of it on a page for benches/record. A step
# that lacks something it needs is skipped and says so. Exits with 1 if any step has failed or if
# none has passed.
set -uo pipefail
began=$SECONDS
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
usage() { sed -n '4p' "$0" >&2; exit 2; }
all=device,short,kernels,reference,choices,staged,fp8,sanitizer,soak,transformers,quantised,cost,trace,switches,speed,peers,llamacpp,ncu
steps=$all seconds=570 jobs=1 kernels=0 tiny='' whole=0 out='' keep=''
while (($#)); do
  case $1 in
    --steps) steps=${2:?} && shift ;;
    --seconds) seconds=${2:?} && shift ;;
    --work) keep=${2:?} && shift ;;
    --jobs) jobs=${2:?} && shift ;;
    --kernels) kernels=1 ;;
    --tiny) tiny=$(cd "${2:?}" && pwd) && shift ;;
    --whole) whole=1 ;;
    -*) usage ;;
    *) [[ -z $out ]] || usage; out=$1 ;;
  esac
  shift
done
[[ -n $out && $seconds =~ ^[0-9]+$ && $jobs =~ ^[1-9][0-9]*$ ]] || usage
for step in ${steps//,/ }; do
  [[ ,$all, == *,$step,* ]] || { echo "there is no step $step; there are ${all//,/, }" >&2 && exit 2; }
done
pack=$root
[[ -e $pack/libllamabi.so ]] || pack=$root/build/gpu-day
export LLAMABI_LIBRARY=${LLAMABI_LIBRARY:-$pack/libllamabi.so}
[[ -e $LLAMABI_LIBRARY ]] || { echo "$LLAMABI_LIBRARY is not there: tests/gpu/pack.sh makes it" >&2 && exit 2; }
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 TQDM_DISABLE=1
# Directories where the toolkit leaves its tools, for shells that do not know them.
for bin in /usr/local/cuda/bin /opt/nvidia/nsight-compute/*/; do PATH=$PATH:${bin%/}; done
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
models=$work/models
if [[ -n $keep ]]; then mkdir -p "$keep" && models=$(cd "$keep" && pwd)/models; fi
if [[ -n $tiny ]]; then
  [[ -e $tiny/libcuda.so.1 ]] || { echo "$tiny has no libcuda.so.1" >&2 && exit 2; }
  export LD_LIBRARY_PATH=$tiny${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} DAY_TINY=1
fi

# Writes the page anew after each row, so that a kill leaves what is known until then.
record() {
  {
    echo "tests/gpu/day.sh, $(date -u +%F)${tiny:+: REHEARSAL on a stand-in driver, no GPU; its timings mean nothing}"
    grep -a -h -E '^(llama_get_info|log: GPU|name, driver_version|NVIDIA .*MiB|model name|[0-9]+ processors|Python |torch |transformers |nvcc: |commit )' "$out/device.log" 2>/dev/null | awk '!seen[$0]++'
    echo
    printf '%s\n' "${table[@]}"
    echo "$passed passed, $failed failed, $((${#table[@]} - passed - failed)) skipped, $((SECONDS - began)) s"
    if [[ -s $out/speed.jsonl ]]; then
      echo
      python3 "$here/speed.py" table "$out/speed.jsonl"
    fi
    if [[ -e $out/trace.log ]]; then echo && sed -n '/^kernels of/,/^$/p' "$out/trace.log"; fi
    if [[ -e $out/ncu.log ]]; then grep -a -E ' launches +[0-9.]+ ms' "$out/ncu.log" | awk 'NR == 1 { print "" } { print }'; fi
  } >"$out/record.new" && mv "$out/record.new" "$out/record.txt"
}
usable=1
table=() failed=0 passed=0 words=''
row() { # row NAME OUTCOME SECONDS WORDS
  local line
  line=$(printf '%-36s %-8s %5d s  %s' "$@")
  table+=("$line")
  case $2 in ok) ((passed += 1)) ;; skipped) ;; *) ((failed += 1)) ;; esac
  echo "$line"
  record
}
# run NAME LIMIT LOG COMMAND...: adds a row to the table, with the last words that the command
# prints. The row says `skipped` if the command exits with 77.
run() {
  attempt "$work/said" "$2" "${@:4}"
  tell "$1" "$3" "$work/said" "${*:4}"
}
# attempt FILE LIMIT COMMAND...: FILE gets what the command prints, FILE.end its exit status and
# seconds; `-` if there is no time for it.
attempt() {
  local file=$1 limit=$2 start=$SECONDS left
  shift 2
  : >"$file"
  left=$((seconds - (SECONDS - began) - 3))
  if ((left < 1)); then
    echo "- 0" >"$file.end"
    return
  fi
  timeout -k 5 $((limit < left ? limit : left)) "$@" </dev/null >"$file" 2>&1
  echo "$? $((SECONDS - start))" >"$file.end"
}
# tell NAME LOG FILE COMMAND: the row of what was attempted.
tell() {
  local name=$1 log=$out/$2.log said=$3 rc took outcome
  read -r rc took <"$said.end"
  if [[ $rc == - ]]; then
    row "$name" "no time" 0 ""
    return 1
  fi
  { echo "== $name: $4" && cat "$said" && echo "== exit status $rc"; } >>"$log"
  case $rc in
    0) outcome=ok ;;
    77) outcome=skipped ;;
    124 | 137) outcome="too long" ;;
    *) outcome=FAILED ;;
  esac
  words=$(grep -a -v '^[[:space:]]*$' "$said" | tail -n 1 | tr -d '\r' | cut -c1-220)
  row "$name" "$outcome" "$took" "$words"
  case $outcome in FAILED | "too long") tail -n 6 "$said" | cut -c1-300 | sed 's/^/    /' && bisect ;; esac
  ((rc == 0))
}
# beside NAME LIMIT LOG COMMAND...: the same as gpu, but with --jobs up to that many run at a time,
# each on processors of its own. Only for steps that measure nothing. `collect` adds the rows of
# those that have ended, `settle` waits for the others.
running=() waiting=() begun=0
beside() {
  local job share
  if ((jobs == 1 || !usable)); then
    gpu "$@"
    return
  fi
  share=$((($(nproc) + jobs - 1) / jobs))
  while :; do
    for ((job = 0; job < jobs; job++)); do
      [[ -n ${running[job]:-} ]] && kill -0 "${running[job]}" 2>/dev/null || break 2
    done
    collect
    sleep 0.1
  done
  local file=$work/beside.$begun first=$((job * share % $(nproc)))
  local processors=$first-$((first + share > $(nproc) ? $(nproc) - 1 : first + share - 1))
  attempt "$file" "$2" taskset -c "$processors" "${@:4}" &
  running[job]=$!
  waiting+=("$1"$'\t'"$3"$'\t'"$file"$'\t'"${*:4}")
  ((begun += 1))
}
collect() {
  local each name log file command left=()
  for each in "${waiting[@]}"; do
    IFS=$'\t' read -r name log file command <<<"$each"
    if [[ -s $file.end ]]; then short=yes tell "$name" "$log" "$file" "$command"; else left+=("$each"); fi
  done
  waiting=("${left[@]}")
}
settle() {
  local job
  for job in "${running[@]}"; do wait "$job"; done
  running=()
  collect
}
# After the first step that has failed: a short case as it is and under each switch, which tells
# what to look at, then memcheck. These rows count as others do. Where the short case fails and a
# switch mends it, everything after it runs with that switch, because there is more to be learnt.
bisected=0 hopeless=0
bisect() {
  local switch title mends='' fails=0 pids=() switches=(none CLUSTERS QUARTERS HOPPER PDL GRAPHS AHEAD) command
  ((bisected == 0 && usable == 1)) && [[ $short == yes ]] || return 0
  bisected=1
  if [[ -z $tiny ]] && has compute-sanitizer; then switches+=(memcheck); fi
  for switch in "${switches[@]}"; do
    command=(python3 "$here/parity.py" short)
    case $switch in
      none) ;;
      memcheck) command=(compute-sanitizer --tool memcheck --report-api-errors no --print-limit 20 --error-exitcode 9 "${command[@]}") ;;
      *) command=(env "LLAMABI_CUDA_$switch=0" "${command[@]}") ;;
    esac
    attempt "$work/bisect.$switch" $((jobs > 1 ? 40 : 60)) "${command[@]}" &
    if ((jobs > 1)); then pids+=($!); else wait $!; fi
  done
  if ((jobs > 1)); then wait "${pids[@]}"; fi
  for switch in "${switches[@]}"; do
    case $switch in
      none) title="as it is" ;;
      memcheck) title=memcheck ;;
      *) title="LLAMABI_CUDA_$switch=0" ;;
    esac
    if ! tell "short: $title" bisect "$work/bisect.$switch" "parity.py short"; then
      if [[ $switch == none ]]; then fails=1; fi
    elif [[ $title == LLAMABI* ]]; then
      mends=${mends:-LLAMABI_CUDA_$switch}
    fi
  done
  if ((fails)) && [[ -n $mends ]]; then
    export "$mends=0"
    skip "from here on: $mends=0" "the short case passes with it"
  elif ((fails)); then
    hopeless=1
  fi
}
skip() { row "$1" skipped 0 "$2"; }
has() { command -v "$1" >/dev/null; }
wanted() { [[ ,$steps, == *,$1,* ]]; }
# If the library does not run on CUDA, nothing more can be learnt; the steps that were asked for
# still get their rows.
short=no
gpu() {
  local short=yes rc=0
  if ((usable)); then run "$@" || rc=$?; else row "$1" FAILED 0 "not run: the library does not run on CUDA"; rc=1; fi
  collect
  return "$rc"
}

describe() {
  if [[ -z $tiny ]]; then
    nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total,clocks.max.sm,clocks.max.mem,power.limit,mig.mode.current \
      --format=csv || return
    nvidia-smi
  fi
  grep -m 1 'model name' /proc/cpuinfo
  echo "$(nproc) processors, $(awk '/MemTotal/ { print int($2 / 1048576) }' /proc/meminfo) GiB of memory, $(df -h --output=avail "$work" | tail -n1 | tr -d ' ') of disk"
  python3 -c '
import importlib, sys
print("Python", sys.version.split()[0])
for name in ("torch", "transformers", "triton", "numpy"):
    try: print(name, importlib.import_module(name).__version__)
    except ImportError as error: print(name, "is not there:", error)'
  for tool in nvcc compute-sanitizer ncu; do
    if has $tool; then echo "$tool: $($tool --version | grep -i -m1 -E 'release|version')"; else echo "$tool is not there"; fi
  done
  echo "commit $(tr '\n' ' ' <"$pack/commit" 2>/dev/null)"
}

rm -f "$out"/{device,correctness,sanitizer,trace,speed,ncu,bisect}.log "$out"/{speed.jsonl,record.txt}
record # a kill at any moment leaves one
cases=(1b:f32 1b:bf16 8b:bf16) formats=(int8 int4 nf4)
if [[ -n $tiny ]]; then cases=(tiny:f32 tiny:bf16 wide:bf16) formats=(int4); fi

if ((kernels)); then
  if has nvcc; then
    run "kernels compiled here" 240 device env NVCC="$(command -v nvcc)" JOBS="$(nproc)" "$root/kernels/pack.sh" "$work/kernels" -lineinfo &&
      export LLAMABI_KERNELS=$work/kernels
  else
    skip "kernels compiled here" "there is no nvcc"
  fi
fi
# All other steps need the answer of this one.
if wanted device; then (describe) >>"$out/device.log" 2>&1 || row "driver" FAILED 0 "$(tail -n1 "$out/device.log")"; fi
run "device: the library on CUDA" 90 device python3 "$here/parity.py" device || usable=0

# Nothing else can be relied on if this fails as it is and with every way to run kernels turned off.
if wanted short && ! gpu "short: each kind of kernel" 60 correctness python3 "$here/parity.py" short && ((hopeless)); then usable=0; fi
tests() { # tests NAME LIMIT [VARIABLE=VALUE...] -- ARGUMENTS...: tests of tests/gpu on this device
  local name=$1 limit=$2 settings=()
  shift 2
  while [[ $1 != -- ]]; do settings+=("$1") && shift; done
  shift
  if [[ -x $pack/bin/gpu ]]; then
    beside "$name" "$limit" correctness env CARGO_MANIFEST_DIR="$root" LLAMABI_TEST_DEVICE=cuda "${settings[@]}" "$pack/bin/gpu" --test-threads 4 "$@"
  else
    skip "$name" "$pack/bin/gpu is not there"
  fi
}
if wanted kernels; then
  for name in cuda models quantised sampling spans medusa features mixed gguf drafts adapters pages; do
    # Tests that only the emulated device can run say so and pass.
    filter=("$name::")
    # The other tests of these files would compile the emulator there.
    if [[ $name == cuda ]]; then filter=(--exact cuda::on_a_real_device); fi
    if [[ $name == pages ]]; then filter=(--exact pages::on_a_real_device); fi
    if [[ $name == medusa ]]; then filter=(--exact medusa::heads_compute_what_they_are_said_to); fi
    if [[ $name == mixed ]]; then filter=(--exact mixed::matrices_of_a_layer_may_differ); fi
    if [[ $name == adapters ]]; then
      filter=(--exact adapters::an_adapter_computes_what_it_does_on_the_cpu
        adapters::company_and_cuts_change_no_bit::{as_stored,int4_weights_and_int8_cache}
        adapters::long_prompts_go_in_groups adapters::pages_of_different_adapters_are_told_apart)
    fi
    if [[ -n $tiny && $whole == 0 ]]; then
      case $name in
        models) filter=(--exact models::{page_tables_grow,auto_takes_what_there_is}) ;;
        quantised) filter=(--exact quantised::company_changes_no_bit) ;;
        sampling) filter=(sampling::generations) ;;
        spans | medusa | features | mixed | gguf | drafts | adapters | pages) continue ;;
      esac
    fi
    tests "kernels: tests/gpu/$name.rs" 300 -- "${filter[@]}"
  done
fi
wanted reference && beside "reference, formats, company" 300 correctness python3 "$here/parity.py" reference
# Without this, compute capability 9.0 would never run the kernels that all other devices run.
wanted reference && [[ -z $tiny ]] && beside "reference, mma.sync" 300 correctness env LLAMABI_CUDA_HOPPER=0 python3 "$here/parity.py" reference
wanted choices && beside "choices with rules" 150 correctness python3 "$here/parity.py" choices
if wanted staged; then
  filter=(models::ranks::)
  if [[ -n $tiny && $whole == 0 ]]; then filter=(--exact models::ranks::ranks_say_what_ranks_on_the_cpu_say); fi
  tests "staged: several ranks on one GPU" 200 LLAMABI_RANKS=staged -- "${filter[@]}"
fi
wanted fp8 && beside "fp8, of weights and cache" 150 correctness python3 "$here/parity.py" fp8
if wanted sanitizer; then
  for tool in memcheck racecheck initcheck synccheck; do
    if [[ -n $tiny ]]; then
      skip "sanitizer: $tool" "the stand-in driver has no device for compute-sanitizer"
    elif has compute-sanitizer; then
      # The library asks for functions that a driver, and for kernels that a file, may lack.
      flags=()
      if [[ $tool == memcheck ]]; then flags=(--report-api-errors no); fi
      beside "sanitizer: $tool" 150 sanitizer compute-sanitizer --tool $tool "${flags[@]}" --print-limit 20 --error-exitcode 9 python3 "$here/parity.py" short
    else
      skip "sanitizer: $tool" "there is no compute-sanitizer"
    fi
  done
fi
if wanted soak; then
  beside "soak: two handles" 150 correctness python3 "$here/parity.py" soak 60
  beside "soak: beside torch's graph" 90 correctness python3 "$here/parity.py" captured
fi
# These need most of the GPU's memory, so they run one after the other, beside what is above.
if wanted transformers; then
  for case in "${cases[@]}"; do
    gpu "transformers: ${case/:/ }" 240 correctness python3 "$here/against_transformers.py" "$models" "$case"
  done
fi
wanted transformers && [[ -z $tiny ]] && gpu "1b: prompts alone and in company" 200 correctness python3 "$here/parity.py" tiles "$models"
if wanted quantised; then
  for format in "${formats[@]}"; do
    gpu "quantised: $format" 240 correctness python3 "$here/parity.py" quantised "$models" "$format"
  done
fi
settle
if wanted cost; then gpu "cost: bytes and launches" 120 correctness python3 "$here/cost.py"; fi
# Seconds for a step that watches the clock itself.
share() { local left=$((seconds - (SECONDS - began))); echo $((($1 < left ? $1 : left) - 15)); }
if wanted trace; then gpu "trace: time of each kernel" 150 trace python3 "$here/trace.py" "$models"; fi
if wanted switches; then gpu "switches" 150 speed python3 "$here/speed.py" switches "$models" "$out/speed.jsonl" "$(share 150)"; fi
if wanted speed; then gpu "speed" 1200 speed python3 "$here/speed.py" ours "$models" "$out/speed.jsonl" "$(share 1200)"; fi
if wanted peers; then gpu "peers: torch, transformers" 600 speed python3 "$here/speed.py" peers "$models" "$out/speed.jsonl" "$(share 600)"; fi
if wanted llamacpp; then
  if ! has llama-bench; then
    skip "peers: llama.cpp" "there is no llama-bench"
  else
    gpu "peers: llama.cpp" 400 speed python3 "$here/speed.py" llamacpp "$models" "$out/speed.jsonl" "$(share 400)"
  fi
fi
if wanted ncu; then
  if [[ -n $tiny ]]; then
    skip "ncu" "the stand-in driver has no counters"
  elif ! has ncu; then
    skip "ncu" "there is no ncu"
  elif gpu "ncu: every kernel's time" 150 ncu ncu --clock-control none --metrics gpu__time_duration.sum \
    --csv --print-units base --log-file "$work/times.csv" python3 "$here/speed.py" steps "$models"; then
    run "ncu: the slowest" 10 ncu python3 "$here/slowest.py" "$work/times.csv" "$work/slowest"
    while read -r kernel; do
      gpu "ncu: $kernel" 60 ncu ncu --clock-control none --set detailed --kernel-name "$kernel" --launch-count 1 \
        python3 "$here/speed.py" steps "$models"
    done < <(cat "$work/slowest" 2>/dev/null)
  fi
fi

for log in "$out"/*.log; do
  if (($(stat -c %s "$log") > 15000000)); then truncate -s 15000000 "$log"; fi
done
record
sed -n '/^$/,$p' "$out/record.txt"
((failed == 0 && passed > 0))
