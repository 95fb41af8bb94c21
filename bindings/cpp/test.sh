#!/usr/bin/env bash
# test.sh PREFIX: the C++ binding, against the library installed there.
set -euo pipefail
prefix=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$here/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for tool in g++ clang++ pkg-config nm; do
  command -v $tool >/dev/null || { echo "C++: $tool is missing: scripts/setup --test" >&2; exit 1; }
done
echo '#include <nlohmann/json.hpp>' | g++ -x c++ -fsyntax-only - 2>/dev/null ||
  { echo "C++: nlohmann-json3-dev is missing: scripts/setup --test" >&2; exit 1; }

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
unset LD_LIBRARY_PATH
read -ra cflags <<<"$(pkg-config --cflags llamabi)"
read -ra libs <<<"$(pkg-config --libs llamabi)"
warnings=(-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
sanitizers=(-fsanitize=address,undefined -fno-sanitize-recover=all)
units=(main reference results endings cpp)

# All units of all kinds first, one for each processor, and the header's parts, each of which
# compiles alone; then all kinds.
# compiles KIND COMPILER STANDARD FLAG...: the commands, every unit into an object of its own
compiles() {
  mkdir -p "$work/$1"
  local unit
  for unit in "${units[@]}"; do
    printf '%s' "$2" # no blank at the end of a line: xargs would take the next one with it
    printf ' %q' "-std=$3" "${warnings[@]}" "${@:4}" "${cflags[@]}" -c "$here/test/$unit.cc" -o "$work/$1/$unit.o"
    echo
  done
}
link() { # link KIND COMPILER FLAGS OBJECT...
  mkdir -p "$work/$1"
  "$2" $3 "${@:4}" "${libs[@]}" -pthread "-Wl,-rpath,$prefix/lib" -o "$work/$1/test"
  kinds+=("$1")
}
for cxx in g++ clang++; do
  for standard in c++17 c++20; do compiles $cxx-$standard $cxx $standard; done
  compiles $cxx-asan $cxx c++20 -g1 "${sanitizers[@]}"
done >"$work/commands"
for part in "$prefix"/include/llamabi/*.hpp; do
  printf '%q ' g++ -x c++ -std=c++17 "${warnings[@]}" "${cflags[@]}" -fsyntax-only
  printf '%q\n' "$part"
done >>"$work/commands"
xargs -P "$(nproc)" -L 1 env <"$work/commands"

kinds=()
for cxx in g++ clang++; do
  for standard in c++17 c++20; do link $cxx-$standard $cxx '' "$work/$cxx-$standard"/*.o; done
  link $cxx-asan $cxx "${sanitizers[*]}" "$work/$cxx-asan"/*.o
  symbols=$(nm "$work/$cxx-asan/test")
  grep -q __asan_init <<<"$symbols" && grep -q __ubsan_handle <<<"$symbols" ||
    { echo "C++: the sanitizers are not on" >&2; exit 1; }
done
# Units of both standards and both compilers in one program.
link mixed g++ '' "$work"/clang++-c++17/{main,results}.o "$work"/g++-c++20/{cpp,endings,reference}.o

test_of() { # test_of KIND WORK ROOT
  local rc=0
  timeout 900 "$2/$1/test" "$3" >"$2/$1/out" 2>&1 || rc=$?
  ((rc == 0)) || { grep -v 'ok$' "$2/$1/out"; echo "C++: FAILED: $1, exit status $rc" >&2; exit 1; }
}
export -f test_of
printf '%s\n' "${kinds[@]}" | xargs -P "$(nproc)" -I{} bash -c 'test_of "$@"' test_of {} "$work" "$root"
for kind in "${kinds[@]}"; do echo "C++: $(grep -c 'ok$' "$work/$kind/out") tests pass, $kind"; done
grep '^behaviour' "$work/g++-c++17/out"

# Which library a program meets is decided by the loader.
g++ -std=c++17 "${warnings[@]}" "${cflags[@]}" "$here/test/probe.cc" "${libs[@]}" -o "$work/probe"
said() { grep -qF -- "$1" "$work/out" || { echo "C++: said: $(cat "$work/out"); expected: $1" >&2; exit 1; }; }
rc=0
"$work/probe" "$root/demo/meta" >"$work/out" 2>&1 || rc=$?
[[ $rc == 127 ]] || { echo "C++: without a library the probe exits with $rc" >&2; exit 1; }
said 'error while loading shared libraries: libllamabi.so.0: cannot open shared object file'
grep -qF 'error while loading shared libraries: libllamabi.so.0' "$here/README.md" ||
  { echo "C++: README.md does not say what to do" >&2; exit 1; }
echo 'behaviour missing_library ok'

"$root/tests/bindings/other_abi.sh" "$work/other"
LD_LIBRARY_PATH=$work/other "$work/probe" "$root/demo/meta" >"$work/out"
said 'ABI version 99'
said 'ABI version 0'
rc=0
LD_LIBRARY_PATH=$prefix/lib "$work/probe" "$root/demo/meta" >"$work/out" || rc=$?
[[ $rc == 3 ]] || { echo "C++: the right library is refused: $(cat "$work/out")" >&2; exit 1; }
echo 'behaviour other_abi ok'

# Every field of the C structs.
"$root/tests/bindings/fields.sh" lib "$work/says"
g++ -std=c++17 "${warnings[@]}" "${cflags[@]}" "$here/test/fields.cc" "${libs[@]}" -o "$work/fields"
LD_LIBRARY_PATH=$work/says "$work/fields" | "$root/tests/bindings/fields.sh" check
echo 'behaviour every_field ok'

# examples/worker.cc
build() { "$1" -std=c++17 -g "${warnings[@]}" "${cflags[@]}" "${@:2}" "${libs[@]}" -pthread "-Wl,-rpath,$prefix/lib"; }
build g++ "${sanitizers[@]}" "$root/examples/worker.cc" -o "$work/worker"
build g++ "$here/test/jsonl.cc" -o "$work/jsonl"
worker=(timeout 300 "$work/worker" --ckpt_dir "$root/demo/meta" --temperature 0)
answers() { # answers NAME EXPECTED: what the worker said, line by line
  "$work/jsonl" <"$work/answers" >"$work/out" || { echo "C++: worker, $1: $(cat "$work/answers")" >&2; exit 1; }
  diff <(printf "$2") "$work/out" || { echo "C++: worker, $1: expected (left) and said (right) differ" >&2; exit 1; }
  echo "test worker: $1 ok"
}
# Not UTF-8, longer than max_seq_len, longer than anything, quotes and control characters, no last
# line feed.
lines() {
  printf 'Once\n\xff\n'; printf 'a%.0s ' {1..600}; printf '\n'
  head -c 5000000 /dev/zero | tr '\0' x; printf '\n\n"A\\\001"\t\r\n'; printf 'Anna\n%.0s' {1..20}; printf 'The end'
}
expected='1 length 5\n2 -11\n3 -9\n4 -9\n5 length 5\n6 length 5\n'$(printf '%s length 5\\n' {7..27})
lines | "${worker[@]}" --slots 3 --max_gen_len 5 >"$work/answers"
answers "a pipe, more lines than slots" "$expected"
lines >"$work/lines"
"${worker[@]}" --slots 8 --max_gen_len 5 <"$work/lines" >"$work/answers"
answers "a file" "$expected"
"${worker[@]}" </dev/null >"$work/answers"
answers "nothing" ''

# A copy of the demo model whose first layer overflows at every token: bf16 weights, finite all of
# them.
cp -R "$root/demo/hf" "$work/overflowing"
python3 - "$work/overflowing/model.safetensors" <<'EOF'
import json, sys
with open(sys.argv[1], 'r+b') as file:
    n = int.from_bytes(file.read(8), 'little')
    header = json.loads(file.read(n))
    def put(name, index, bf16):
        file.seek(8 + n + header[name]['data_offsets'][0] + 2 * index)
        file.write(bf16.to_bytes(2, 'little'))
    rows, width = header['model.embed_tokens.weight']['shape']
    for row in range(rows):
        put('model.embed_tokens.weight', row * width, 0x447a) # 1000
    for part in 'gate', 'up':
        put(f'model.layers.0.mlp.{part}_proj.weight', 0, 0x7149) # 1e30
EOF
printf 'Once\n' | timeout 300 "$work/worker" --ckpt_dir "$work/overflowing" >"$work/answers"
answers "a model that overflows" '1 not_finite 0\n'

# reads PID: it has its model, and has taken all that is in the pipe; from then on a signal finds it
# waiting
reads() {
  for _ in {1..1200}; do
    if grep -qsx llamabi-engine /proc/$1/task/*/comm &&
      python3 -c 'import fcntl, sys, termios; sys.exit(any(fcntl.ioctl(9, termios.FIONREAD, bytes(4))))'; then return; fi
    sleep 0.1
  done
  echo "C++: worker: it does not read its input" >&2
  exit 1
}
# interrupted NAME PROMPTS: SIGINT while the pipe stays open; what was said is in answers
interrupted() {
  rm -f "$work/pipe"
  mkfifo "$work/pipe"
  "$work/worker" --ckpt_dir "$root/demo/meta" --slots 2 --max_seq_len 100000 --ignore_eos 1 <"$work/pipe" >"$work/answers" &
  local pid=$! rc=0
  exec 9>"$work/pipe"
  printf "$2" >&9
  reads $pid
  kill -INT $pid
  ( sleep 120; kill -KILL $pid ) >/dev/null 2>&1 &
  local watch=$!
  wait $pid || rc=$?
  kill $watch
  exec 9>&-
  [[ $rc == 130 ]] || { echo "C++: worker, $1: exits with $rc" >&2; exit 1; }
}
interrupted "SIGINT while idle" ''
answers "SIGINT while idle" ''
interrupted "SIGINT while busy" 'Once\nAnna\nnever read\n'
sed -i 's/"tokens":[0-9]*/"tokens":0/' "$work/answers"
answers "SIGINT while busy" '1 cancelled 0\n2 cancelled 0\n'
echo 'C++: everything passed'
