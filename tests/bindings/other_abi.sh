#!/bin/sh
# other_abi.sh DIR: a libllamabi.so.0 of ABI version 99 in DIR, to be refused by every binding.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
{
  grep -v -e '^llama_abi_version$' -e '^llama_version$' "$here/../symbols.txt" |
    sed 's/.*/int &(void) { return -2; }/'
  echo 'unsigned llama_abi_version(void) { return 99; }'
  echo 'const char *llama_version(void) { return "99.0.0"; }'
} | ${CC:-cc} -shared -fPIC -Wl,-soname,libllamabi.so.0 -x c - -o "$1/libllamabi.so.0"
ln -sf libllamabi.so.0 "$1/libllamabi.so"
