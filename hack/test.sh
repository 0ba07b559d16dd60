#!/usr/bin/env bash
# Every check and every test, from a bare machine. Sections are timed.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

exec </dev/null # which may not even be open
began=$SECONDS
jaeger_log=$(mktemp)
scratch=$(mktemp -d) # temporary files of the tests
jaeger_pid=

main() {
  cd "$root"
  section "set-up" setup
  section "sources" sources
  section "embedded guest" guest
  section "vet" go vet ./...
  section "other systems" hack/cross.sh
  section "Jaeger" wait_for_jaeger
  local before
  before=$(leftovers)
  section "tests" tests
  section "leftovers" nothing_left "$before"
  printf '\nall passed in %s\n' "$(elapsed $((SECONDS - began)))"
}

# section NAME COMMAND...: a failure ends everything, with the section's name.
section() {
  local name=$1 start=$SECONDS
  shift
  printf '\n=== %s\n' "$name"
  # Not in a condition: `set -e` would not hold inside the command.
  failed=$name
  "$@"
  failed=
  printf -- '--- %s: %s\n' "$name" "$(elapsed $((SECONDS - start)))"
}

elapsed() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

finish() {
  local code=$?
  if [ -n "$jaeger_pid" ]; then kill -- "-$jaeger_pid" 2>/dev/null || true; fi
  rm -rf "$jaeger_log" "$scratch"
  if [ -n "${failed:-}" ]; then
    printf '\n*** FAILED: %s, after %s\n' "$failed" "$(elapsed $((SECONDS - began)))" >&2
    [ $code -ne 0 ] || code=1
  fi
  exit $code
}

setup() {
  need_go
  # The race detector links with the C compiler.
  if is_debian && ! command -v "$(go env CC)" >/dev/null 2>&1; then
    need_packages "go test -race" gcc libc6-dev
  fi
  # Takes longest and needs nothing: beside everything else until it is
  # needed, in a process group of its own so that all of it can be ended.
  set -m
  nice hack/jaeger.sh path >"$jaeger_log" 2>&1 </dev/null &
  jaeger_pid=$!
  set +m
  hack/engine.sh
  use_docker_context
  PATH=$(dirname "$(working_docker)"):$PATH # for the tests too
  hack/images.sh
}

sources() {
  local bad
  bad=$(gofmt -l .)
  if [ -n "$bad" ]; then
    printf 'not formatted by gofmt:\n%s\n' "$bad"
    return 1
  fi
  # What a test needs is set up above; one that skips proves nothing.
  if grep -rnE '\bt\.Skip(Now|f)?\(' --include='*_test.go' .; then
    echo 'tests must not skip'
    return 1
  fi
}

guest() { hack/build-guest.sh --check; }

wait_for_jaeger() {
  if ! wait "$jaeger_pid"; then
    jaeger_pid=
    cat "$jaeger_log"
    return 1
  fi
  jaeger_pid=
  tail -n 1 "$jaeger_log"
}

# Two packages at a time: most tests wait for the engine, and too many
# containers starting at once run into their own time limits.
tests() {
  TMPDIR=$scratch go test -race -count=1 -timeout 15m -p 2 -parallel 4 ./... | grep --line-buffered -v '\[no test files\]'
}

# leftovers lists what a test may leave: things on the engine with our label,
# temporary files, and processes of the programs that tests build or start.
leftovers() {
  local l=label=dev.workcell.instance p
  docker ps --all --no-trunc --filter $l --format 'container {{.ID}} {{.Names}}'
  docker volume ls --filter $l --format 'volume {{.Name}}'
  docker network ls --no-trunc --filter $l --format 'network {{.ID}} {{.Name}}'
  find "$scratch" -mindepth 1 -maxdepth 1 -printf 'file %p\n' 2>/dev/null || true
  for p in /proc/[0-9]*; do
    case $(readlink "$p/exe" 2>/dev/null) in
      "$scratch"/* | "$cache"/jaeger/*) printf 'process %s %s\n' "${p#/proc/}" "$(tr '\0' ' ' <"$p/cmdline" 2>/dev/null)" ;;
    esac
  done
}

nothing_left() {
  local new deadline=$((SECONDS + 15))
  while :; do
    new=$(comm -13 <(sort <<<"$1") <(leftovers | sort))
    [ -n "$new" ] || break
    if [ $SECONDS -ge $deadline ]; then
      printf 'the tests left behind:\n%s\n' "$new"
      return 1
    fi
    sleep 0.5
  done
  echo "no container, volume, network, temporary file or process was left behind"
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
main
