#!/usr/bin/env bash
# Installs the library once into a temporary prefix, and runs every binding, the services and the
# packaging tests against it, never against the build tree.
#
#   tests/bindings/run.sh [SECTION...]     services cpp packaging node playground mpi go examples;
#                                          all of them without one
#
# As many sections as there are processors run side by side; each one's output comes when it ends,
# as one block.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
. tests/bindings/lib.sh
# Those that take long come first.
(($# > 0)) || set -- services cpp packaging node playground mpi go examples
scripts=()
work=$(mktemp -d)
trap 'kill $(jobs -pr) 2>/dev/null || true; rm -rf "$work"' EXIT
scripts/install --prefix "$work/prefix" >/dev/null

# section NAME SCRIPT PREFIX: its output, its closing line, and a file where it went well
section() {
  local begin=$SECONDS status=0
  "$2" "$3" >"$work/$1.log" 2>&1 || status=$?
  exec 9>>"$work/lock"
  flock 9
  cat "$work/$1.log"
  if ((status > 0)); then
    echo "== $1: FAILED (${2#"$root"/})"
    return
  fi
  echo "== $1: passed (${2#"$root"/}, $((SECONDS - begin)) s)"
  touch "$work/$1.passed"
}

for name in "$@"; do
  case $name in
    services | playground | mpi) script=$root/tests/$name/run.sh ;;
    packaging | examples) script=$root/tests/bindings/$name.sh ;;
    *) script=$root/bindings/$name/test.sh ;;
  esac
  [[ -x $script ]] || { echo "run.sh: there is no section $name ($script)" >&2; exit 2; }
  scripts+=("$script")
done
for ((i = 1; i <= $#; i++)); do
  name=${!i}
  while (($(jobs -pr | wc -l) >= $(nproc))); do wait -n || true; done
  prefix=$work/prefix
  if [[ $name == packaging ]]; then # one of its own: it is moved away for a while
    prefix=$work/packaging
    scripts/install --prefix "$prefix" >/dev/null
  fi
  echo "== $name: begins"
  section "$name" "${scripts[i - 1]}" "$prefix" &
done
wait

# What failed, with the end of what it said, because a reader sees the end of a long output first;
# and whether each binding's tests ran every behaviour that bindings/behaviours.txt names.
failed=()
for name in "$@"; do
  if [[ ! -e $work/$name.passed ]]; then
    failed+=("$name")
    echo "== $name: FAILED; the last lines of what it said:"
    tail -n 20 "$work/$name.log"
    continue
  fi
  [[ -e bindings/$name/test.sh ]] || continue
  for behaviour in $(cut -d: -f1 bindings/behaviours.txt); do
    grep -qx "behaviour $behaviour ok" "$work/$name.log" ||
      { echo "== $name: FAILED: its tests did not say \"behaviour $behaviour ok\""; failed+=("$name: $behaviour"); }
  done
done
if ((${#failed[@]} > 0)); then
  printf '== bindings: FAILED: %s\n' "$(printf '%s; ' "${failed[@]}")"
  exit 1
fi
echo "== bindings: all passed ($*)"
