#!/usr/bin/env bash
# Jaeger, built from its Go module, for the demo and for the end-to-end tests.
#
#   jaeger.sh path     build it once (3-4 minutes on 2 cores), print its path
#   jaeger.sh start    run it in the background on the usual ports
#   jaeger.sh stop     end what start started
#   jaeger.sh status   say whether a Jaeger answers
#
# A Jaeger that answers on the usual ports already, whoever runs it, is used.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$root/e2e/jaeger
run=$cache/jaeger
pidfile=$run/jaeger.pid
log=$run/jaeger.log

main() {
  case ${1:-} in
    path) binary ;;
    start) start ;;
    stop) end Jaeger "$pidfile" "$run/jaeger-" ;;
    status) status ;;
    *) die "usage: jaeger.sh path|start|stop|status" ;;
  esac
}

# binary prints the path of the binary, which it makes first where needed.
binary() {
  need_go
  local version file
  version=$(module_version github.com/jaegertracing/jaeger "$module/go.mod")
  file=$run/jaeger-$version-$(go env GOOS)-$(go env GOARCH)
  once "$file" compile "$version" "$file"
  printf '%s\n' "$file"
}

compile() {
  local version=$1 file=$2 new=$2.new.$$
  say "building Jaeger $version from its Go module: takes some minutes, once"
  build_module "$module" -ldflags "-s -w -X github.com/jaegertracing/jaeger/internal/version.latestVersion=$version" \
    -o "$new" github.com/jaegertracing/jaeger/cmd/jaeger || {
    rm -f "$new"
    die "Jaeger could not be built"
  }
  mv "$new" "$file"
}

start() {
  if answers; then
    say "Jaeger answers on http://localhost:16686"
    return
  fi
  local bin pid deadline=$((SECONDS + 30))
  bin=$(binary)
  local session=()
  if command -v setsid >/dev/null 2>&1; then session=(setsid); fi
  ${session[@]+"${session[@]}"} nohup "$bin" --config "$module/config.yaml" \
    >"$log" 2>&1 </dev/null 3>&- 4>&- 9>&- &
  pid=$!
  echo $pid >"$pidfile"
  until answers; do
    if ! kill -0 $pid 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      tail -n 10 "$log" >&2
      die "Jaeger did not start" "its log is $log; are the ports 4317, 4318, 13133, 16685 and 16686 free?"
    fi
    sleep 0.1
  done
  say "Jaeger runs on http://localhost:16686 (pid $pid)"
}

status() {
  answers || die "no Jaeger answers" "hack/jaeger.sh start"
  say "Jaeger answers on http://localhost:16686"
}

# answers: the query API talks and OTLP over HTTP is open. No curl needed.
answers() {
  local reply
  reply=$(bounded 3 bash -c '
    exec 3<>/dev/tcp/127.0.0.1/16686 4<>/dev/tcp/127.0.0.1/4318
    printf "GET /api/services HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3
    cat <&3' 2>/dev/null) || true
  case $reply in *' 200 '*'"data"'*) return 0 ;; esac
  return 1
}

main "$@"
