#!/usr/bin/env bash
# A PostgreSQL for the tests: a private cluster of Debian's package in a folder
# of its own, on a Unix socket that only its user and root can reach. It leaves
# the system's clusters alone, and never runs as root.
#
#   postgres.sh start    install what is missing, run it in the background, print its URL
#   postgres.sh stop     end what start started
#   postgres.sh status   say whether it answers
#   postgres.sh path     print the folder of PostgreSQL's programs
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ "$(id -u)" = 0 ]; then
  base=/var/lib/workcell/postgres
  socket=/run/workcell/postgres
else
  base=$cache/postgres
  socket=${XDG_RUNTIME_DIR:-$cache}/workcell-pg # short: paths of sockets are limited
fi
user=postgres

main() {
  case ${1:-} in
    start) start ;;
    stop) stop ;;
    status) status ;;
    path) programs ;;
    *) die "usage: postgres.sh start|stop|status|path" ;;
  esac
}

# programs prints the folder of the newest server that is installed, which is
# installed first where needed: Debian has it beside the commands on the PATH.
programs() {
  if ! newest >/dev/null && is_debian; then need_packages "tests of state in PostgreSQL" postgresql; fi
  newest || die "PostgreSQL's server is not installed" "install it so that initdb and pg_ctl are on the PATH"
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

# as_user COMMAND...: PostgreSQL refuses root.
as_user() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH="$PATH" LC_ALL=C.UTF-8 "$@")
  else
    LC_ALL=C.UTF-8 "$@"
  fi
}

url() { printf 'postgres://%s@/postgres?host=%s\n' "$user" "$socket"; }

answers() { [ -S "$socket/.s.PGSQL.5432" ] && as_user "$(programs)/pg_isready" -q -h "$socket"; }

start() {
  local bin
  bin=$(programs)
  lock "$cache/postgres.lock"
  if answers; then
    url
    return
  fi
  if [ "$(id -u)" = 0 ]; then
    install -d -m 0755 "${base%/*}" "${socket%/*}"
    install -d -m 0700 -o "$user" -g "$user" "$base" "$socket"
  else
    install -d -m 0700 "$base" "$socket"
  fi
  local data=$base/data
  if ! as_user test -f "$data/PG_VERSION" || [ "$(as_user cat "$data/PG_VERSION")" != "$(version "$bin")" ]; then
    as_user rm -rf "$data"
    say "making a PostgreSQL cluster in $data"
    as_user "$bin/initdb" --no-sync -D "$data" -U "$user" -A trust -E UTF8 --locale=C.UTF-8 >&2
  fi
  # No descriptor of ours may live on in the server, the lock least of all.
  as_user "$bin/pg_ctl" start -s -w -t 120 -D "$data" -l "$base/log" \
    -o "-c listen_addresses= -k $socket -c max_connections=200" >&2 </dev/null 3>&- 8>&- 9>&- ||
    die "PostgreSQL did not start" "its log is $base/log"
  url
}

version() { "$1/initdb" --version | sed 's/.*) \([0-9]*\).*/\1/'; }

stop() {
  if ! answers; then
    say "no PostgreSQL of ours runs"
    return
  fi
  as_user "$(programs)/pg_ctl" stop -s -w -m fast -D "$base/data" >&2
  say "PostgreSQL ended"
}

status() {
  answers || die "no PostgreSQL of ours answers" "hack/postgres.sh start"
  say "PostgreSQL answers on $socket"
}

main "$@"
