# Sourced by format.sh and tidy.sh: sources PATTERN... lists our files, tracked or new, that are not ignored.
sources() {
  git ls-files --cached --others --exclude-standard -- "$@" | sort -u | while read -r file; do
    [[ -f $file ]] && echo "$file"
  done || true
}
