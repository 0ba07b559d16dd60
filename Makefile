# Thin targets; the work is done by the scripts in hack/.
SHELL := /bin/bash
.DEFAULT_GOAL := help
lib = set -euo pipefail; . hack/lib.sh;

.PHONY: help demo demo-code demo-cli test test-all engine images agents contract jaeger cluster cluster-down build guest manifests trace-picture page-pictures bench soak lint fuzz image release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## run three agents that fix a bug in one sandbox, and show the trace; BACKEND=docker|containerd installs the engine
	@hack/demo.sh

demo-code: ## run a program that calls host tools from a sandbox without network access, with approval
	@DEMO=code hack/demo.sh

demo-cli: ## build the image of a CLI coding agent and let it fix a bug in a sandbox without network access or key
	@DEMO=cli hack/demo.sh

test: ## run the fast tier: checks, unit tests, and the suites on Docker, containerd, and local (Linux, as root)
	@hack/test.sh

test-all: ## run make test and every area
	@hack/test.sh all

test-engines: ## the rest on Docker and containerd: faults, watching, ports, interpreters
test-containerd2: ## drivers and sessions on a current containerd
test-gvisor: ## the suites with every sandbox on gVisor, on a separate engine
test-kubernetes: ## the driver, sessions, the chart and the manifests on a cluster that is built from Go modules
test-postgres: ## stores, journals, the queue, workers, failover
test-agents: ## coding agents, MCP clients and servers from npm, a browser
test-page: ## workcell ui in a browser, on SQLite and PostgreSQL
test-network: ## pip, npm, git and apt through the egress proxy; environments and caches
test-systems: ## floods and bounds of unit tests, other systems, lint, fuzzing, release
test-newcomer: ## the README from top to bottom, the demo, Jaeger
test-engines test-containerd2 test-gvisor test-kubernetes test-postgres test-agents test-page test-network test-systems test-newcomer:
	@hack/test.sh $(@:test-%=%)

engine: ## install and start Docker and, if available, containerd
	@hack/engine.sh

images: engine ## build the test images and load them into the engines
	@hack/images.sh

agents: engine ## build the images of the CLI coding agents and load them into the engines
	@hack/images.sh -agents

contract: engine ## try the coding-agent drivers (AGENTS, or all) with the newest agent versions; prints warnings only
	@$(lib) contract() { \
	  use_docker_context; only=$${AGENTS:-} log=$$(mktemp); at_exit "rm -f $$log"; \
	  ENGINES=docker,containerd hack/images.sh -agents -newest -only "$${only// /,}" | awk '$$2 ~ /^workcell\// {print $$2}' | sort -u | while read -r image; do \
	    name=$${image#workcell/}; name=$${name%%:*}; \
	    if env "WORKCELL_EXECUTOR_IMAGE_$${name^^}=$$image" go test -count=1 ./e2e/executor -run "^Test(Real|Told|Resume|LostSession|Skills|Schema|MaxTurns|Faults|Walls|HostileRepository|ACPRecorded|Containerd|Local)\$$/^$$name\$$" >"$$log" 2>&1 </dev/null; then \
	      say "ok       $$image"; \
	    else \
	      say "WARNING  the driver of $$name does not work with $$image:"; \
	      grep -E '^ *(--- FAIL|[a-z_]+_test.go)|^(FAIL|panic)' "$$log" | cut -c1-300 | head -n 20 >&2 || true; \
	    fi; \
	  done; \
	}; supervise contract

jaeger: ## build Jaeger from its Go module
	@hack/tool.sh jaeger

cluster: ## build Kubernetes from its Go modules, start it on this host, and print the path of its kubeconfig
	@hack/cluster.sh up

cluster-down: ## stop the cluster of make cluster
	@hack/cluster.sh down

build: ## build bin/workcell with the version of the checkout
	@$(lib) need_go; version=$$(git describe --tags --always --dirty 2>/dev/null) || true; \
	GOWORK=off CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$$version" -o bin/workcell ./cmd/workcell; \
	say "bin/workcell $${version:-(no version: not a checkout)}"

guest: ## rebuild the embedded guest binaries
	@hack/build-guest.sh

manifests: ## rebuild deploy/kubernetes/workcell.yaml from the Helm chart
	@$(lib) render() { \
	  local helm; helm=$$(hack/tool.sh helm); new=$$(mktemp); at_exit "rm -f $$new"; \
	  echo "# Made from deploy/helm/workcell by make manifests: kubectl apply -n workcell -f it." >"$$new"; \
	  "$$helm" template workcell --namespace workcell deploy/helm/workcell | grep -v -e 'managed-by: Helm' -e helm.sh/chart >>"$$new"; cat "$$new" >deploy/kubernetes/workcell.yaml; \
	}; supervise render

trace-picture: ## draw docs/trace.svg from a run of the example on the local backend with recorded answers
	@$(lib) draw() { \
	  export WORKCELL_STATE_DIR=$$(mktemp -d) WORKCELL_REAPER=off; at_exit "rm -rf $$WORKCELL_STATE_DIR"; \
	  go build -trimpath -o "$$WORKCELL_STATE_DIR/workcell" ./cmd/workcell; \
	  run=$$("$$WORKCELL_STATE_DIR/workcell" run examples/workflows/debug-and-fix.yaml --backend local -o json \
	    --model scripted/examples/workflows/scripts/debug-and-fix.yaml | sed -n 's/.*"run_id": "\(run_[a-z2-7]*\)".*/\1/p'); \
	  "$$WORKCELL_STATE_DIR/workcell" runs trace "$$run" -o svg >"$$WORKCELL_STATE_DIR/trace.svg"; cat "$$WORKCELL_STATE_DIR/trace.svg" >docs/trace.svg; \
	  say "docs/trace.svg is the trace of $$run"; \
	}; supervise draw

page-pictures: ## make docs/ui-*.png from runs of the examples on the local backend with recorded answers
	@hack/page-pictures.sh

bench: images ## run the benchmarks, print a table, and write e2e/bench/out/latest.json
	@hack/bench.sh

soak: images ## fault tests (TESTS, or all) and killed workers for SOAK (default 10m): injected, lost and left of each fault
	@$(lib) soak() { \
	  use_docker_context; PATH=$$(dirname "$$(working_docker)"):$$PATH; \
	  command -v ip >/dev/null || need_packages "networks of the workers' tests" iproute2; \
	  export TMPDIR=$$(mktemp -d) FAULTS_SOAK=$${SOAK:-10m} WORKERS_SOAK=$${SOAK:-10m}; at_exit "rm -rf $$TMPDIR"; \
	  go test -race -count=1 -timeout 0 -parallel 16 -v -run "$${TESTS:-.}" ./e2e/faults | grep -v '^ *=== '; \
	  go test -race -count=1 -timeout 0 -v -run "$${TESTS:-TestKilledWorkers}" ./e2e/workers | grep -v '^ *=== '; \
	}; supervise soak

lint: ## check sizes of packages, prose, Go, scripts, and GitHub workflows
	@hack/lint.sh
	@"$$(hack/tool.sh shellcheck)" hack/*.sh .ci/run .ci/debian
	@"$$(hack/tool.sh actionlint)"

# Before Go 1.27, -fuzztime may fail when the time is over (https://go.dev/issue/75804). An interrupt does not.
fuzz: ## run each fuzz test for FUZZTIME (default 10s)
	@$(lib) fuzz() { \
	  dir=$$(mktemp -d); at_exit "rm -rf $$dir"; \
	  grep -rEo --include='*_test.go' --exclude-dir=.git '^func Fuzz[A-Za-z0-9_]+' . | sed 's,/[^/]*:func , ,' | sort | while read -r package name; do \
	    say "== $$package $$name"; \
	    go test -c -fuzz "^$$name\$$" -o "$$dir/fuzz" "$$package" </dev/null; \
	    (cd "$$package" && timeout --foreground --preserve-status -s INT -k 60 "$${FUZZTIME:-10s}" \
	      "$$dir/fuzz" -test.run '^$$' -test.fuzz "^$$name\$$" -test.fuzzcachedir "$$cache/fuzz/$$package"); \
	  done; \
	}; supervise fuzz

image: ## build the command's image for amd64 and arm64 with SBOMs in dist/image
	@go run ./hack/images -version "$$(git describe --tags --always --dirty)" -created "$$(git log -1 --format=%ct)" dist/image

release: ## build all files of a release in dist/ without publishing them
	@hack/release.sh snapshot

clean: ## remove build results in this directory, but not caches and images
	rm -rf bin dist e2e/bench/out
