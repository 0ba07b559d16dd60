#!/usr/bin/env bash
# Tries the drivers of the CLI coding agents with the newest versions that npm
# has: the real CLIs, against a model of the tests. Warns of what does not work
# any more, and breaks nothing: it exits with 0 whatever it finds. Their images
# stay, under the tags of their versions.
#
#   hack/agents-contract.sh [NAME...]   NAME: claude, codex, opencode, gemini; all when none is named
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_go
use_docker_context
engine_answers || die "Docker does not answer" "make engine"
cd "$root"
only=$(IFS=, && printf '%s' "$*")
built=$(ENGINES=docker hack/images.sh -agents -newest -only "$only" | awk '$2 ~ /^workcell\// {print $2}')
wrong=0
for image in $built; do
  name=${image#workcell/} version=${image##*:}
  name=${name%%:*}
  log=$(mktemp)
  if env "WORKCELL_EXECUTOR_IMAGE_${name^^}=$image" go test -count=1 ./e2e/executor \
    -run "^Test(Real|Shell|Resume|LostSession|Skills|Schema|Refused|Broken|Thinking|Safety|MaxTurns|Faults|Walls|HostileRepository|Cancelled|ACPRecorded)\$/^$name\$" >"$log" 2>&1; then
    say "ok       $name $version"
  else
    wrong=$((wrong + 1))
    say "WARNING  $name $version is not what its driver was written for:"
    grep -E '^ *(--- FAIL|[a-z_]+_test.go)|^(FAIL|panic)' "$log" | cut -c1-300 | head -n 20 >&2
  fi
  rm -f "$log"
done
[ -n "$built" ] || say "WARNING  no image could be built"
say "$wrong of $(wc -w <<<"$built") agents need a look at their drivers"
