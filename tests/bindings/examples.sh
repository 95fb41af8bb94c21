#!/usr/bin/env bash
# examples.sh PREFIX: the README's quickstart and examples/chat.c, built against what is installed
# there: what they print of the demo model, and that a message that has no room changes nothing.
set -euo pipefail
prefix=$(realpath "$1")
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/bindings/lib.sh"
need cc pkg-config
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PKG_CONFIG_PATH=$(echo "$prefix"/lib*/pkgconfig)

fail() { echo "examples: $*" >&2; exit 1; }

build() { # build PROGRAM SOURCE
  cc -std=c99 -Wall -Wextra -Werror "$2" $(pkg-config --cflags --libs llamabi) \
    -Wl,-rpath,"$(pkg-config --variable=libdir llamabi)" -o "$work/$1"
}

fenced c "$root/README.md" >"$work/quickstart.c"
build quickstart "$work/quickstart.c"
said=$(cd "$root" && "$work/quickstart" | tr '\n' '|')
grep -q '^Once upon a time.*[a-z].*|$' <<<"$said" || fail "the README's quickstart said: $said"

build chat "$root/examples/chat.c"
chat() { # chat LINE...: what it prints, without its prompts
  printf '%s\n' "$@" |
    "$work/chat" --ckpt_dir "$root/demo/meta" --max_seq_len 128 --temperature 1.2 --top_p 1 --seed 5 --max_gen_len "${most-16}" |
    sed 's/^\(> \)*//'
}
long=$(printf 'word %.0s' {1..300})
with=$(chat hello '   ' "$long" 'What did you say?' | grep -v '^\[that is [0-9]* tokens, the model has room for 128\]$')
without=$(chat hello 'What did you say?')
alone=$(chat 'What did you say?')
[[ $with == "$without" ]] || fail "a message without room changed the conversation: $with; without it: $without"
[[ $(tail -n 1 <<<"$without") != "$(tail -n 1 <<<"$alone")" ]] || fail "the answers tell nothing: $without; $alone"
[[ $(most=3 chat hello) == *' [--max_gen_len]' ]] || fail "an answer of three tokens: $(most=3 chat hello)"
[[ $(chat hello /reset 'What did you say?') == *"$alone" ]] || fail "/reset forgets nothing: $(chat hello /reset 'What did you say?')"
echo "the README's quickstart and the chat say what they should"
