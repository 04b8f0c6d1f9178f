#!/usr/bin/env bash
# scripts/include_graph.sh [--check]: which folder of src/ includes which, counted over its #include lines, in the
# order of tests/tree/include_rule.txt; then what that table allows and no line uses (core is for everyone), and
# what it forbids. --check: exit 1 if there is either.
set -euo pipefail
cd "$(dirname "$0")/.."
rule=tests/tree/include_rule.txt

grep -rEo --include='*.hpp' --include='*.cpp' --include='*.cuh' --include='*.cu' \
  '^[[:space:]]*#[[:space:]]*include[[:space:]]*"[a-z_]+/' src |
  sed -E 's|^src/([a-z_]+)/.*"([a-z_]+)/$|\1 \2|' |
  awk -v check="${1:-}" -v rule="$rule" '
    NR == FNR {  # the table
      sub(/#.*/, "")
      if (sub(/:/, " ") == 0) next
      order[++rows] = $1
      for (i = 2; i <= NF; ++i) allowed[$1, $i] = 1
      next
    }
    { ++count[$1, $2] }
    END {
      for (i = 1; i <= rows; ++i) {
        from = order[i]
        line = ""
        for (j = 1; j < i; ++j) {
          to = order[j]
          if ((from, to) in count) line = line sprintf("  %s %d", to, count[from, to])
          if (to != "core" && (from, to) in allowed && !((from, to) in count)) unused = unused "  " from " -> " to "\n"
        }
        printf "%-14s itself %-4d%s\n", from, count[from, from], line
      }
      for (pair in count) {
        split(pair, end, SUBSEP)
        if (end[1] != end[2] && !(pair in allowed)) forbidden = forbidden "  " end[1] " -> " end[2] "\n"
      }
      if (unused != "") printf "\nallowed by %s, used by no line:\n%s", rule, unused
      if (forbidden != "") printf "\nforbidden by it, used all the same:\n%s", forbidden
      exit check == "--check" && (unused != "" || forbidden != "")
    }' "$rule" -
