#!/usr/bin/env bash
# Compares the copy of idiomorph that the pages of `workcell ui` use with the package on npm.
#
#   idiomorph.sh           fetch the pinned version and compare it
#   idiomorph.sh --write   replace the copy
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=0.8.0
sum=c2b48584153f0167b5c98cb815576338ccd82a97378e53fbf29d139dfd67207e
web=$root/cmd/workcell/internal/ui/web
new=$(mktemp -d)
at_exit "rm -rf '$new'"

(cd "$new" && npm pack --silent --ignore-scripts "idiomorph@$version" >/dev/null)
echo "$sum  $new/idiomorph-$version.tgz" | sha256sum --check --quiet
tar -xzf "$new/idiomorph-$version.tgz" -C "$new"
for pair in dist/idiomorph.min.js:idiomorph.min.js LICENSE:idiomorph.LICENSE; do
  if [ "${1:-}" = --write ]; then
    cp "$new/package/${pair%:*}" "$web/${pair#*:}"
  else
    cmp "$new/package/${pair%:*}" "$web/${pair#*:}"
  fi
done
