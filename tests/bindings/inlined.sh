#!/usr/bin/env bash
# inlined.sh LIBRARY: whether every intrinsic of the CPU's kernels is inlined.
#
# A closure does not have the instruction set of the function that it stands in. Where the compiler
# makes a function of one (it is called twice, or an unrolled loop calls it), or hands it to
# `array::map`, each intrinsic in it becomes a call that passes vectors through memory. No result
# changes, so nothing but the speed tells. Libraries that we link are left alone.
set -euo pipefail
calls=$(objdump -d --no-show-raw-insn "$1" | awk '
  /^[0-9a-f]+ <.*>:$/ { from = substr($2, 2, length($2) - 3) }
  /\tcall +[0-9a-f]+ <.*>$/ { to = substr($NF, 2, length($NF) - 2); edge[from SUBSEP to] }
  END {
    for (e in edge) { split(e, f, SUBSEP); if (f[2] ~ /core_arch.*x86/) calls[f[1]] }
    for (g in calls) if (g ~ /llamabi/) print g
    for (e in edge) { split(e, f, SUBSEP); if (f[1] ~ /llamabi/ && f[2] in calls && f[2] !~ /llamabi/) print f[2] " for " f[1] }
  }' | sort -u | c++filt)
[[ -z $calls ]] || { printf 'these functions call intrinsics that were not inlined:\n%s\n' "$calls" >&2; exit 1; }
echo "inlined: every intrinsic of the kernels"
