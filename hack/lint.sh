#!/usr/bin/env bash
# Prints how large each package is beside its bounds (hack/house/bounds.txt),
# then runs golangci-lint, built once from the version that hack/lint/go.mod pins.
# usage: lint.sh [ARGUMENT...]   (default: run)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
module=$root/hack/lint
version=$(module_version github.com/golangci/golangci-lint/v2 "$module/go.mod")
# Built with an older Go it could not read newer sources.
bin=$cache/lint/golangci-lint-$version-$(go env GOVERSION)-$(go env GOOS)-$(go env GOARCH)
build() {
  say "building golangci-lint $version: takes some minutes, once"
  build_module "$module" "$bin" -ldflags '-s -w' github.com/golangci/golangci-lint/v2/cmd/golangci-lint
}
once "$bin" build
cd "$root"
if [ $# -eq 0 ]; then
  go run ./hack/house . hack/house/bounds.txt
  set -- run
fi
exec "$bin" "$@"
