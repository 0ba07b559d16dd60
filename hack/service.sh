#!/usr/bin/env bash
# Runs a service that tests, benchmarks, or the demo need, in the background.
#
#   service.sh NAME start     start it unless it answers; the last line of the output is its address
#   service.sh NAME stop      end what start started
#   service.sh NAME status    print its address, or fail
#
# NAME is one of
#   jaeger        Jaeger on its usual ports. If a Jaeger answers there, that one is used.
#   containerd2   a current containerd: Debian has 1.6
#   gvisor        a Docker Engine whose default runtime is gVisor
#   postgres      a PostgreSQL cluster on a Unix socket, which only its user and root can reach
# All but Jaeger have their own folders and sockets, and leave the system's services alone.
#
#   service.sh jaeger up           as start, but from its published image, which has web pages, if Docker can pull it within two
#                                  minutes; JAEGER_IMAGE names another image
#   service.sh jaeger send FILE    send spans, a document of OTLP JSON, and print where they can be seen
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

service=${1:-}
data=/var/lib/workcell/$service
state=/run/workcell/$service # short: paths of sockets are limited
pidfile=$state/pid
log=$data/log
name="" address="" word="" # for people, for clients, and in its command line
signal=TERM
command=() # prepare_NAME sets it

main() {
  case $service in jaeger | containerd2 | gvisor | postgres) "describe_$service" ;; *) usage ;; esac
  case ${2:-} in
    start | stop | status) "$2" ;;
    up | send) if [ "$service" = jaeger ]; then "$2" "${@:3}"; else usage; fi ;;
    *) usage ;;
  esac
}

usage() { die "usage: service.sh jaeger|containerd2|gvisor|postgres start|stop|status" "the head of hack/service.sh has more"; }

start() {
  lock "$cache/$service.lock" # of two at once the second finds the service of the first
  if ! "answers_$service"; then
    if runs "$pidfile" "$word"; then die "our $name runs and does not answer (pid $(cat "$pidfile"))" "its log is $log"; fi
    "prepare_$service" # may build it first, which takes minutes
    say "starting $name"
    start_service "$name" "$log" "$pidfile" "answers_$service" "${command[@]}"
  fi
  printf '%s\n' "$address"
}

stop() {
  if [ "$service" = jaeger ] && remove_container; then return; fi
  end "$name" "$pidfile" "$word" "$signal"
  if [ "$service" = gvisor ]; then bridge_gone; fi
}

status() {
  "answers_$service" || die "$name does not answer" "hack/service.sh $service start"
  printf '%s\n' "$address"
}

need_root() { [ "$(id -u)" = 0 ] || die "$name needs root"; }

describe_containerd2() { name="containerd 2" address=$state/containerd.sock word=$data/config.toml; }
answers_containerd2() { containerd_answers "$address"; }

prepare_containerd2() {
  need_root
  local programs
  programs=$("$root/hack/tool.sh" containerd2)
  install -d -m 0700 "$state" "$data"
  cat >"$data/config.toml" <<END
version = 3
root = "$data/root"
state = "$state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]

[grpc]
address = "$address"
END
  command=(env "PATH=$programs:$PATH" "$programs/containerd" --config "$data/config.toml") # its shim is found before the system's
}

# It shares the system's containerd, and nothing else.
describe_gvisor() { name="gVisor's Docker Engine" address=unix://$state/docker.sock word=$address; }
answers_gvisor() { DOCKER_HOST=$address engine_answers; }

prepare_gvisor() {
  need_root
  local runsc bridge=workcell-gv
  runsc=$("$root/hack/gvisor.sh" path)
  if ! command -v ip >/dev/null 2>&1; then need_packages "gVisor's engine" iproute2; fi
  install -d -m 0700 "$state" "$data"
  printf "{}" >"$data/none.json"
  # Without a bridge of its own, dockerd would delete docker0, which the other engine uses. Nothing is connected to this one.
  at_exit '[ "$code" -eq 0 ] || bridge_gone'
  ip link add "$bridge" type bridge 2>/dev/null || ip link show "$bridge" >/dev/null
  ip address replace 172.30.254.1/24 dev "$bridge"
  rm -f "$state/docker.pid"
  command=(dockerd --host "$address" --pidfile "$state/docker.pid" --data-root "$data/root" --exec-root "$state/exec"
    --containerd "$containerd_socket" --containerd-namespace gvisor-moby --containerd-plugins-namespace gvisor-plugins.moby
    --bridge "$bridge" --iptables=false --config-file "$data/none.json" --add-runtime "runsc=$runsc" --default-runtime runsc)
}

bridge_gone() { ip link delete workcell-gv 2>/dev/null || true; } # it may be gone

describe_postgres() {
  name=PostgreSQL signal=INT # which does not wait for clients
  if [ "$(id -u)" != 0 ]; then data=$cache/postgres state=${XDG_RUNTIME_DIR:-$cache}/workcell-pg; fi
  pidfile=${state%/*}/postgres.pid log=${data%/*}/postgres.log word=$data/data # its user's folders are not root's to write to
  address="postgres://postgres@/postgres?host=$state"
}

answers_postgres() { [ -S "$state/.s.PGSQL.5432" ] && as_postgres "$("$root/hack/tool.sh" postgres)/pg_isready" -q -h "$state"; }

# as_postgres COMMAND...: PostgreSQL refuses root.
as_postgres() {
  unprivileged
  (cd / && "${command[@]}" "$@")
}

unprivileged() {
  command=(env LC_ALL=C.UTF-8)
  if [ "$(id -u)" = 0 ]; then command=(setpriv --reuid postgres --regid postgres --init-groups env -i "PATH=$PATH" LC_ALL=C.UTF-8); fi
}

prepare_postgres() {
  local programs version
  programs=$("$root/hack/tool.sh" postgres)
  version=$("$programs/initdb" --version | sed 's/.*) \([0-9]*\).*/\1/')
  if [ "$(id -u)" = 0 ]; then
    install -d -m 0755 "${data%/*}" "${state%/*}"
    set -- -o postgres -g postgres
  fi
  install -d -m 0700 "$@" "$data" "$state"
  if [ "$(cat "$word/PG_VERSION" 2>/dev/null)" != "$version" ]; then
    rm -rf "$word"
    say "making a PostgreSQL cluster in $word"
    as_postgres "$programs/initdb" --no-sync -D "$word" -U postgres -A trust -E UTF8 --locale=C.UTF-8 >/dev/null
  fi
  unprivileged
  command+=("$programs/postgres" -D "$word" -c listen_addresses= -k "$state" -c max_connections=200)
  cd /
}

describe_jaeger() {
  name=Jaeger address=http://localhost:16686
  data=$cache/jaeger state=$cache/jaeger pidfile=$cache/jaeger/jaeger.pid log=$cache/jaeger/jaeger.log word=$cache/jaeger/jaeger-
}

# The query API answers, and OTLP over HTTP is open.
answers_jaeger() { [[ $(query /api/services) == *' 200 '*'"data"'* ]]; }

prepare_jaeger() {
  local program
  program=$("$root/hack/tool.sh" jaeger)
  command=("$program" --config "$root/e2e/jaeger/config.yaml")
}

# query PATH prints the reply of the query API, and nothing if OTLP over HTTP is closed. No curl needed.
query() {
  bounded 3 bash -c '
    exec 3<>/dev/tcp/127.0.0.1/16686 4<>/dev/tcp/127.0.0.1/4318
    printf "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n" "$1" >&3
    exec cat <&3' _ "$1" 2>/dev/null || true
}

container=workcell-jaeger

up() {
  lock "$cache/$service.lock"
  if answers_jaeger || start_container; then printf '%s\n' "$address"; else start; fi
}

start_container() {
  local docker image deadline
  docker=$(working_docker) || return 1
  image=${JAEGER_IMAGE:-docker.io/jaegertracing/jaeger:latest}
  if ! "$docker" image inspect "$image" >/dev/null 2>&1; then
    say "pulling $image"
    bounded 120 "$docker" pull -q "$image" >/dev/null 2>&1 || return 1
  fi
  "$docker" rm -f "$container" >/dev/null 2>&1 || true
  at_exit '[ "$code" -eq 0 ] || remove_container'
  deadline=$((SECONDS + 30))
  if "$docker" run -d --name "$container" -p 127.0.0.1:4317:4317 -p 127.0.0.1:4318:4318 -p 127.0.0.1:16686:16686 "$image" >/dev/null; then
    while [ $SECONDS -lt $deadline ]; do
      if answers_jaeger; then return; fi
      sleep 0.1
    done
  fi
  remove_container || true # it does not answer, or a port is taken
  return 1
}

# remove_container fails if there is none.
remove_container() {
  local docker
  docker=$(working_docker) && [ -n "$("$docker" ps -aq --filter "name=^/$container$")" ] || return 1
  "$docker" rm -f "$container" >/dev/null
  say "Jaeger's container ended"
}

# send posts spans as OTLP over HTTP, and waits until a query returns their trace.
send() {
  local reply id deadline=$((SECONDS + 10)) file=${1:?usage: service.sh jaeger send FILE}
  reply=$(bounded 30 bash -c '
    exec 3<>/dev/tcp/127.0.0.1/4318
    printf "POST /v1/traces HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" "$(wc -c <"$1")" >&3
    cat "$1" >&3
    exec cat <&3' _ "$file" 2>/dev/null) || true
  [[ $reply == *' 200 '* ]] || die "Jaeger refused the spans: ${reply%%$'\r'*}" "hack/service.sh jaeger status"
  [[ $(<"$file") =~ \"traceId\":\ *\"([0-9a-f]{32}) ]] || die "$file has no trace"
  id=${BASH_REMATCH[1]}
  until [[ $(query "/api/traces/$id") == *'"spanID"'* ]]; do
    [ $SECONDS -lt $deadline ] || die "Jaeger took the spans, but does not return trace $id"
    sleep 0.2
  done
  say "in Jaeger: $address/trace/$id"
}

supervise main "$@"
