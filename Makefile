# Thin targets; the work is done by the scripts in hack/.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help demo test engine images jaeger build guest bench soak lint fuzz cross release clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## three agents fix a bug in one sandbox, and their trace; BACKEND=docker|containerd installs that engine
	@hack/demo.sh

test: ## every check and every test; sets everything up
	@hack/test.sh

engine: ## make sure that Docker, and containerd where it can be had, answer
	@hack/engine.sh

images: engine ## build the test images and load them into the engines
	@hack/images.sh

jaeger: ## build Jaeger from its Go module, once
	@hack/jaeger.sh path

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

release: ## everything of a release in dist/, nothing published
	@hack/release.sh snapshot

clean: ## remove what was built in this folder; caches and images stay
	rm -rf bin dist e2e/bench/out
