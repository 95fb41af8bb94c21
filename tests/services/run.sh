#!/bin/bash
# run.sh PREFIX [SECONDS]: the example services, built against the library installed at PREFIX, with
# the official openai clients of PyPI and npm and with LangChain, then under load for SECONDS (5).
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: $0 PREFIX [SECONDS]" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
seconds=${2:-5}
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

# The clients, unmodified, at pinned versions; kept until the pins change.
if ! cmp -s "$here/requirements.txt" "$work/venv/requirements.txt"; then
  rm -rf "$work/venv"
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" "$work/venv/"
fi
if ! cmp -s "$here/package-lock.json" "$work/npm/installed.json"; then
  rm -rf "$work/npm"
  mkdir -p "$work/npm"
  cp "$here/package.json" "$here/package-lock.json" "$work/npm/"
  (cd "$work/npm" && npm ci --silent --no-audit --no-fund --ignore-scripts)
  cp "$here/package-lock.json" "$work/npm/installed.json"
fi
export OPENAI_FROM=$work/npm

(cd "$here/load" && go build -o "$work/load" .)
(cd "$root/examples/go-server" && go test . && go build -o "$work/go-server" . && go build -race -o "$work/go-server-race" .)

pid=
trap '[ -z "$pid" ] || kill -9 $pid 2>/dev/null || true' EXIT

start() { # start COMMAND...: sets pid and url
  : >"$work/log"
  "$@" --port 0 >"$work/log" 2>&1 &
  pid=$!
  for _ in $(seq 200); do
    url=$(sed -n 's/^listening on \(http:.*\)/\1/p' "$work/log")
    [ -z "$url" ] || return 0
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  echo "tests/services/run.sh: $* did not start:" >&2
  cat "$work/log" >&2
  exit 1
}

ended() { # the process must have been asked to end: it does so with status 0, and without a race
  for _ in $(seq 100); do
    kill -0 $pid 2>/dev/null || break
    sleep 0.1
  done
  local status=0
  if kill -0 $pid 2>/dev/null; then
    status="none: it still runs"
  else
    wait $pid || status=$?
    pid=
  fi
  if [ "$status" != 0 ] || grep -q 'DATA RACE' "$work/log"; then
    echo "tests/services/run.sh: exit status $status; its log:" >&2
    cat "$work/log" >&2
    exit 1
  fi
}

check() { # check NAME COMMAND [COMMAND under load]
  echo "== $1"
  local demo="--ckpt_dir $root/demo/meta --cached-tokens" endless="--ckpt_dir $root/tests/data/reference/mha-f32/hf"
  for client in "$work/venv/bin/python $here/client.py" "node $here/client.mjs" "$work/venv/bin/python $here/protocol.py"; do
    start $2 $demo --queue 4
    $client "$url"
    kill -TERM $pid
    ended
    start $2 $endless --queue 4 --max_seq_len 4096
    $client "$url" $pid
    ended
  done
  rm -rf "$work/overflowing"
  node "$here/finite.mjs" write "$root/demo/hf" "$work/overflowing"
  start $2 --ckpt_dir "$work/overflowing"
  node "$here/finite.mjs" check "$url"
  kill -TERM $pid
  ended
  for form in hermes mistral llama; do
    python3 "$here/scripted.py" $form "$work/scripted/$form"
    start $2 --ckpt_dir "$work/scripted/$form" --model_name m --max_seq_len 4096
    "$work/venv/bin/python" "$here/tools.py" "$url" $form
    node "$here/tools.mjs" "$url"
    [ $form != hermes ] || "$work/venv/bin/python" "$here/alike.py" tools "$url" "$work/${1%% *}-tools.json"
    kill -TERM $pid
    ended
  done
  "$work/venv/bin/python" "$here/flags.py" "$root/demo/meta" $2
  "$work/venv/bin/python" "$here/observe.py" "$root/demo/meta" $2
  "$work/venv/bin/python" "$here/operations.py" "$root/demo/meta" "$root/tests/data/reference/mha-f32/hf" $2
  "$work/venv/bin/python" "$here/unread.py" "$root/tests/data/reference/mha-f32/hf" $2
  "$work/venv/bin/python" "$here/hostile.py" "$root/demo/meta" "$root/tests/data/reference/mha-f32/hf" $2
  start $2 --ckpt_dir "$root/demo/meta" --model_name m
  "$work/venv/bin/python" "$here/alike.py" ask "$url" "$work/${1%% *}.json"
  kill -TERM $pid
  ended
  start ${3:-$2} $demo --queue 128
  "$work/load" --url "$url" --pid $pid --seconds "$seconds"
  kill -TERM $pid
  ended
}

check "Go service" "$work/go-server-race" "$work/go-server"
if [ -d "$root/examples/node-server" ]; then
  node "$here/calls.mjs"
  # As its README says, but in a folder of its own: npm packs the binding and builds it against the
  # installed library.
  rm -rf "$work/node-server" "$work"/llamabi-*.tgz
  cp -R "$root/examples/node-server" "$work/node-server"
  rm -rf "$work/node-server/node_modules" "$work/node-server/package-lock.json"
  (cd "$root/bindings/node" && npm pack --silent --pack-destination "$work" >/dev/null)
  (cd "$work/node-server" && npm install --silent --no-audit --no-fund "$work"/llamabi-*.tgz)
  check "Node service" "node $work/node-server/server.mjs"
  "$work/venv/bin/python" "$here/alike.py" compare "$work/Go.json" "$work/Node.json"
  "$work/venv/bin/python" "$here/alike.py" compare "$work/Go-tools.json" "$work/Node-tools.json"
else
  echo "tests/services/run.sh: there is no examples/node-server, its part is skipped"
fi
echo "tests/services/run.sh: everything passed"
