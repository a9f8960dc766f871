# Everything a contributor runs. `make` alone lists the targets; CONTRIBUTING.md says when to use which.

SHELL       := /bin/sh
.SHELLFLAGS := -eu -c
MAKEFLAGS   += --no-print-directory --no-builtin-rules
.DEFAULT_GOAL := help

# The workspace modules, and the patterns that name all their packages from here.
MODULES  := . proto sdk/go test
PACKAGES := ./... ./proto/... ./sdk/go/... ./test/...

# Tool modules stand outside the workspace, so that what a linter depends on never decides what Wiggle does.
TOOL_MODULES := tools tools/lint tools/sqlc tools/vuln
BIN          := $(CURDIR)/.build/bin
GOVERSION    := $(shell go env GOVERSION)

# RACE= runs without the race detector, which needs a C compiler. CI repeats and shuffles what a developer may cache.
RACE         ?= -race
TEST_TIMEOUT ?= 10m
TESTFLAGS    ?= $(if $(CI),-count=1 -shuffle=on)
FUZZTIME     ?= 60s
BENCH        ?= .
BENCHCOUNT   ?= 6
BENCHFLAGS   ?=
CRASH_KILLS  ?= 50
N            ?= 1000

# One throwaway PostgreSQL for the command that follows; it is found on the machine or installed. Beside tests under the
# race detector it is built with it too, because then their builds are its builds.
WITH_POSTGRES = go run $(1) ./internal/pgtest/cmd/pgtestd --

# What tests run is thrown away: without what debuggers read it is built in three quarters of the time, the programs that
# tests build themselves included.
LEAN := GOFLAGS="$$(go env GOFLAGS) -gcflags=all=-dwarf=false -ldflags=-w"

# Tests that mostly wait come first, so that others build and run meanwhile.
PATIENT := ./test/trouble ./test/crash ./test/secrets
# A program under the race detector waits a second before it ends, for races of that second; tests end hundreds of them.
export GORACE ?= atexit_sleep_ms=0

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Run

.PHONY: demo
demo: ## Run N=1000 orders over two shards and exit
	@go run ./cmd/wiggle dev --demo $(N) --exit

.PHONY: dev
dev: ## Run everything in one process until Ctrl-C
	@go run ./cmd/wiggle dev

.PHONY: build
build: ## Build the commands into .build/bin
	@mkdir -p $(BIN)
	@go build -o $(BIN)/ ./cmd/...

##@ Test

.PHONY: test
test: deps ## Run every test of every module with the race detector, on a throwaway PostgreSQL
	@$(LEAN) $(call WITH_POSTGRES,$(RACE)) go test $(RACE) -vet=off -timeout $(TEST_TIMEOUT) $(TESTFLAGS) $(PATIENT) $(PACKAGES)

.PHONY: test-short
test-short: ## Run the quick tests: no race detector, nothing that kills processes
	@$(call WITH_POSTGRES) go test -short -timeout $(TEST_TIMEOUT) $(TESTFLAGS) \
		$$(go list $(PACKAGES) | grep -v -e '/test/crash$$' -e '/test/trouble$$' -e '/test/secrets$$')

.PHONY: test-pgbouncer
test-pgbouncer: deps ## Run what needs PgBouncer, which is installed if it is missing
	@sh scripts/ensure-deps pgbouncer
	@$(LEAN) $(call WITH_POSTGRES,$(RACE)) go test $(RACE) -tags pgbouncer -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -run PgBouncer ./pkg/postgres

.PHONY: readme
readme: $(BIN)/.tools ## Do what the README, docs/accounts.md and docs/upgrades.md say, and see that it comes out so
	@BUF=$(BIN)/buf go test -count=1 ./test/readme

.PHONY: test-clients
test-clients: deps $(BIN)/.tools ## Run the client in TypeScript and the commands of docs/clients.md; Node, curl and jq are installed if missing
	@for program in node curl jq; do sh scripts/ensure-deps $$program; done
	@$(LEAN) go test $(RACE) -tags clients -timeout $(TEST_TIMEOUT) $(TESTFLAGS) ./test/clients

.PHONY: conformance
conformance: ## Run the conformance suite in every configuration, without the race detector
	@$(call WITH_POSTGRES) sh scripts/conformance

.PHONY: crash
crash: ## Kill processes and databases CRASH_KILLS=50 times under load (the long form)
	@WIGGLE_CRASH_KILLS=$(CRASH_KILLS) go test -count=1 -timeout 60m -run '^TestCrash' ./test/...

.PHONY: trouble
trouble: ## Kill the leader ten times, take NATS away for a minute, read 100 000 times behind a lagging replica (the long forms)
	@WIGGLE_TROUBLE_LEADER_KILLS=10 WIGGLE_TROUBLE_NATS_SECONDS=60 go test -count=1 -timeout 30m -v \
		-run 'TestLeaderKilled|TestNATSAway|TestFollowersDown' ./test/trouble
	@WIGGLE_TEST_REPLICA_TRIES=100000 go test -count=1 -timeout 30m -run TestReplicas ./services/instances

.PHONY: compose-test
compose-test: ## Run the stack of deploy/compose in containers and hold it to what it says (needs Docker)
	@sh scripts/compose-test

.PHONY: fuzz
fuzz: ## Fuzz every Fuzz function of every module for FUZZTIME=60s each
	@FUZZTIME=$(FUZZTIME) sh scripts/fuzz

.PHONY: bench
bench: $(BIN)/.tools ## Run the micro benchmarks and compare with the commit before
	@$(call WITH_POSTGRES) env BENCH='$(BENCH)' BENCHCOUNT=$(BENCHCOUNT) BENCHSTAT=$(BIN)/benchstat sh scripts/bench

# The scenarios of wiggle bench. A program that was built, not go run, which would be one process more.
SCENARIOS := $(addprefix bench-,limit chain one light fanout chain400 timers idle backlog payload overload soak)
.PHONY: $(SCENARIOS)
bench-chain: ## Run wiggle bench chain with BENCHFLAGS; also bench-one, bench-light, ... (docs/performance.md)
$(SCENARIOS): bench-%:
	@mkdir -p $(BIN) && go build -o $(BIN)/wiggle ./cmd/wiggle
	@$(BIN)/wiggle bench $* $(BENCHFLAGS)

##@ Check

.PHONY: lint
lint: $(BIN)/.tools $(BIN)/.lint .build/protovalidate/.copied ## Run golangci-lint, buf lint and buf breaking
	@$(BIN)/golangci-lint run $(PACKAGES)
	@$(BIN)/buf lint
	@BUF=$(BIN)/buf sh scripts/buf-breaking

.PHONY: fmt
fmt: $(BIN)/.lint ## Format Go files
	@$(BIN)/golangci-lint fmt $(MODULES)

.PHONY: generate
generate: $(BIN)/.tools $(BIN)/.sqlc .build/protovalidate/.copied ## Generate Go from protos and SQL, and pages from the code
	@PATH=$(BIN):$$PATH sh scripts/generate

.PHONY: check-generated
check-generated: generate ## Fail if generating again makes a difference
	@sh scripts/check-generated

.PHONY: check-modules
check-modules: ## Build and vet each module with and without the workspace
	@sh scripts/check-modules $(MODULES)

.PHONY: vulncheck
vulncheck: ## Look up known vulnerabilities of what the code calls; needs the internet
	@mkdir -p $(BIN) && cd tools/vuln && GOWORK=off CGO_ENABLED=0 go build -ldflags='-s -w' -o $(BIN)/ tool
	@$(BIN)/govulncheck $(PACKAGES)

.PHONY: check
check: lint check-generated check-modules test conformance test-pgbouncer test-clients readme ## Run all of what CI runs

##@ Maintain

.PHONY: deps
deps: ## Install the C compiler that the race detector needs, if it is missing
	@$(if $(RACE),sh scripts/ensure-deps gcc)

.PHONY: tools
tools: $(BIN)/.tools $(BIN)/.lint $(BIN)/.sqlc ## Build the tools into .build/bin

.PHONY: tidy
tidy: ## Run go mod tidy in each module and bring the workspace to one set of versions
	@go work sync
	@for module in $(MODULES) $(TOOL_MODULES); do \
		echo "go mod tidy: $$module"; GOWORK=off go -C $$module mod tidy; done

.PHONY: clean
clean: ## Remove what was built (not the data of wiggle dev)
	@rm -rf .build

# Each stamp is older than its module's go.mod only when the tools are; a new Go builds them anew, because
# golangci-lint must not be older than the Go it reads.
GO_STAMP := .build/go-$(GOVERSION)

$(GO_STAMP):
	@mkdir -p .build && rm -f .build/go-go* && touch $@

$(BIN)/.tools: tools/go.mod tools/go.sum $(GO_STAMP)
	@echo "building buf, its plugins, grpcurl and benchstat"
	@mkdir -p $(BIN) && cd tools && GOWORK=off CGO_ENABLED=0 go build -ldflags='-s -w' -o $(BIN)/ tool && touch $@

$(BIN)/.lint: tools/lint/go.mod tools/lint/go.sum $(GO_STAMP)
	@echo "building golangci-lint (minutes the first time)"
	@mkdir -p $(BIN) && cd tools/lint && GOWORK=off CGO_ENABLED=0 go build -ldflags='-s -w' -o $(BIN)/ tool && touch $@

# Without cgo sqlc parses SQL by PostgreSQL's parser compiled to WebAssembly: no C compiler, and the same answer everywhere.
$(BIN)/.sqlc: tools/sqlc/go.mod tools/sqlc/go.sum $(GO_STAMP)
	@echo "building sqlc"
	@mkdir -p $(BIN) && cd tools/sqlc && GOWORK=off CGO_ENABLED=0 go build -ldflags='-s -w' -o $(BIN)/ tool && touch $@

.build/protovalidate/.copied: scripts/copy-protovalidate
	@sh scripts/copy-protovalidate && touch $@
