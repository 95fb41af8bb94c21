#!/bin/sh
# run.sh PREFIX: the Node service, and its playground in headless Chromium. Screenshots:
# build/playground.
set -eu
[ $# -eq 1 ] && [ -e "$1/lib/pkgconfig/llamabi.pc" ] || { echo "usage: run.sh PREFIX, where llamabi is installed" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
CHROMIUM=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { echo "playground: Chromium is missing; run scripts/setup --test" >&2; exit 1; }
command -v npm >/dev/null || { echo "playground: npm is missing; run scripts/setup --test" >&2; exit 1; }
export CHROMIUM PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false npm_config_loglevel=error
unset LD_LIBRARY_PATH

work=$(mktemp -d)
pids=
trap 'for pid in $pids; do kill "$pid" 2>/dev/null || true; done; rm -rf "$work"' EXIT

# Copies at their places, so that nothing is built in the source tree.
mkdir -p "$work/tests" "$work/bindings" "$work/examples"
cp -R "$here" "$work/tests/playground"
cp -R "$root/bindings/node" "$work/bindings/node"
cp -R "$root/examples/node-server" "$work/examples/node-server"
rm -rf "$work"/*/*/node_modules "$work/bindings/node/build"
ln -s "$root/tests/data" "$work/tests/data"
(cd "$work/examples/node-server" && CXXFLAGS=-O0 npm ci --silent)
(cd "$work/tests/playground" && npm ci --silent --ignore-scripts)

serve() { # serve LOG ARGUMENTS...: sets url
  log=$1
  shift
  : >"$log"
  node "$work/examples/node-server/server.mjs" --port 0 "$@" >"$log" 2>&1 &
  pids="$pids $!"
  while kill -0 $! 2>/dev/null; do
    url=$(sed -n 's/^listening on //p' "$log")
    [ -z "$url" ] || return 0
    sleep 0.1
  done
  cat "$log" >&2
  exit 1
}
node "$work/tests/playground/service.mjs" "$work/examples/node-server/server.mjs" "$root/demo/meta"
serve "$work/demo.log" --ckpt_dir "$root/demo/meta" --cached-tokens
demo=$url
serve "$work/endless.log" --ckpt_dir "$root/tests/data/reference/mha-f32/meta" --max_seq_len 4096
endless=$url
serve "$work/far.log" --ckpt_dir "$root/tests/data/reference/mha-f32/meta" --max_seq_len 100000
far=$url
serve "$work/locked.log" --ckpt_dir "$root/demo/meta" --api-key open-sesame
cd "$work/tests/playground"
{ node test.mjs "$demo" "$far" "$root/build/playground" && node decoding.mjs "$demo" "$endless" && node words.mjs "$demo" "$endless" "$url" && node views.mjs "$demo" "$root/build/playground"; } ||
  { cat "$work"/*.log >&2; echo "tests/playground/run.sh: failed, see above" >&2; exit 1; }
echo "tests/playground/run.sh: everything passed; look at $root/build/playground/*.png"
