#!/usr/bin/env bash
# packaging.sh PREFIX: what `make install` and `make deb` put somewhere, used from there: the pages'
# programs and commands, to the letter, through pkg-config and CMake, shared and static; again after
# the tree was moved; and from the unpacked Debian packages. And what `make dist` packs, but of the
# library that is here: each in an empty directory, with nothing of llamabi installed.
set -euo pipefail
prefix=$(realpath "$1")
root=$(cd "$(dirname "$0")/../.." && pwd)
release=$(realpath "${CARGO_TARGET_DIR:-$root/target}/release")
. "$root/tests/bindings/lib.sh"
need cc c++ cmake make pkg-config readelf objdump dpkg-deb rustc node npm go python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH CMAKE_PREFIX_PATH CPATH LIBRARY_PATH
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n1)

fail() { echo "packaging: $*" >&2; exit 1; }

# uses_library FILE LIBRARY: which one the program loads ("": none).
uses_library() {
  local used
  used=$(ldd "$1" | sed -n 's/.*libllamabi[^ ]* => \([^ ]*\).*/\1/p')
  [[ $(realpath -m "${used:-/}") == "$(realpath -m "${2:-/}")" ]] || fail "$1 loads ${used:-no libllamabi}, not ${2:-none}"
}

# page FILE LANGUAGE SOURCE: the program of a page and its commands, which run in a fresh directory.
page() {
  rm -rf "$work/page" && mkdir "$work/page"
  ln -s "$root/demo" "$work/page/demo"
  fenced "$2" "$root/$1" >"$work/page/$3"
  local block n
  for ((n = 1; ; n++)); do
    block=$(fenced sh "$root/$1" $n 2>/dev/null) || break
    (cd "$work/page" && bash -euo pipefail -c "$block") >"$work/said" 2>"$work/complaints" ||
      fail "$1: $block: $(cat "$work/said" "$work/complaints")"
    [[ ! -s $work/complaints ]] || fail "$1: $block: $(cat "$work/complaints")"
  done
  ((n > 1)) || fail "$1 has no commands"
}

# consumers PREFIX LIBDIR HOW: everything that can be built against the tree there.
consumers() {
  local prefix=$1 libdir=$1/$2
  export PKG_CONFIG_PATH=$libdir/pkgconfig CMAKE_PREFIX_PATH=$prefix
  [[ $(pkg-config --modversion llamabi) == "$version" ]] || fail "llamabi.pc has another version"

  page docs/c.md c hello.c
  grep -q '^Once upon a time .*[a-z]' "$work/said" || fail "hello.c said: $(cat "$work/said")"
  uses_library "$work/page/hello" "$libdir/libllamabi.so.0"
  uses_library "$work/page/hello-static" ''
  cmp <("$work/page/hello" "$root/demo/meta") <("$work/page/hello-static" "$root/demo/meta") || fail "hello-static differs"

  page docs/cpp.md cpp hello.cc
  grep -q '^refused: .*top_p' "$work/said" || fail "hello.cc said: $(cat "$work/said")"
  uses_library "$work/page/hello" "$libdir/libllamabi.so.0"

  # The README's story, by pkg-config and by CMake, whose list of targets has the static one too.
  rm -rf "$work/story" && mkdir "$work/story"
  ln -s "$root/demo" "$work/story/demo"
  fenced cpp "$root/bindings/cpp/README.md" >"$work/story/story.cc"
  fenced cmake "$root/bindings/cpp/README.md" >"$work/story/CMakeLists.txt"
  local n
  for n in 2 3; do
    (cd "$work/story" && bash -euo pipefail -c "$(fenced sh "$root/bindings/cpp/README.md" $n)") >"$work/said" 2>&1 ||
      fail "bindings/cpp/README.md: $(cat "$work/said")"
  done
  uses_library "$work/story/story" "$libdir/libllamabi.so.0"
  uses_library "$work/story/out/story" "$libdir/libllamabi.so.0"

  mkdir "$work/story/c"
  fenced c "$root/docs/c.md" >"$work/story/c/hello.c"
  cat >"$work/story/c/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.16)
project(consumers C)
find_package(llamabi 0.1.0 REQUIRED)
foreach(target IN ITEMS llamabi static)
  add_executable(hello-${target} hello.c)
  target_link_libraries(hello-${target} PRIVATE llamabi::${target})
endforeach()
find_package(llamabi 0.2 QUIET)
if(llamabi_FOUND)
  message(FATAL_ERROR "0.2 was asked for and found")
endif()
CMAKE
  (cd "$work/story/c" && cmake -B out && cmake --build out) >"$work/said" 2>&1 || fail "CMake: $(cat "$work/said")"
  uses_library "$work/story/c/out/hello-llamabi" "$libdir/libllamabi.so.0"
  uses_library "$work/story/c/out/hello-static" ''
  # (grep -q would leave at the first hit, and a program that writes on dies of SIGPIPE.)
  for target in llamabi static; do
    "$work/story/c/out/hello-$target" "$root/demo/meta" | grep '^Once upon a time .*[a-z]' >/dev/null || fail "hello-$target is silent"
  done
  echo "packaging: C and C++ by pkg-config and CMake, shared and static: $3"
}

# ---- whether this processor computes as it must ----
said=$(LLAMABI_CPU_TIER=portable "$prefix/bin/llamabi-info" --self-test) || fail "llamabi-info --self-test: $said"
[[ $said =~ ^'portable: '[0-9]+' checks passed in ' ]] || fail "llamabi-info --self-test says: $said"
! LLAMABI_CPU_TIER=sse "$prefix/bin/llamabi-info" --self-test >/dev/null 2>&1 || fail "llamabi-info --self-test of no tier passes"
echo "packaging: $said"

# ---- what is there ----
(cd "$prefix" && find . ! -type d | LC_ALL=C sort) >"$work/list"
cat >"$work/expected" <<END
./bin/llamabi-info
./bin/llamabi-quantize
./include/llamabi.h
./include/llamabi.hpp
./include/llamabi/arguments.hpp
./include/llamabi/call.hpp
./include/llamabi/callbacks.hpp
./include/llamabi/cancel.hpp
./include/llamabi/error.hpp
./include/llamabi/grammar.hpp
./include/llamabi/model.hpp
./include/llamabi/options.hpp
./include/llamabi/stream.hpp
./include/llamabi/values.hpp
./include/llamabi_mpi.h
./lib/cmake/llamabi/llamabiConfig.cmake
./lib/cmake/llamabi/llamabiConfigVersion.cmake
./lib/libllamabi.a
./lib/libllamabi.so
./lib/libllamabi.so.0
./lib/libllamabi.so.$version
./lib/pkgconfig/llamabi.pc
./share/doc/llamabi/CHANGELOG.md
./share/doc/llamabi/LICENSE-APACHE
./share/doc/llamabi/LICENSE-MIT
./share/doc/llamabi/THIRD-PARTY.md
END
diff "$work/expected" "$work/list" || fail "installed (right) is not what is expected (left)"
for file in lib/pkgconfig/llamabi.pc lib/cmake/llamabi/llamabiConfig.cmake; do
  ! grep -nF -e "$prefix" -e "$root" -e @ "$prefix/$file" || fail "$file is not relocatable"
done
so=$prefix/lib/libllamabi.so.$version
[[ -z $(readelf -S --wide "$so" | grep -F .debug_) ]] || fail "the installed library has debug information"
"$root/tests/bindings/inlined.sh" "$release/libllamabi.so" || fail "an intrinsic is called"
diff "$root/tests/symbols.txt" <(nm -D --defined-only "$so" | cut -d' ' -f3 | sort) || fail "stripping changed the symbols"

# rustc says what the static library needs; a crate that is nothing but llamabi needs just that.
says=$(echo 'extern crate llamabi;' | rustc --edition 2024 --crate-name all --crate-type staticlib \
  --print native-static-libs -L "dependency=$release/deps" --extern "llamabi=$release/libllamabi.rlib" \
  --out-dir "$work" - 2>&1 | sed -n 's/^note: native-static-libs: //p')
[[ "Libs.private: $says" == "$(grep '^Libs.private' "$prefix/lib/pkgconfig/llamabi.pc")" ]] ||
  fail "llamabi.pc does not say what rustc says: $says"
rm -f "$work/liball.a"
echo "packaging: $(wc -l <"$work/list") files, $(stat -c %s "$so") bytes of library, Libs.private as rustc says"

# ---- used, moved and used, uninstalled ----
consumers "$prefix" lib "from the prefix"
cp -a "$prefix" "$work/moved"
mkdir "$work/elsewhere" && mv "$work/moved" "$work/elsewhere/with space"
PKG_CONFIG_PATH="$work/elsewhere/with space/lib/pkgconfig" pkg-config --exists llamabi || fail "a space in the path"
mv "$work/elsewhere/with space" "$work/elsewhere/tree"
mv "$prefix" "$prefix.hidden" # nothing may still point there
trap 'mv "$prefix.hidden" "$prefix"; rm -rf "$work"' EXIT
consumers "$work/elsewhere/tree" lib "after moving the tree"
mv "$prefix.hidden" "$prefix"
trap 'rm -rf "$work"' EXIT
"$root/scripts/install" --uninstall --prefix "$work/elsewhere/tree" >/dev/null
left=$(find "$work/elsewhere/tree" ! -type d -o -name llamabi)
[[ -z $left ]] || fail "uninstall left $left"

# ---- the loader's cache: refreshed where its list has the directory, however long the list is ----
mkdir "$work/stub"
cat >"$work/stub/ldconfig" <<'END'
#!/bin/sh
[ $# -gt 0 ] || exec touch "$RAN"
echo "$LISTED: (from /etc/ld.so.conf.d/libc.conf:2)"
seq 100000
END
chmod +x "$work/stub/ldconfig"
as_root=()
((EUID == 0)) || as_root=(unshare --map-root-user)
if "${as_root[@]}" true 2>/dev/null; then
  refreshed() { # refreshed DIRECTORY: whether the cache is, where the loader's list has this one
    rm -f "$work/ran"
    PATH=$work/stub:$PATH RAN=$work/ran LISTED=$1 "${as_root[@]}" \
      "$root/scripts/install" --prefix "$work/a.b" --shared >/dev/null || fail "install, as root"
    [[ -e $work/ran ]]
  }
  refreshed "$work/a.b/lib" || fail "install does not run ldconfig"
  ! refreshed "$work/a-b/lib" || fail "install runs ldconfig for another directory"
  echo "packaging: ldconfig runs where the loader looks"
else
  echo "packaging: SKIPPED: whether install runs ldconfig, which needs root or unshare"
fi

# ---- a checkout whose path has a space ----
tree="$work/with space"
mkdir -p "$tree/target/release"
for file in "$root"/*; do [[ ${file##*/} == @(target|build) ]] || ln -s "$file" "$tree/"; done
ln -s "$release"/{libllamabi.so{,.0},libllamabi.a,llamabi-info,llamabi-quantize} "$tree/target/release/"
env -u CARGO_TARGET_DIR -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make --no-print-directory -C "$tree" -o build examples >"$work/said" 2>&1 || fail "make examples: $(cat "$work/said")"
for program in generate chat worker; do
  ldd "$tree/build/$program" | grep -F "=> $tree/target/release/libllamabi.so.0 (" >"$work/said" || fail "build/$program loads: $(ldd "$tree/build/$program")"
done
touch -d 2000-01-01 "$tree/older.rs" && touch "$tree/newer.rs"
printf '%s:' "$tree/target/release/libllamabi.so" | sed 's/ /\\ /g' >"$tree/target/release/libllamabi.d"
printf '%s\n' "$tree/older.rs" "$tree/newer.rs" | sed 's/ /\\ /g; s/^/ /' | tr -d '\n' >>"$tree/target/release/libllamabi.d"
! env -u CARGO_TARGET_DIR -u MAKEFLAGS -u MAKELEVEL -u MFLAGS "$tree/scripts/install" --prefix "$work/never" >"$work/said" 2>&1 || fail "a stale library is installed, from a path with a space"
grep -qF "install: $tree/newer.rs is newer than" "$work/said" || fail "of a stale library install says: $(cat "$work/said")"
echo "packaging: a checkout whose path has a space"

# ---- Debian packages ----
# How small a package gets is not tested, and xz took 50 s of the processor's time.
export DPKG_DEB_COMPRESSOR_TYPE=gzip DPKG_DEB_COMPRESSOR_LEVEL=1
"$root/scripts/deb" "$work/debs" >/dev/null
multiarch=$(cc -print-multiarch)
for deb in "$work"/debs/libllamabi0_*.deb "$work"/debs/libllamabi-dev_*.deb; do
  [[ $(dpkg-deb -f "$deb" Version) == "$version"-* ]] || fail "$deb has version $(dpkg-deb -f "$deb" Version)"
  dpkg-deb -x "$deb" "$work/root"
  (cd "$work/root" && dpkg-deb -e "$deb" "$work/control" && md5sum --quiet -c "$work/control/md5sums")
done
consumers "$work/root/usr" "lib/$multiarch" "from the Debian packages"

# ---- a release: what is there of the same one is replaced, and nothing else ----
mkdir "$work/dist"
echo stale | tee "$work/dist/llamabi-$version.tgz" >"$work/dist/SHA256SUMS"
for name in letter .hidden llamabi-0.0.1.tgz; do
  touch "$work/dist/$name"
  ! "$root/scripts/dist" "$work/dist" >"$work/said" 2>&1 || fail "scripts/dist writes over $name"
  grep -qF " has $name, which is not of this release" "$work/said" || fail "scripts/dist says: $(cat "$work/said")"
  [[ -e $work/dist/$name && -s $work/dist/SHA256SUMS ]] || fail "scripts/dist has removed something"
  rm "$work/dist/$name"
done
"$root/scripts/dist" "$work/dist" >"$work/said" 2>&1 || fail "scripts/dist: $(cat "$work/said")"
(cd "$work/dist" && sha256sum --quiet -c SHA256SUMS && [[ $(wc -l <SHA256SUMS) == $(($(ls | wc -l) - 1)) ]]) || fail "SHA256SUMS"
unset PKG_CONFIG_PATH CMAKE_PREFIX_PATH
release_name=llamabi-$version-linux-x86_64
empty() { rm -rf "$work/empty" && mkdir "$work/empty" && cd "$work/empty"; }
said_a_story() { grep -q '^Once upon a time .*[a-z]' "$work/said" || fail "$1 said: $(cat "$work/said")"; }

(
  empty
  tar -xf "$work/dist/$release_name.tar.gz"
  [[ -z $(find . -name '*.a') && -e $release_name/bindings/go/go.mod && -e $release_name/bindings/node/build.js ]] || fail "the tarball has: $(find .)"
  export PKG_CONFIG_PATH=$PWD/$release_name/lib/pkgconfig CMAKE_PREFIX_PATH=$PWD/$release_name
  fenced c "$root/docs/c.md" >hello.c
  # shellcheck disable=SC2046
  cc hello.c $(pkg-config --cflags --libs llamabi) -Wl,-rpath,"$PWD/$release_name/lib" -o hello
  uses_library "$PWD/hello" "$PWD/$release_name/lib/libllamabi.so.0"
  ./hello "$root/demo/meta" >"$work/said"
  said_a_story "the tarball's library"
  printf '%s\n' 'cmake_minimum_required(VERSION 3.16)' 'project(shared C)' 'find_package(llamabi REQUIRED)' \
    'add_executable(hello hello.c)' 'target_link_libraries(hello PRIVATE llamabi::llamabi)' >CMakeLists.txt
  (cmake -B out && cmake --build out) >"$work/said" 2>&1 || fail "CMake, of the tarball: $(cat "$work/said")"
)
(
  # No compiler, no pkg-config, no network: the PATH has Node alone.
  empty
  mkdir bin && ln -s "$(node -p process.execPath)" bin/node && ln -s "$(realpath "$(command -v npm)")" bin/npm
  user=(env -i PATH="$PWD/bin" HOME="$PWD" npm_config_offline=true npm_config_update_notifier=false npm_config_audit=false)
  mkdir app && cd app
  "${user[@]}" npm init -y >/dev/null
  "${user[@]}" npm install "$work/dist/llamabi-$version.tgz" >"$work/said" 2>&1 || fail "npm install: $(cat "$work/said")"
  cat >story.mjs <<'JS'
import { readFileSync } from 'node:fs';
import { Model } from 'llamabi';
const model = await Model.open(process.argv[2]);
const result = await model.textCompletion('Once upon a time', { temperature: 0, maxGenLen: 30 });
console.log('Once upon a time ' + result.text);
console.log(readFileSync('/proc/self/maps', 'utf8').match(/\S*libllamabi\.so\S*/)[0]);
await model.close();
JS
  "${user[@]}" node story.mjs "$root/demo/meta" >"$work/said" 2>&1 || fail "the npm package: $(cat "$work/said")"
  said_a_story "the npm package"
  grep -qx "$(realpath node_modules/llamabi)/build/libllamabi.so.0" "$work/said" || fail "the npm package loads $(tail -n1 "$work/said")"
)
(
  # No pkg-config, and nothing in the environment says where the library is.
  empty
  tar -xf "$work/dist/llamabi-go-$version-linux-x86_64.tar.gz" && mv llamabi-go-* llamabi-go
  fenced go "$root/docs/go.md" >main.go
  export PKG_CONFIG=/nowhere GOFLAGS=-buildvcs=false GOWORK=off
  { go mod init page && bash -euc "$(fenced sh llamabi-go/README.md)" && go build -o page; } >"$work/said" 2>&1 || fail "the Go module: $(cat "$work/said")"
  ./page "$root/demo/meta" >"$work/said" || fail "the Go module: $(cat "$work/said")"
  grep -q '^The sky is blue' "$work/said" || fail "the Go module said: $(cat "$work/said")"
  uses_library page "$PWD/llamabi-go/libllamabi.so.0"
)
# The list of what is inside: by the schema, and the same packages as THIRD-PARTY.md.
sbom=$work/dist/llamabi-$version.cdx.json
diff <(sed -n 's/^| \([^ ]*\) | \([0-9][^ ]*\) | .*/pkg:cargo\/\1@\2/p' "$root/THIRD-PARTY.md" | sort) \
  <(python3 -c 'import json, sys; print(*sorted(c["purl"] for c in json.load(open(sys.argv[1]))["components"] if "cargo" in c.get("purl", "")), sep="\n")' "$sbom") ||
  fail "THIRD-PARTY.md (left) and the SBOM (right) differ"
if validator=$("$root/scripts/cyclonedx"); then
  "$validator" - "$sbom" <<'PY' || fail "the SBOM does not fit its schema"
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())
sys.exit(str(error) if error else None)
PY
else
  echo "packaging: SKIPPED: the SBOM is not compared with its schema"
fi
# This library needs more than glibc 2.0, and a program in C++ its C++ library: both are noticed.
echo 'int main() { return !new int; }' | c++ -x c++ - -o "$work/cxx"
! "$root/scripts/symbols" 2.0 "$so" >/dev/null 2>"$work/said" && grep -q 'needs GLIBC_2' "$work/said" || fail "scripts/symbols: $(cat "$work/said")"
! "$root/scripts/symbols" 9.9 "$work/cxx" >/dev/null 2>"$work/said" && grep -q 'C++ library' "$work/said" || fail "scripts/symbols: $(cat "$work/said")"
"$root/scripts/symbols" 9.9 "$so" >/dev/null || fail "scripts/symbols refuses the library"
echo "packaging: a release: tarball, npm package, Go module, checksums and SBOM, each in an empty directory"
echo "packaging: everything passed"
