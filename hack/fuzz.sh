#!/usr/bin/env bash
# Runs every fuzz test of the module for FUZZTIME (default 10s) each.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
cd "$root"
found=0
while IFS=: read -r file name; do
  found=$((found + 1))
  say "== ${file%/*} $name"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "./${file%/*}"
done < <(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' --exclude-dir=.git . |
  sed 's,^\./,,; s,:func ,:,' | sort)
[ $found -gt 0 ] || die "no fuzz test found"
