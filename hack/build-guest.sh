#!/bin/sh
# Builds the guest for every architecture that sandboxes run on, and puts it, compressed, where the library embeds it.
# The same sources and toolchain give the same bytes on every machine.
#
#   hack/build-guest.sh           rebuild
#   hack/build-guest.sh --check   rebuild elsewhere and compare, without changing anything
#   hack/build-guest.sh --version compare the version alone: a hash of the sources, which is in each binary
set -eu
cd "$(dirname "$0")/.."
embed=internal/guest/embed
pkg=./cmd/workcell-guest
arches="amd64 arm64"

# The toolchain is part of what makes the bytes; go.mod's own line may be older.
GOTOOLCHAIN=$(cat $embed/toolchain.txt)
export GOTOOLCHAIN CGO_ENABLED=0 GOOS=linux GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 GOWORK=off LC_ALL=C
if [ "$(go env GOVERSION)" != "$GOTOOLCHAIN" ]; then
	echo "build-guest: needs $GOTOOLCHAIN, this is $(go env GOVERSION)" >&2
	exit 1
fi

# The content version: a hash over everything that goes into the binary, and over the library that lies beside it.
version() {
	{
		echo "$GOTOOLCHAIN $1"
		go list -deps -f '{{if and .Module .Module.Version}}{{.Module.Path}} {{.Module.Version}}{{end}}' $pkg | sort -u
		for arch in $arches; do
			GOARCH=$arch go list -deps -f '{{if and .Module .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range .SFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}' $pkg
		done | sed "s|^$PWD/||" | grep -v '^$' | sort -u | xargs sha256sum
		go list -f '{{$d := .Dir}}{{range .EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}' ./internal/guest/lib | sed "s|^$PWD/||" | grep -v '^$' | sort | xargs sha256sum
	} | sha256sum | cut -c1-12
}
flags="-trimpath -buildvcs=false"
version=$(version "$flags")

build() { # directory
	for arch in $arches; do
		GOARCH=$arch go build $flags -ldflags "-s -w -buildid= -X main.version=$version" -o "$1/guest" $pkg
		GOOS= GOARCH= go run ./internal/guest/embed/pack <"$1/guest" >"$1/guest_linux_$arch.gz"
		rm "$1/guest"
	done
	echo "$version" >"$1/version.txt"
}

if [ "${1:-}" = --version ]; then
	for arch in $arches; do
		if [ "$(cat $embed/version.txt)" != "$version" ] || ! gzip -dc $embed/guest_linux_$arch.gz | grep -qaF "$version"; then
			echo "build-guest: the embedded guest for $arch is not of these sources ($version); run hack/build-guest.sh" >&2
			exit 1
		fi
	done
	exit 0
fi
if [ "${1:-}" != --check ]; then
	build $embed
	echo "build-guest: version $version, $(cat $embed/guest_linux_*.gz | wc -c) bytes"
	exit 0
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
build "$tmp"
bad=0
for f in version.txt $(for a in $arches; do echo guest_linux_$a.gz; done); do
	if ! cmp -s "$tmp/$f" "$embed/$f"; then
		echo "build-guest: $embed/$f differs from what the sources give" >&2
		sha256sum "$embed/$f" "$tmp/$f" >&2 || true
		bad=1
	fi
done
if [ $bad = 1 ]; then
	echo "build-guest: the embedded guest is version $(cat $embed/version.txt 2>/dev/null || echo none), the sources are $version; run hack/build-guest.sh" >&2
	exit 1
fi
echo "build-guest: version $version matches"
