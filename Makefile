# Thin targets; the work is done by the scripts in hack/.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help demo demo-code demo-cli test engine gvisor images agents contract jaeger cluster cluster-down test-cluster build guest bench soak lint fuzz cross image release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## three agents fix a bug in one sandbox, and their trace; BACKEND=docker|containerd installs that engine
	@hack/demo.sh

demo-code: ## a program in a sandbox without a network calls tools of the host, and asks before it pays
	@DEMO=code hack/demo.sh

demo-cli: ## a CLI coding agent in a sandbox without network and key fixes a bug; needs an engine, builds its image
	@DEMO=cli hack/demo.sh

test: ## every check and every test; sets everything up
	@hack/test.sh

engine: ## make sure that Docker, and containerd and gVisor where they can be had, are there
	@hack/engine.sh

gvisor: engine images ## the suites of drivers, sessions, promises and host tools, with every sandbox on gVisor
	@hack/gvisor.sh test

images: engine ## build the test images and load them into the engines
	@hack/images.sh

agents: engine ## build the images of the CLI coding agents and load them into the engines
	@hack/images.sh -agents

contract: engine ## try the drivers of the CLI coding agents with their newest versions; warns, and breaks nothing
	@hack/agents-contract.sh $(AGENTS)

jaeger: ## build Jaeger from its Go module, once
	@hack/jaeger.sh path

cluster: engine ## build a Kubernetes from its Go modules, once, start it here, print the path of its kubeconfig
	@hack/cluster.sh up

cluster-down: ## end what cluster started
	@hack/cluster.sh down

test-cluster: cluster ## the suites of drivers, faults, sessions, promises and of what is installed on that Kubernetes
	@hack/cluster.sh test

build: ## bin/workcell
	@hack/build.sh

guest: ## rebuild the embedded guest binaries
	@hack/build-guest.sh

bench: engine images ## measure, print a table, write e2e/bench/out/latest.json
	@hack/bench.sh

soak: ## the long form of the fault tests, for SOAK (default 10m): injected, lost and left of each fault
	@hack/soak.sh

lint: ## sizes of packages beside their bounds, and golangci-lint
	@hack/lint.sh

fuzz: ## every fuzz test for FUZZTIME (default 10s) each
	@hack/fuzz.sh

cross: ## build for the other systems and architectures
	@hack/cross.sh

image: ## the image of the command for amd64 and arm64, with bills of materials, in dist/image
	@go run ./hack/images -version "$$(git describe --tags --always --dirty)" -created "$$(git log -1 --format=%ct)" dist/image

release: ## everything of a release in dist/, nothing published
	@hack/release.sh snapshot

clean: ## remove what was built in this folder; caches and images stay
	rm -rf bin dist e2e/bench/out
