#!/bin/sh
# test.sh PREFIX: the Go binding, its documentation and the Go service against the library installed
# at PREFIX.
set -eu
[ $# = 1 ] || { echo "usage: $0 PREFIX" >&2; exit 2; }
prefix=$(cd "$1" && pwd)
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
command -v go >/dev/null || { echo "test.sh: Go 1.24 or later is missing: https://go.dev/dl" >&2; exit 1; }
command -v pkg-config >/dev/null || { echo "test.sh: pkg-config is missing: apt-get install pkg-config" >&2; exit 1; }

work=$root/build/go
rm -rf "$work"
mkdir -p "$work/page"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
export GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=1
unset CGO_LDFLAGS CGO_CFLAGS # nothing but the .pc file says where the library is
# Go's build cache does not notice another prefix, nor another llamabi.h in it; a flag it does.
export CGO_CPPFLAGS="-DLLAMABI_INSTALLED=$(echo "$prefix" | cat - "$prefix/include/llamabi.h" | cksum | tr -d ' ')"

found=$(pkg-config --variable=libdir llamabi)
[ "$(cd "$found" && pwd -P)" = "$(cd "$prefix/lib" && pwd -P)" ] || { echo "test.sh: pkg-config finds llamabi in $found" >&2; exit 1; }

echo "== vet and format"
for module in . "$root/examples/go-server" "$root/tests/services/load"; do
  (cd "$module" && go vet ./...)
  unformatted=$(gofmt -l "$module")
  [ -z "$unformatted" ] || { echo "test.sh: gofmt these: $unformatted" >&2; exit 1; }
done

echo "== tests and examples, with the race detector, which has the compiler check pointers too"
status=0
go test -count=1 -race -v . >"$work/test.log" 2>&1 || status=$?
grep -E '^behaviour |^( *)--- (FAIL|SKIP)|^(FAIL|ok|panic)|WARNING: DATA RACE' "$work/test.log" || true
[ $status = 0 ] || { cat "$work/test.log"; exit 1; }
sed 's/:.*//' ../behaviours.txt | while read -r name; do
  grep -qx "behaviour $name ok" "$work/test.log" || { echo "test.sh: behaviour $name was not shown; see $work/test.log" >&2; exit 1; }
done

# Twice more, for what only some schedules show; and as programs are built, with every pointer
# checked that goes to C.
go test -count=2 -race -run 'Close|Abandon|Callers|Cancel|Progress|Cleanup' .
GOEXPERIMENT=cgocheck2 go test -count=1 .

echo "== the Go service's own tests"
(cd "$root/examples/go-server" && go test -count=1 -race .)

echo "== the program of docs/go.md"
sed -n '/^```go$/,/^```$/p' "$root/docs/go.md" | sed '1d;$d' >"$work/page/main.go"
cd "$work/page"
go mod init page 2>/dev/null
go mod edit -require=llamabi@v0.0.0 -replace=llamabi="$root/bindings/go"
go vet .
if go run . 2>"$work/page.usage"; then echo "test.sh: docs/go.md runs without an argument" >&2; exit 1; fi
grep -q 'usage: ' "$work/page.usage" || { cat "$work/page.usage" >&2; exit 1; }
go run . "$root/demo/meta" | sed 's/ *$//' >"$work/page.out"
cat >"$work/page.expected" <<'EOF'
The sky is blue.
(stop, 8 tokens)
same seed, same story: true
" there" has probability 0.54, of 2 listed
" was" has probability 1.00, of 2 listed
" a" has probability 0.93, of 2 listed
stopped after true cancelled
prompt 0 has 1000 tokens, max_seq_len is 512
EOF
diff "$work/page.expected" "$work/page.out"

echo "== the fragments of docs/decoding.md compile"
{
  printf 'package main\n\nimport ("context"; "fmt"; "time"; "llamabi")\n\nfunc main() { fmt.Println(time.Second) }\n'
  awk '/^```go$/ {
      inside = 1; used = ""
      print "func _(ctx context.Context, model *llamabi.Model, prompts []string, dir string, dot int32) error {"; next
    }
    /^```$/ && inside { inside = 0; print used "\treturn nil\n}"; next }
    inside { print }
    inside && /^[a-z]+(, [a-z]+)* := / { # what a fragment has found out is for its reader to use
      n = split(substr($0, 1, index($0, " := ") - 1), names, ", ")
      for (i = 1; i <= n; i++) used = used "\t_ = " names[i] "\n"
    }' "$root/docs/decoding.md"
} >main.go
[ "$(grep -c '^func _' main.go)" -ge 9 ] || { echo "test.sh: where are the fragments?" >&2; exit 1; }
go vet .

echo "bindings/go/test.sh: everything passed"
