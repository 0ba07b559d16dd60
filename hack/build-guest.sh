#!/usr/bin/env bash
# Builds the guest for every architecture that sandboxes run on, and puts it, compressed, where the library embeds it.
# The same sources and toolchain give the same bytes on every machine.
#
#   build-guest.sh             rebuild
#   build-guest.sh --check     rebuild elsewhere and compare, without changing anything
#   build-guest.sh --version   compare the version alone: a hash of the sources, which is in each binary
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

embed=internal/guest/embed
pkg=./cmd/workcell-guest
arches="amd64 arm64"
flags=(-trimpath -buildvcs=false)

main() {
  local dir=$embed f arch
  need_go
  cd "$root"
  # The toolchain is part of what makes the bytes; go.mod's own line may be older.
  GOTOOLCHAIN=$(cat $embed/toolchain.txt)
  export GOTOOLCHAIN CGO_ENABLED=0 GOOS=linux GOFLAGS="" GOEXPERIMENT="" GOAMD64=v1 GOARM64=v8.0 GOWORK=off LC_ALL=C
  [ "$(go env GOVERSION)" = "$GOTOOLCHAIN" ] || die "the guest needs $GOTOOLCHAIN, this is $(go env GOVERSION)"
  version=$(version)
  if [ "${1:-}" = --version ]; then
    for arch in $arches; do
      [ "$(gzip -dc "$embed/guest_linux_$arch.gz" | grep -caF "$version")" -gt 0 ] || die "the embedded guest for $arch is not of these sources ($version)" "make guest"
    done
    return
  fi
  if [ "${1:-}" = --check ]; then
    dir=$(mktemp -d)
    at_exit "rm -rf '$dir'"
  fi
  echo "$version" >"$dir/version.txt"
  for arch in $arches; do
    GOARCH=$arch go build "${flags[@]}" -ldflags "-s -w -buildid= -X main.version=$version" -o "$dir/guest" $pkg
    GOOS="" GOARCH="" go run ./internal/guest/embed/pack.go <"$dir/guest" >"$dir/guest_linux_$arch.gz"
    rm "$dir/guest"
    for f in version.txt "guest_linux_$arch.gz"; do
      cmp -s "$dir/$f" "$embed/$f" ||
        die "$embed/$f is of version $(cat $embed/version.txt 2>/dev/null || echo none), the sources are $version" "hack/build-guest.sh"
    done
  done
  echo "build-guest: version $version, $(cat $embed/guest_linux_*.gz | wc -c) bytes"
}

# version prints a hash over everything that goes into the binary, and over the library that lies beside it.
# shellcheck disable=SC2016 # of templates
version() {
  {
    echo "$GOTOOLCHAIN ${flags[*]}"
    go list -deps -f '{{if and .Module .Module.Version}}{{.Module.Path}} {{.Module.Version}}{{end}}' $pkg | sort -u
    for arch in $arches; do
      GOARCH=$arch go list -deps -f '{{if and .Module .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .SFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}' $pkg
    done | sources
    go list -f '{{$d := .Dir}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}' ./internal/guest/lib | sources
  } | sha256sum | cut -c1-12
}

sources() { sed "s|^$PWD/||" | grep -v '^$' | sort -u | xargs sha256sum; }

supervise main "$@"
