#!/usr/bin/env bash
# Whether a binding has every field of the header's option structs and of its figures, and every
# finish reason.
#
#   fields.sh lib DIR   a libllamabi.so.0 in DIR that does nothing but say which options it was
#                       given, in the sentence of its error, and give the figures of fields.txt
#   fields.sh check     what a binding's program said with that library, on standard input: lines
#                       that begin with the name of a struct, and have the library's sentence, or
#                       the figures in any form, or "same" where the binding hands out the C struct
#
# Both fail where the header has a field that fields.txt does not name, or the other way round.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
header=$here/../../include/llamabi.h
table=$here/fields.txt
fail() { echo "fields.sh: $*" >&2; exit 1; }

# "STRUCT FIELD KIND": i an integer, f a float, s text, a an array of integers, p a pointer
fields() {
  awk '/^typedef struct llama_(build_options|generate_options|info|timings|request_stats) \{/ { s = $3; next }
    /^\}/ { s = "" }
    s && !/\/\/\// && /;/ {
      kind = /char .*\[/ ? "s" : /\[/ ? "a" : /\*|_fn / ? "p" : /float|double/ ? "f" : "i"
      sub(/(\[.*\])?;.*/, ""); sub(/.*[ *]/, ""); print s, $0, kind
    }' "$header"
}
reasons() { sed -n 's/^#define LLAMA_FINISH_\([A-Z_]*\) .*/\1/p' "$header"; }

missing=$(diff <(fields | cut -d' ' -f1,2) <(grep -v '^#' "$table" | cut -d' ' -f1,2)) ||
  fail "llamabi.h (<) and tests/bindings/fields.txt (>) have other fields: give a new one a name in every binding" \
    "(C++, Go, Node: option or figure, test, docs), then a line in fields.txt:"$'\n'"$missing"

# "STRUCT FIELD KIND VALUE [WORD]", without the fields that bindings have no name for
joined() { paste -d' ' <(fields) <(grep -v '^#' "$table" | cut -d' ' -f3-) | awk '$4 != "-"'; }

lib() {
  mkdir -p "$1"
  local work
  work=$(mktemp -d)
  {
    echo '#include <llamabi.h>'
    echo '#include <stdio.h>'
    echo '#include <string.h>'
    echo 'static char *at, *end;'
    echo '#define SAY(...) (at += snprintf(at, (size_t)(end - at), __VA_ARGS__))'
    for s in build_options generate_options; do
      echo "static llama_status say_$s(const llama_$s *o, llama_error *err) {"
      echo '  err->status = LLAMA_E_INVALID_ARGUMENT; at = err->message; end = at + sizeof err->message;'
      joined | awk -v s="llama_$s" '$1 == s { printf "  SAY(\"%s=", $2
        if ($3 == "p") printf "%%s \", o->%s ? \"set\" : \"null\");\n", $2
        else if ($3 == "f") printf "%%g \", (double)o->%s);\n", $2
        else printf "%%lld \", (long long)o->%s);\n", $2 }'
      echo '  return LLAMA_E_INVALID_ARGUMENT; }'
    done
    for s in info timings request_stats; do
      echo "static void give_$s(llama_$s *o) {"
      joined | awk -v s="llama_$s" '$1 == s { if ($3 == "s") printf "  strcpy(o->%s, \"%s\");\n", $2, $4; else if ($3 == "a") printf "  o->%s[0] = %s;\n", $2, $4; else printf "  o->%s = %s;\n", $2, $4 }'
      echo '}'
    done
    echo 'static const int32_t reasons[] = {'
    reasons | sed 's/.*/  LLAMA_FINISH_&,/'
    echo '};'
    cat <<'END'
#define HANDLE(type, n) ((type *)(uintptr_t)(n))
static unsigned next_reason;
uint32_t llama_abi_version(void) { return LLAMABI_ABI_VERSION; }
const char *llama_version(void) { return LLAMABI_VERSION; }
const char *llama_status_string(llama_status s) { return s ? "not OK" : "OK"; }
void llama_build_options_init(llama_build_options *o, size_t size, uint32_t abi) {
  memset(o, 0, size);
  o->struct_size = (uint32_t)size;
  o->abi_version = abi;
}
void llama_generate_options_init(llama_generate_options *o, size_t size) {
  memset(o, 0, size);
  o->struct_size = (uint32_t)size;
}
llama_status llama_build(const char *dir, const char *tokenizer, const llama_build_options *o, llama_t **out, llama_error *err) {
  (void)tokenizer;
  if (strcmp(dir, "say") == 0) return say_build_options(o, err);
  *out = HANDLE(llama_t, 16);
  return LLAMA_OK;
}
llama_status llama_text_completion(llama_t *l, const char *const *p, const size_t *lens, size_t n, const llama_generate_options *o,
                                   llama_result_t **out, llama_error *err) {
  (void)l, (void)p, (void)lens, (void)n, (void)out;
  return say_generate_options(o, err);
}
llama_status llama_stream_open_text(llama_t *l, const char *const *p, const size_t *lens, size_t n, const llama_generate_options *o,
                                    llama_stream_t **out, llama_error *err) {
  (void)l, (void)p, (void)lens, (void)n, (void)o, (void)err;
  *out = HANDLE(llama_stream_t, 32);
  return LLAMA_OK;
}
llama_status llama_stream_next(llama_stream_t *s, llama_event *ev, int32_t timeout_ms, llama_error *err) {
  (void)s, (void)timeout_ms, (void)err;
  if (next_reason == sizeof reasons / sizeof *reasons) return LLAMA_DONE;
  ev->kind = LLAMA_EVENT_FINISH;
  ev->index = 0;
  ev->token = -1;
  ev->finish_reason = reasons[next_reason++];
  ev->text = "";
  ev->text_len = 0;
  ev->top = NULL;
  ev->n_top = 0;
  return LLAMA_OK;
}
llama_status llama_stream_stats(const llama_stream_t *s, size_t i, llama_request_stats *o) {
  (void)s, (void)i;
  give_request_stats(o);
  return LLAMA_OK;
}
llama_status llama_get_info(const llama_t *l, llama_info *o, llama_error *err) {
  (void)l, (void)err;
  give_info(o);
  return LLAMA_OK;
}
llama_status llama_get_timings(const llama_t *l, llama_timings *o, llama_error *err) {
  (void)l, (void)err;
  give_timings(o);
  return LLAMA_OK;
}
llama_status llama_grammar_new(const llama_t *l, int32_t kind, const char *source, size_t len, llama_grammar_t **out, llama_error *err) {
  (void)l, (void)kind, (void)source, (void)len, (void)err;
  *out = HANDLE(llama_grammar_t, 64);
  return LLAMA_OK;
}
llama_cancel_t *llama_cancel_new(void) { return HANDLE(llama_cancel_t, 48); }
size_t llama_result_count(const llama_result_t *r) { (void)r; return 0; }
END
  } >"$work/says.c"
  # All that programs link beside these, and do not call.
  grep -vwF -f <(grep -o '\bllama_[a-z_]*(' "$work/says.c" | tr -d '(' | sort -u) "$here/../symbols.txt" |
    sed 's/.*/int &(void) { return -2; }/' >"$work/rest.c"
  ${CC:-cc} -Wall -Wextra -shared -fPIC -I"$here/../../include" -Wl,-soname,libllamabi.so.0 "$work/says.c" "$work/rest.c" -o "$1/libllamabi.so.0"
  ln -sf libllamabi.so.0 "$1/libllamabi.so"
  rm -r "$work"
}

check() {
  local said s field kind value word line all=0
  said=$(cat)
  has() { grep -qE "(^|[^A-Za-z0-9_.])${1//./\\.}([^A-Za-z0-9_.]|$)" <<<"$2"; }
  while read -r s field kind value word; do
    line=$(grep "^$s " <<<"$said") || fail "nothing was said of $s"
    [[ $line != "$s same" ]] || continue
    all=$((all + 1))
    if [[ $s == *_options ]]; then
      has "$field=$value" "$line" || fail "$s.$field cannot be set, or not to $value: $line"
    else
      has "$value" "$line" || has "${word:-$value}" "$line" || fail "$s.$field, which is $value, is not told: $line"
    fi
  done < <(joined)
  line=$(grep '^llama_finish ' <<<"$said") || fail "nothing was said of finish reasons"
  for word in $(reasons | tr A-Z a-z); do
    [[ $line == 'llama_finish same' ]] || has "$word" "$line" || fail "the finish reason $word has no name: $line"
  done
  echo "fields: $all fields of options and figures, and every finish reason"
}

case ${1:-} in
  lib) lib "$2" ;;
  check) check ;;
  *) fail "usage: fields.sh lib DIR | check" ;;
esac
