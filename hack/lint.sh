#!/usr/bin/env bash
# Prints the sizes of packages next to their bounds (hack/house/bounds.txt), the weight of the command (hack/house/weight.txt), and
# the counts of banned phrases and long lines (hack/words/budget.txt), then runs golangci-lint.
# usage: lint.sh [ARGUMENT...]   (default: run)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  need_go
  cd "$root"
  if [ $# -eq 0 ]; then
    go run ./hack/house . hack/house/bounds.txt
    go run ./hack/words .
    weight
    set -- run ./... ./e2e/...
  fi
  "$(hack/tool.sh golangci-lint)" "$@"
}

# weight fails if a build of the command links more packages than its bound, and warns if the program is too large.
weight() {
  local n failed=0 dir build most tags
  export GOOS=linux GOARCH=amd64
  while read -r build most; do
    case $build in
      full) tags="" ;;
      demo) tags=$(BACKEND=local hack/demo.sh tags) ;;
      megabytes)
        dir=$(mktemp -d)
        at_exit "rm -rf '$dir'"
        CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$dir/workcell" ./cmd/workcell
        n=$(($(wc -c <"$dir/workcell") / 1000000))
        say "$n of $most MB: workcell for linux/amd64, stripped$([ "$n" -le "$most" ] || echo ": WARNING, too large")"
        continue
        ;;
    esac
    n=$(go list -deps -tags "$tags" ./cmd/workcell | wc -l)
    say "$n of $most packages: workcell, $build"
    [ "$n" -le "$most" ] || failed=1
  done < <(grep -v '^#' hack/house/weight.txt)
  unset GOOS GOARCH
  [ $failed = 0 ] || die "the command links too many packages"
}

supervise main "$@"
