#!/usr/bin/env bash
# Releases, with goreleaser and what it calls, built once from the versions that hack/release/go.mod pins.
#
#   release.sh check         the configuration, and that `go install` works from a module proxy alone
#   release.sh install       the latter: the tree of HEAD as a proxy's files, installed without this checkout
#   release.sh snapshot      everything of a release in dist/, nothing published: 6 binaries, archives, SBOMs, checksums
#   release.sh publish       the same of the tag that HEAD has, to the forge (GITHUB_TOKEN)
#   release.sh extras        scripts for shells, which the archives hold; goreleaser calls it
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

main() {
  need_go
  cd "$root"
  case ${1:-} in
    check) goreleaser check && install_from_proxy ;;
    install) install_from_proxy ;;
    snapshot) snapshot ;;
    publish) clean_tree && goreleaser release --clean ;;
    extras) extras ;;
    *) die "usage: release.sh check|install|snapshot|publish|extras" ;;
  esac
}

# clean_tree: a version names a commit, so nothing else may go into it.
clean_tree() {
  [ -z "$(git status --porcelain)" ] || die "the tree has changes that are in no commit" "git status"
}

# snapshot replaces dist/ when all of the new one is made and looked at.
snapshot() {
  clean_tree
  local new=$root/.cache/dist
  mkdir -p "$root/.cache"
  { cat .goreleaser.yaml && printf 'dist: .cache/dist\n'; } >"$root/.cache/goreleaser.yaml"
  goreleaser release --snapshot --clean --config "$root/.cache/goreleaser.yaml"
  verify "$new"
  rm -rf "$root/dist"
  mv "$new" "$root/dist"
  say "dist/ is whole: $(find dist -maxdepth 1 -name 'workcell_*' | wc -l) files"
}

# goreleaser ARGUMENT...: with the SBOM tool on its PATH. It builds one target at a time: each keeps all processors busy.
goreleaser() {
  local bill release
  bill=$("$root/hack/tool.sh" cyclonedx-gomod)
  release=$("$root/hack/tool.sh" goreleaser)
  mkdir -p "$root/.cache/bin"
  ln -sf "$bill" "$root/.cache/bin/cyclonedx-gomod"
  case $1 in release) set -- "$@" --parallelism 1 ;; esac
  PATH=$root/.cache/bin:$PATH "$release" "$@"
}

# install_from_proxy installs the command as a user does, from what a proxy would serve of HEAD. The other modules come from
# this machine's own module cache, which has the layout of a proxy, else from where they always come from.
install_from_proxy() {
  local dir version=v0.0.0-check
  dir=$(mktemp -d)
  at_exit "chmod -R u+w '$dir'; rm -rf '$dir'"
  mkdir "$dir/tree"
  git archive HEAD | tar -x -C "$dir/tree"
  (cd hack/release && GOWORK=off GOFLAGS=-mod=readonly go run ./moduleproxy -version "$version" "$dir/tree" "$dir/proxy")
  say "go install github.com/workcell-dev/workcell/cmd/workcell@$version"
  # No sums of a version that nobody published, nor of the others: those stand in go.sum.
  (cd / && env -u GOPRIVATE GOWORK=off GOFLAGS=-trimpath GONOSUMDB='*' GOMODCACHE="$dir/mod" GOBIN="$dir/bin" CGO_ENABLED=0 \
    GOPROXY="file://$dir/proxy,file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)" \
    go install "github.com/workcell-dev/workcell/cmd/workcell@$version")
  local said
  said=$("$dir/bin/workcell" version)
  say "$said"
  case $said in
    *"$version"*) ;;
    *) die "the installed command does not know its version: $said" ;;
  esac
}

extras() {
  local dir=$root/.cache/release shell
  rm -rf "$dir" && mkdir -p "$dir/completions"
  GOWORK=off CGO_ENABLED=0 go build -trimpath -o "$dir/workcell" ./cmd/workcell
  for shell in bash zsh fish powershell; do
    "$dir/workcell" completion "$shell" >"$dir/completions/workcell.$shell"
  done
}

# verify DIST looks at a snapshot as one who downloads it does.
verify() {
  local dist=$1 os arch file tmp said
  tmp=$(mktemp -d)
  at_exit "rm -rf '$tmp'"
  (cd "$dist" && sha256sum --check --quiet checksums.txt) || die "checksums.txt is not of these files"
  for os in linux darwin windows; do
    for arch in amd64 arm64; do
      file=$(echo "$dist"/workcell_*_"${os}_$arch".tar.gz)
      if [ "$os" = windows ]; then file=$(echo "$dist"/workcell_*_"${os}_$arch".zip); fi
      [ -s "$file" ] || die "there is no archive for $os/$arch"
      grep -q " $(basename "$file")\$" "$dist/checksums.txt" || die "$file has no checksum"
      grep -q '"bomFormat": *"CycloneDX"' "$dist"/workcell_*_"${os}_$arch".cdx.json || die "there is no SBOM for $os/$arch"
    done
  done
  # What is built here must be what is built elsewhere.
  for file in "$dist"/workcell_*/workcell*; do
    if grep -qaF -e "$root/" -e "$(go env GOMODCACHE)/" -e "$(go env GOROOT)/src" "$file"; then die "$file has paths of this machine"; fi
  done
  file=$(echo "$dist"/workcell_*_"$(go env GOHOSTOS)_$(go env GOHOSTARCH)".tar.gz)
  tar -xzf "$file" -C "$tmp"
  said=$("$tmp/workcell" version)
  say "$said"
  file=${file##*/workcell_}
  case $said in *"v${file%%_*}"*) ;; *) die "the command does not know its version: $said" ;; esac
  for file in bash zsh fish; do
    [ -s "$tmp/completions/workcell.$file" ] || die "the archive has no completion script for $file"
  done
}

supervise main "$@"
