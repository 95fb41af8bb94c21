#!/usr/bin/env bash
# run.sh GO_SERVER CKPT [CHATS]: two replicas of the Go service on this machine behind the gateway
# smg, and what it gains them: how many prompts find their prefix in a replica's cache, and what
# becomes of requests when a replica is killed or told to end.
#
#   (cd examples/go-server && go build -o ../../build/go-server .)
#   examples/scale-out/run.sh build/go-server demo/meta
#
# smg comes from PyPI into build/scale-out. Without it the script says so and ends with status 77.
set -euo pipefail
(($# >= 2)) || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
venv=$here/../../build/scale-out
pin=smg==1.13.0
if ! [ "$(cat "$venv/pin" 2>/dev/null)" = $pin ]; then
  rm -rf "$venv"
  if ! { python3 -m venv "$venv" && "$venv/bin/pip" install --quiet --disable-pip-version-check $pin; }; then
    echo "scale-out: skipped, $pin cannot be installed" >&2
    exit 77
  fi
  echo $pin >"$venv/pin"
fi
SMG=$venv/bin/smg exec python3 "$here/measure.py" "$@"
