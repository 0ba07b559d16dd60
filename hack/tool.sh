#!/usr/bin/env bash
# Prints the path of a program that the tests, the checks, or a release use. If it is missing, this builds or installs it.
#
#   tool.sh NAME    NAME is the first word of a row below, or one of
#                     chromium, shellcheck    programs of Debian
#                     postgres                the folder of PostgreSQL's programs
#                     npm                     the folder with the node_modules of hack/mcp
#                     node                    a Node.js that is new enough for them
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Programs that are built from Go modules: the folder whose go.mod pins them, their module, their packages, and the variable with
# their version. `go tool` takes neither -tags nor -ldflags, and its cache forgets what was not used for five days.
pinned() {
  cat <<'END'
jaeger          e2e/jaeger               github.com/jaegertracing/jaeger           cmd/jaeger                                      internal/version.latestVersion
containerd2     e2e/containerd           github.com/containerd/containerd/v2       cmd/containerd,cmd/containerd-shim-runc-v2      version.Version
runsc           e2e/gvisor               gvisor.dev/gvisor                         runsc                                           runsc/version.version
kube            e2e/cluster              k8s.io/kubernetes                         ./
addons          e2e/cluster              -                                         ./addons
helm            hack/helm                helm.sh/helm/v4                           cmd/helm                                        internal/version.version
golangci-lint   hack/lint                github.com/golangci/golangci-lint/v2      cmd/golangci-lint
actionlint      hack/actionlint          github.com/rhysd/actionlint               cmd/actionlint
goreleaser      hack/release             github.com/goreleaser/goreleaser/v2       .
cyclonedx-gomod hack/release             github.com/CycloneDX/cyclonedx-gomod      cmd/cyclonedx-gomod
END
}

main() {
  local row
  case ${1:-} in
    chromium) debian chromium "a page of a sandbox in a browser" chromium-browser google-chrome ;;
    shellcheck) debian shellcheck "the lint of scripts" ;;
    postgres) postgres ;;
    npm) npm_folder ;;
    node) node "$(npm_folder)" ;;
    *)
      row=$(pinned | grep -e "^${1:-} ") || die "unknown program ${1:-}" "see the head of hack/tool.sh"
      # shellcheck disable=SC2086 # the words of a row
      program $row
      ;;
  esac
}

# program NAME FOLDER MODULE PACKAGES [VARIABLE]: several packages make a folder of programs.
program() {
  local name=$1 dir=$root/$2 of=$3 variable=${5:-} version="" key file packages=() flags=(-trimpath -buildvcs=false) linker="-s -w"
  need_go
  IFS=, read -ra packages <<<"$4"
  if [[ ${packages[0]} != ./* ]]; then packages=("${packages[@]/#/$of/}"); fi
  if [ "$of" != - ]; then version=$(sed -n "s,^[[:space:]]*$of \\(v[^ ]*\\).*,\\1,p" "$dir/go.mod"); fi
  if [ -n "$variable" ]; then linker+=" -X $of/$variable=$version"; fi
  key=$(sources | sha256sum | cut -c1-8)
  case $name in
    # What no test needs is left out: that halves the time.
    containerd2) flags+=(-tags "no_cri no_btrfs no_zfs no_devmapper no_tracing no_systemd") ;;
    kube)
      local p=k8s.io/component-base/version
      linker+=" -X $p.gitVersion=$version -X $p.gitMajor=1 -X $p.gitMinor=$(cut -d. -f2 <<<"$version")"
      linker+=" -X $p.gitTreeState=clean -X $p.gitCommit=module -X $p.buildDate=2026-01-01T00:00:00Z"
      ;;
    # One that was built with an older Go cannot read newer sources.
    golangci-lint) version+=-$(go env GOVERSION) ;;
  esac
  file=${2#*/}
  file=$cache/${file%%/*}/$name-${version:+$version-}$key-$(go env GOARCH)
  once "$file" build "$name${version:+ $version}" "$dir" "$file" "${flags[@]}" -ldflags "$linker" "${packages[@]/%\/./}"
  printf '%s\n' "$file"
}

# sources prints what decides on a program besides its version, with the dir and packages of program.
sources() { if [[ ${packages[0]} == ./* ]]; then cat "$dir/go.mod" "$dir/${packages[0]}"/*.go; else cat "$dir/go.mod"; fi; }

# build NAME FOLDER FILE ARGUMENT...: FILE is whole or missing, also after an interrupt.
build() {
  local what=$1 file=$3 new=$3.new.$$ start=$SECONDS
  say "building $what from its Go module: takes some minutes, once"
  at_exit "rm -rf '$new'"
  mkdir "$new"
  (cd "$2" && CGO_ENABLED=0 GOFLAGS=-mod=readonly GOWORK=off GOTMPDIR=$new go build -o "$new/out/" "${@:4}") >&2 ||
    die "$what could not be built"
  if [ "$(find "$new/out" -type f | wc -l)" -eq 1 ]; then mv "$new"/out/* "$file"; else mv "$new/out" "$file"; fi
  say "built $what in $((SECONDS - start)) s"
}

# once PATH COMMAND...: runs a command that makes PATH unless it is there. Of two at once the second waits, and finds it.
once() {
  [ ! -e "$1" ] || return 0
  mkdir -p "${1%/*}"
  if command -v flock >/dev/null 2>&1; then
    exec 9>"$1.lock"
    if ! flock -n 9; then
      say "waiting for the process that makes ${1##*/}"
      flock 9
    fi
  fi
  [ -e "$1" ] || "${@:2}"
}

# debian NAME WHY OTHER-NAME...: prints the path of a program that Debian has in a package of its name.
debian() {
  local name=$1 why=$2
  shift 2
  if found "$name" "$@"; then return; fi
  is_debian || die "$name is not installed" "install it, and put it on the PATH"
  lock "$cache/$name.lock" # of two at once the second finds the package of the first
  need_packages "$why" "$name"
  found "$name" || die "$name was installed, and is not on the PATH"
}

found() {
  local p
  for p in "$@"; do if command -v "$p"; then return; fi; done
  return 1
}

# postgres prints the folder of the newest server: Debian does not have it on the PATH.
postgres() {
  if ! newest >/dev/null && is_debian; then need_packages "tests of state in PostgreSQL" postgresql; fi
  newest || die "PostgreSQL's server is not installed" "install it so that initdb and postgres are on the PATH"
}

newest() {
  local dir
  dir=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
  if [ ! -x "$dir/initdb" ]; then
    dir=$(command -v initdb) || return 1
    dir=$(dirname "$(readlink -f "$dir")")
  fi
  printf '%s\n' "$dir"
}

# npm_folder: MCP clients, which are the official conformance suite, the Inspector and coding agents, and MCP servers. They are
# not part of what is published.
npm_folder() {
  local dir
  dir=$cache/mcp/$(cat "$root/hack/mcp/package.json" "$root/hack/mcp/package-lock.json" | sha256sum | cut -c1-16)
  once "$dir/complete" install_npm "$dir"
  printf '%s\n' "$dir"
}

install_npm() {
  if ! command -v npm >/dev/null 2>&1; then
    is_debian || die "npm is not installed" "install Node.js with npm"
    need_packages "the MCP clients and servers of the tests" npm
  fi
  say "installing the MCP clients and servers of the tests from npm: takes some minutes, once"
  cp "$root/hack/mcp/package.json" "$root/hack/mcp/package-lock.json" "$1"
  # Scripts of packages are not run. The lock names what each archive must hash to.
  if ! (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=5) >"$1/npm.log" 2>&1; then
    tail -n 20 "$1/npm.log" >&2
    die "npm could not install the MCP clients and servers"
  fi
  touch "$1/complete"
}

# node FOLDER: the one of the system, or else the one from npm. The Inspector needs this version.
node() {
  local want=22.19 p
  if p=$(type -P node) && printf '%s\n%s\n' "$want" "$("$p" -p process.versions.node)" | sort -C -V; then
    printf '%s\n' "$p"
    return
  fi
  for p in "$1"/node_modules/node-linux-*/bin/node; do
    if [ -x "$p" ]; then
      printf '%s\n' "$p"
      return
    fi
  done
  die "Node.js $want or newer is not installed" "install it: npm has none for this system"
}

supervise main "$@"
