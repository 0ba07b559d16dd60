#!/usr/bin/env bash
# Jaeger, built from its Go module, for the demo and for the end-to-end tests.
#
#   jaeger.sh path        build it once (3-4 minutes on 2 cores), print its path
#   jaeger.sh start       run it in the background on the usual ports
#   jaeger.sh up          as start, but from its published image where Docker can pull that: it has the pages, too
#   jaeger.sh stop        end what start or up started
#   jaeger.sh status      say whether a Jaeger answers
#   jaeger.sh send FILE   hand it spans, a document of OTLP JSON, and print where they can be seen
#
# A Jaeger that answers on the usual ports already, whoever runs it, is used. JAEGER_IMAGE names another image.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

module=$root/e2e/jaeger
run=$cache/jaeger
pidfile=$run/jaeger.pid
log=$run/jaeger.log
url=http://localhost:16686
container=workcell-jaeger # of up

main() {
  case ${1:-} in
    path) binary ;;
    start) lock "$run/lock" && start ;; # of two at once the second finds the Jaeger of the first
    up) lock "$run/lock" && { answers || start_image || start; } ;;
    stop) lock "$run/lock" && stop ;;
    status) status ;;
    send) send "${2:?usage: jaeger.sh send FILE}" ;;
    *) die "usage: jaeger.sh path|start|up|stop|status|send FILE" ;;
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
  local version=$1 file=$2
  say "building Jaeger $version from its Go module: takes some minutes, once"
  build_module "$module" "$file" -ldflags "-s -w -X github.com/jaegertracing/jaeger/internal/version.latestVersion=$version" \
    github.com/jaegertracing/jaeger/cmd/jaeger || die "Jaeger could not be built"
}

start() {
  if answers; then
    say "Jaeger answers on http://localhost:16686"
    return
  fi
  local bin pid deadline
  bin=$(binary)
  deadline=$((SECONDS + 30)) # the build may have taken minutes
  local session=()
  if command -v setsid >/dev/null 2>&1; then session=(setsid); fi
  ${session[@]+"${session[@]}"} nohup "$bin" --config "$module/config.yaml" \
    >"$log" 2>&1 </dev/null 3>&- 4>&- 8>&- 9>&- &
  pid=$!
  echo $pid >"$pidfile"
  until answers; do
    if ! kill -0 $pid 2>/dev/null || [ $SECONDS -ge $deadline ]; then
      tail -n 10 "$log" >&2
      kill $pid 2>/dev/null || true
      rm -f "$pidfile"
      die "Jaeger did not start" "its log is $log; are the ports 4317, 4318, 13133, 16685 and 16686 free?"
    fi
    sleep 0.1
  done
  say "Jaeger runs on http://localhost:16686 (pid $pid)"
}

# start_image runs the published Jaeger. It fails where Docker does not answer, or the
# image cannot be had within two minutes.
start_image() {
  local docker image deadline
  docker=$(working_docker) || return 1
  image=${JAEGER_IMAGE:-docker.io/jaegertracing/jaeger:latest}
  if ! "$docker" image inspect "$image" >/dev/null 2>&1; then
    say "pulling $image"
    bounded 120 "$docker" pull -q "$image" >/dev/null 2>&1 || return 1
  fi
  "$docker" rm -f "$container" >/dev/null 2>&1 || true
  if ! "$docker" run -d --name "$container" -p 127.0.0.1:4317:4317 -p 127.0.0.1:4318:4318 -p 127.0.0.1:16686:16686 "$image" >/dev/null; then
    "$docker" rm -f "$container" >/dev/null 2>&1 || true # made, but a port is taken
    return 1
  fi
  deadline=$((SECONDS + 30))
  until answers; do
    if [ $SECONDS -ge $deadline ]; then
      "$docker" rm -f "$container" >/dev/null 2>&1 || true
      return 1
    fi
    sleep 0.1
  done
  say "Jaeger runs on $url (container $container)"
}

stop() {
  local docker
  if docker=$(working_docker) && [ -n "$("$docker" ps -aq --filter "name=^/$container$")" ]; then
    "$docker" rm -f "$container" >/dev/null
    say "the container $container is removed"
    return
  fi
  end Jaeger "$pidfile" "$run/jaeger-"
}

# send posts spans as OTLP over HTTP, and waits until a query returns their trace. No curl needed.
send() {
  local reply id
  reply=$(bounded 30 bash -c '
    exec 3<>/dev/tcp/127.0.0.1/4318
    printf "POST /v1/traces HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" "$(wc -c <"$1")" >&3
    cat "$1" >&3
    cat <&3' _ "$1" 2>/dev/null) || true
  case $reply in *' 200 '*) ;; *) die "Jaeger did not take the spans: ${reply%%$'\r'*}" "hack/jaeger.sh status" ;; esac
  [[ $(<"$1") =~ \"traceId\":\ *\"([0-9a-f]{32}) ]] || die "$1 holds no trace"
  id=${BASH_REMATCH[1]}
  local deadline=$((SECONDS + 10))
  until [[ $(get "/api/traces/$id") = *'"spanID"'* ]]; do
    [ $SECONDS -lt $deadline ] || die "Jaeger took the spans, but has no trace $id"
    sleep 0.2
  done
  say "in Jaeger: $url/trace/$id"
}

status() {
  answers || die "no Jaeger answers" "hack/jaeger.sh start"
  say "Jaeger answers on http://localhost:16686"
}

# answers: the query API talks and OTLP over HTTP is open. No curl needed.
answers() {
  case $(get /api/services) in *' 200 '*'"data"'*) return 0 ;; esac
  return 1
}

# get PATH: what the query API answers, and nothing when OTLP over HTTP is closed.
get() {
  bounded 3 bash -c '
    exec 3<>/dev/tcp/127.0.0.1/16686 4<>/dev/tcp/127.0.0.1/4318
    printf "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n" "$1" >&3
    cat <&3' _ "$1" 2>/dev/null || true
}

main "$@"
