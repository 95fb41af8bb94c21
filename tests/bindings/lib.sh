# What the test scripts share; to be sourced.

# fenced LANGUAGE FILE [N]: the N-th (first) fenced block of that language in a Markdown file.
fenced() {
  awk -v fence='```'"$1" -v wanted="${3:-1}" '
    !inside && $0 == fence { inside = ++n; next }
    inside && $0 == "```" { if (inside == wanted) exit; inside = 0; next }
    inside && inside == wanted { found = 1; print }
    END { exit !found }' "$2" || { echo "$2 has no block ${3:-1} of $1" >&2; return 1; }
}

# need COMMAND...: or say how to get it.
need() {
  local tool missing=0
  for tool in "$@"; do
    command -v "$tool" >/dev/null || { echo "$tool is missing: scripts/setup --test" >&2; missing=1; }
  done
  return $missing
}
