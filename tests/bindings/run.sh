#!/usr/bin/env bash
# Installs the library once into a temporary prefix, and runs every binding, the services and the
# packaging tests against it, never against the build tree.
#
#   tests/bindings/run.sh [SECTION...]     cpp go node services playground packaging; all of them
#                                          without one
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
. tests/bindings/lib.sh
(($# > 0)) || set -- cpp go node services playground packaging
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
scripts/install --prefix "$work/prefix" >/dev/null

# section NAME SCRIPT: its output, its closing line, and whether it went well.
ran=() failed=()
section() {
  ran+=("$1")
  local start=$SECONDS
  if "$2" "$work/prefix" 2>&1 | tee "$work/log"; then
    echo "== $1: passed (${2#"$root"/}, $((SECONDS - start)) s)"
  else
    echo "== $1: FAILED (${2#"$root"/})"
    failed+=("$1")
  fi
}

# binding NAME: its tests, and whether they ran every behaviour that bindings/behaviours.txt names.
binding() {
  section "$1" "$root/bindings/$1/test.sh"
  local name
  for name in $(cut -d: -f1 bindings/behaviours.txt); do
    grep -qx "behaviour $name ok" "$work/log" ||
      { echo "== $1: FAILED: its tests did not say \"behaviour $name ok\""; failed+=("$1: $name"); }
  done
}

for name in "$@"; do
  case $name in
    services | playground) script=tests/$name/run.sh ;;
    packaging) script=tests/bindings/packaging.sh ;;
    *) script=bindings/$name/test.sh ;;
  esac
  [[ -x $script ]] || { echo "run.sh: there is no section $name ($script)" >&2; exit 2; }
  case $name in
    packaging | services | playground) section "$name" "$root/$script" ;;
    *) binding "$name" ;;
  esac
done
if ((${#failed[@]} > 0)); then
  printf '== bindings: FAILED: %s\n' "$(printf '%s; ' "${failed[@]}")"
  exit 1
fi
echo "== bindings: all passed (${ran[*]})"
