#!/bin/bash
# run.sh PREFIX [SECONDS]: the example services, built against the library installed at PREFIX, with
# the official openai clients of PyPI and npm and with LangChain, then under load for SECONDS (3).
#
# What is independent runs side by side, one for each processor, both services at once. Each says
# what it has to say in one piece, when it has ended. ONLY, a pattern of bash, chooses among them by
# name: ONLY='Go service: tools' tests/services/run.sh PREFIX
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 PREFIX [SECONDS]" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
seconds=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$root/build/services
mkdir -p "$work"

lacks() { echo "tests/services/run.sh: $1 is missing: $2" >&2; exit 1; }
command -v go >/dev/null || lacks Go "1.24 or later, https://go.dev/dl"
command -v node >/dev/null || lacks Node.js "20 or later, https://nodejs.org"
command -v npm >/dev/null || lacks npm "it comes with Node.js"
python3 -c 'import venv, ensurepip' 2>/dev/null || lacks "Python's venv" "apt-get install python3-venv"

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
export GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=1
unset CGO_LDFLAGS CGO_CFLAGS
# Go's build cache does not notice another prefix, nor another llamabi.h in it; a flag it does.
export CGO_CPPFLAGS="-DLLAMABI_INSTALLED=$(echo "$prefix" | cat - "$prefix/include/llamabi.h" | cksum | tr -d ' ')"

# ---- side by side ----

jobs=$work/jobs
rm -rf "$jobs"
mkdir -p "$jobs"
begun=0
job() { # job NAME COMMAND...: beside the others, in a shell of its own
  local name=$1 own=$jobs/$((begun++)) at_once=${AT_ONCE:-$(nproc)}
  shift
  while (($(jobs -pr | wc -l) >= at_once)); do wait -n || true; done
  mkdir "$own"
  (
    begin=$SECONDS
    status=0
    "$@" >"$own/said" 2>&1 & # not as a part of ||, which would go on behind what fails in it
    wait $! || status=$?
    exec 9>>"$jobs/lock"
    flock 9
    echo "$status" >"$own/status"
    if [ $status = 0 ]; then echo "== $name: passed ($((SECONDS - begin)) s)"; else echo "== $name: FAILED"; fi
    cat "$own/said"
  ) &
}
together() { # waits for all that was begun; none may have failed
  wait
  local i
  for ((i = 0; i < begun; i++)); do
    [ "$(cat "$jobs/$i/status" 2>&1)" = 0 ] || { echo "tests/services/run.sh: FAILED, see above" >&2; exit 1; }
  done
}

# ---- what is needed: the services, and the clients, unmodified, at pinned versions ----
# The clients are kept until the pins change.

clients_of_pypi() {
  cmp -s "$here/requirements.txt" "$work/venv/requirements.txt" && return
  rm -rf "$work/venv"
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$work/venv/"
}
clients_of_npm() {
  cmp -s "$here/package-lock.json" "$work/npm/installed.json" && return
  rm -rf "$work/npm"
  mkdir -p "$work/npm"
  cp "$here/package.json" "$here/package-lock.json" "$work/npm/"
  (cd "$work/npm" && npm ci --silent --no-audit --no-fund --ignore-scripts)
  cp "$here/package-lock.json" "$work/npm/installed.json"
}
go_service() {
  (cd "$here/load" && go build -o "$work/load" .)
  (cd "$root/examples/go-server" && go build -o "$work/go-server" . && go build -race -o "$work/go-server-race" .)
}
# As its README says, but in a folder of its own: npm packs the binding and builds it against the
# installed library.
node_service() {
  rm -rf "$work/node-server" "$work"/llamabi-*.tgz
  cp -R "$root/examples/node-server" "$work/node-server"
  rm -rf "$work/node-server/node_modules" "$work/node-server/package-lock.json"
  rm -rf "$work/source" # a copy: npm pack puts licences beside the package for a moment
  mkdir -p "$work/source/bindings"
  cp "$root"/LICENSE-* "$work/source"
  cp -R "$root/bindings/node" "$work/source/bindings/node"
  rm -rf "$work/source/bindings/node/node_modules" "$work/source/bindings/node/build"
  (cd "$work/source/bindings/node" && npm pack --silent --pack-destination "$work" >/dev/null)
  (cd "$work/node-server" && CXXFLAGS=-O0 npm install --silent --no-audit --no-fund "$work"/llamabi-*.tgz)
}

# ---- one service ----

py() { "$work/venv/bin/python" "$here/$1.py" "${@:2}"; }
js() { node "$here/$1.mjs" "${@:2}"; }
demo=$root/demo/meta endless=$root/tests/data/reference/mha-f32/hf

start() { # start COMMAND...: sets pid, log and url
  log=$(mktemp "$jobs/log.XXXXXX")
  "$@" --port 0 >"$log" 2>&1 &
  pid=$!
  pids="${pids:-} $pid"
  trap 'kill -9 $pids 2>/dev/null || true' EXIT
  while kill -0 $pid 2>/dev/null; do
    url=$(sed -n 's/^listening on \(http:.*\)/\1/p' "$log")
    [ -z "$url" ] || return 0
    sleep 0.05
  done
  echo "tests/services/run.sh: $* did not start:" >&2
  cat "$log" >&2
  exit 1
}

ended() { # the process must have been asked to end: it does so with status 0, and without a race
  local status=0
  for _ in $(seq 6000); do
    kill -0 $pid 2>/dev/null || break
    sleep 0.05
  done
  if kill -0 $pid 2>/dev/null; then
    status="none: it still runs"
  else
    wait $pid || status=$?
    pids=${pids% "$pid"}
  fi
  if [ "$status" != 0 ] || grep -q 'DATA RACE' "$log"; then
    echo "tests/services/run.sh: exit status $status; its log:" >&2
    cat "$log" >&2
    exit 1
  fi
}
stopped() {
  kill -TERM $pid
  ended
}

# client py|js NAME COMMAND...: on the demo model, then on one that never stops by itself, which it
# ends
client() {
  start "${@:3}" --ckpt_dir "$demo" --cached-tokens --queue 4
  $1 "$2" "$url"
  stopped
  start "${@:3}" --ckpt_dir "$endless" --queue 4 --max_seq_len 32768
  $1 "$2" "$url" $pid
  ended
}
spelling() { # the tokens of SentencePiece, and those of byte-level BPE
  start "$@" --ckpt_dir "$demo"
  py spelling "$url" each
  stopped
  start "$@" --ckpt_dir "$root/tests/data/gguf/q4_0-llama3.gguf" --max_seq_len 64
  py spelling "$url" part
  stopped
}
constrained() {
  start "$@" --ckpt_dir "$demo" --cached-tokens
  py constrained "$url"
  py schemas "$url"
  js constrained "$url"
  stopped
}
finite() {
  start "$@" --ckpt_dir "$work/overflowing"
  js finite check "$url"
  stopped
}
# The gateway is fetched from PyPI; without it the script says that this is skipped.
scale_out() {
  local status=0
  py manifests "$root/examples/scale-out/k8s" "$work/go-server"
  "$root/examples/scale-out/run.sh" "$work/go-server" "$demo" || status=$?
  ((status == 77)) || return $status
}
tools() { # tools NAME COMMAND...: the three forms at once
  local form all=() each=() logs=()
  for form in hermes mistral llama; do
    start "${@:2}" --ckpt_dir "$work/scripted/$form" --model_name m --max_seq_len 4096
    all+=("$url" $form) each+=($pid) logs+=("$log")
  done
  py tools "${all[@]}"
  for form in 0 2 4; do js tools "${all[form]}"; done
  py alike tools "${all[0]}" "$work/$1-tools.json"
  for form in 0 1 2; do
    pid=${each[form]} log=${logs[form]}
    stopped
  done
}
real_model() { # real_model COMMAND...: the model of `make chat`, where that has been fetched
  local model status=0
  model=$(SETUP=no "$root/scripts/smollm2") || status=$?
  if ((status == 3)); then
    echo "SKIPPED: a real model: there is none"
    return
  fi
  ((status == 0))
  py smollm2 "$model" "$@"
}
asked() { # asked NAME COMMAND...
  start "${@:2}" --ckpt_dir "$demo" --model_name m
  py alike ask "$url" "$work/$1.json"
  stopped
}
under_load() {
  start "$@" --ckpt_dir "$demo" --cached-tokens --queue 128
  "$work/load" --url "$url" --pid $pid --seconds "$seconds"
  stopped
}

check() { # check NAME COMMAND...: all but the load; those first that take long
  local name=$1 one
  shift
  # One thread, since others run at the same time.
  one=("$@" --threads 1)
  # shellcheck disable=SC2254 # ONLY is a pattern
  run() { case "$name service: $1" in ${ONLY:-*}) job "$name service: $1" "${@:2}" ;; esac; }
  run operations py operations "$demo" "$endless" "${one[@]}"
  run hostile py hostile "$demo" "$endless" "${one[@]}"
  run tools tools "$name" "${one[@]}"
  run "real model" real_model "${one[@]}"
  run constrained constrained "${one[@]}"
  run protocol client py protocol "${one[@]}"
  run spelling spelling "${one[@]}"
  run "client of PyPI" client py client "${one[@]}"
  run "client of npm" client js client "${one[@]}"
  run unread py unread "$endless" "${one[@]}"
  run flags py flags "$demo" "${one[@]}"
  run adapters py adapters "$root/tests/data/adapters" "${one[@]}"
  run observe py observe "$demo" "${one[@]}"
  run alike asked "$name" "${one[@]}"
  run finite finite "${one[@]}"
}

job "clients of PyPI" clients_of_pypi
job "clients of npm" clients_of_npm
job "Go service: built" go_service
job "Node service: installed" node_service
together
export OPENAI_FROM=$work/npm
rm -rf "$work/overflowing"
js finite write "$root/demo/hf" "$work/overflowing"
for form in hermes mistral llama; do python3 "$here/scripted.py" $form "$work/scripted/$form"; done

go=("$work/go-server-race") node=(node "$work/node-server/server.mjs")
job "Go service: its own tests" eval 'cd "$root/examples/go-server" && go test .'
job "Node service: its parts" eval 'js calls && js backlog && js sending'
case "Go service: scale-out" in ${ONLY:-*}) job "Go service: scale-out" scale_out ;; esac
check Go "${go[@]}"
check Node "${node[@]}"
together
if [ -z "${ONLY:-}" ]; then
  py alike compare "$work/Go.json" "$work/Node.json"
  py alike compare "$work/Go-tools.json" "$work/Node-tools.json"
  # One after the other, with all threads: it prints how fast they are.
  for name in Go Node; do
    command=("$work/go-server")
    [ $name = Go ] || command=("${node[@]}")
    AT_ONCE=1 job "$name service: load" under_load "${command[@]}"
  done
  together
fi
echo "tests/services/run.sh: everything passed"
