#!/bin/sh
# test.sh PREFIX: the package, built and used as a user does it, against the library installed at
# PREFIX.
set -eu
[ $# -eq 1 ] && [ -e "$1/lib/pkgconfig/llamabi.pc" ] || { echo "usage: test.sh PREFIX, where llamabi is installed" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
LLAMABI_SOURCE=$(cd "$here/../.." && pwd)
export LLAMABI_SOURCE PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false npm_config_loglevel=error
unset LD_LIBRARY_PATH NODE_PATH NODE_OPTIONS
export CXXFLAGS=-O0 # the addon is built four times
say() { echo "node: $*"; }
for tool in node npm c++ pkg-config; do
  command -v $tool >/dev/null || { echo "node: $tool is missing; run scripts/setup --test" >&2; exit 1; }
done

work=$(mktemp -d)
building=
trap '[ -z "$building" ] || kill "$building" 2>/dev/null; rm -rf "$work"' EXIT

# The developer's way: the locked dependencies, types.
mkdir "$work/package" "$work/app"
(cd "$here" && cp -R package.json package-lock.json build.js index.* src test "$work/package")
cd "$work/package"
npm ci --ignore-scripts
say "npm ci ok"

# The user's way: what the README says, to the letter, but for the library's own installation.
block() { sed -n "/^\`\`\`$2\$/,/^\`\`\`\$/p" "$LLAMABI_SOURCE/$1" | sed '/^```/d'; }
cd "$work/app"
npm init -y >/dev/null
mkdir -p llamabi/bindings # a copy: npm pack puts licences beside the package for a moment
cp "$LLAMABI_SOURCE"/LICENSE-* llamabi
ln -s "$LLAMABI_SOURCE/demo" llamabi/demo
cp -R "$here" llamabi/bindings/node
rm -rf llamabi/bindings/node/node_modules llamabi/bindings/node/build
block bindings/node/README.md sh | grep -v -e '^make ' -e '^export ' >readme.sh
block bindings/node/README.md js >story.mjs
sh -eu readme.sh >readme.out
[ "$(wc -w <readme.out)" -gt 50 ]
say "README.md's commands and program ran: $(grep -o 'there was .*' readme.out | head -c 60)..."
rm -rf llamabi
cp -R "$here/test" .

# The same once more, with the addon under AddressSanitizer and UBSan: for later, built beside what
# follows.
sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
cp -R "$work/app" "$work/sanitized"
(cd "$work/sanitized" && exec env CXXFLAGS="-O0 $sanitize -g -fno-omit-frame-pointer" LDFLAGS="$sanitize" node node_modules/llamabi/build.js) &
building=$!

# Without Node's types, with the DOM's, and with Node's.
tsc=$work/package/node_modules/typescript/bin/tsc
node "$tsc" -p test/tsconfig.bare.json
node "$tsc" -p test/tsconfig.bare.json --lib es2022,dom
mkdir -p node_modules/@types
cp -R "$work/package/node_modules/@types/node" node_modules/@types
cp -R "$work/package/node_modules/undici-types" node_modules
node "$tsc" -p test/tsconfig.json
node "$tsc" -p test/tsconfig.bare.json --types node
# The files side by side, where Node can: 20.10 and later.
concurrency=$(node --test-concurrency=2 -e 0 2>/dev/null && echo --test-concurrency=2) || concurrency=
say "types ok, with and without @types/node ($(node "$tsc" --version))"

node --test $concurrency --test-reporter=tap test/*.test.js >"$work/tap" || { cat "$work/tap" >&2; echo "node: tests failed, see above" >&2; exit 1; }
cut -d: -f1 "$LLAMABI_SOURCE/bindings/behaviours.txt" | while read -r name; do
  grep -q "^ *ok [0-9]* - behaviour $name\$" "$work/tap" || { echo "node: no test of behaviour $name" >&2; exit 1; }
  echo "behaviour $name ok"
done
sed -n -e 's/^ *ok [0-9]* - \(behaviour.*\)$//' -e 's/^ *ok [0-9]* - /node: ok: /p' -e 's/^# \(no leak.*\)/node: \1/p' "$work/tap" | grep -v '^$' | grep -v '\.js$'

# The documentation's program, as it stands there.
block docs/node.md js >docs.mjs
node docs.mjs "$LLAMABI_SOURCE/demo/meta" >docs.out 2>&1 || { cat docs.out >&2; exit 1; }
for expected in 'tokens from the prefix cache' 'cancelled after' 'LLAMA_E_INVALID_ARGUMENT'; do
  grep -q "$expected" docs.out || { echo "node: no '$expected' in what docs/node.md's program prints:" >&2; cat docs.out >&2; exit 1; }
done
say "docs/node.md's program ran"

# The fragments of pages, one after another, with what they take for granted.
for page in decoding grammars compression; do
  {
    cat <<'EOF'
import { Model } from 'llamabi';
const model = await Model.open(process.argv[2], { draftDir: process.argv[2] });
const prompt = 'Once upon a time', file = 'Once upon a time there was a little girl.';
const first = 'The bridge was built in 1932.', second = 'It rains.', dot = model.encode('.').at(-1);
{
EOF
    block docs/$page.md js
    echo '}'
    echo 'await model.close();'
  } >page.mjs
  [ "$(wc -l <page.mjs)" -gt 7 ] && node page.mjs "$LLAMABI_SOURCE/demo/meta" >page.out 2>&1 ||
    { cat page.out >&2; echo "node: the fragments of docs/$page.md do not run" >&2; exit 1; }
done
say "the fragments of docs/decoding.md, grammars.md and compression.md ran"

# The same tests with the addon under AddressSanitizer and UBSan, and with a leak check at exit.
wait "$building"
building=
cd "$work/sanitized"
asan=$(c++ -print-file-name=libasan.so) ubsan=$(c++ -print-file-name=libubsan.so) stdcxx=$(c++ -print-file-name=libstdc++.so.6)
nm -D node_modules/llamabi/build/llamabi.node | grep __asan_init >/dev/null

files=$(printf 'test/%s.test.js ' results endings errors models reference lifecycle)
LD_PRELOAD="$asan $ubsan $stdcxx" ASAN_OPTIONS=detect_leaks=0 node --test $concurrency --test-reporter=tap $files >"$work/tap" ||
  { cat "$work/tap" >&2; echo "node: tests failed under AddressSanitizer, see above" >&2; exit 1; }
# What Node itself keeps of an object that lives when the process ends.
echo leak:napi_create_external >"$work/suppressions"
LSAN_OPTIONS="suppressions=$work/suppressions:print_suppressions=0" \
  LD_PRELOAD="$asan $ubsan $stdcxx" ASAN_OPTIONS=detect_leaks=1 node --expose-gc test/leaks.js
say "AddressSanitizer, UBSan and the leak check found nothing"
echo "bindings/node/test.sh: everything passed"
