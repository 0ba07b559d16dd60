#!/usr/bin/env bash
# What the end-to-end tests run from npm, in the versions of hack/mcp/package-lock.json: MCP clients, which are the official
# conformance suite, the Inspector and coding agents, and MCP servers. Nothing of them is part of what is published.
#
#   mcp-tools.sh path    install them once (1-3 minutes), print the folder with node_modules
#   mcp-tools.sh node    print the path of a Node.js that they run on
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

want=22.19 # of Node.js: what the Inspector needs

main() {
  case ${1:-} in
    path) folder ;;
    node) node_path "$(folder)" ;;
    *) die "usage: mcp-tools.sh path|node" ;;
  esac
}

# folder prints the folder of the installed packages, which it makes first where needed.
folder() {
  local sum dir
  sum=$(cat "$root/hack/mcp/package.json" "$root/hack/mcp/package-lock.json" | sha256sum | cut -c1-16)
  dir=$cache/mcp/$sum
  once "$dir/complete" install_tools "$dir"
  printf '%s\n' "$dir"
}

install_tools() {
  local dir=$1 log
  if ! command -v npm >/dev/null 2>&1; then
    is_debian || die "npm is not installed" "install Node.js with npm"
    need_packages "the MCP clients and servers of the tests" npm >&2
  fi
  say "installing the MCP clients and servers of the tests from npm: takes some minutes, once"
  cp "$root/hack/mcp/package.json" "$root/hack/mcp/package-lock.json" "$dir"
  log=$(mktemp)
  # Scripts of packages are not run. The lock names what each archive must hash to.
  if ! (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --fetch-retries=5 </dev/null) >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "npm could not install the MCP clients and servers"
  fi
  rm -f "$log"
  touch "$dir/complete"
}

# node_path prints the machine's own node when it is new enough, else the one from npm.
node_path() {
  local dir=$1 own=
  own=$(command -v node 2>/dev/null || true)
  if [ -n "$own" ] && printf '%s\n%s\n' "$want" "$("$own" -p process.versions.node)" | sort -C -V; then
    printf '%s\n' "$own"
    return
  fi
  for own in "$dir"/node_modules/node-linux-*/bin/node; do
    if [ -x "$own" ]; then
      printf '%s\n' "$own"
      return
    fi
  done
  die "there is no Node.js $want or newer" "install one, for this system npm has none"
}

main "$@"
