# Belljar. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PREFIX  ?= /usr/local
DESTDIR ?=
BIN     := $(CURDIR)/bin
# Few jobs: one link of gVisor takes more than a gigabyte of memory.
JOBS    ?= 2

# The three programs are static: gVisor's boot role runs where no shared
# library can be found. Every go command here uses the same settings, so that
# the build cache holds gVisor once.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false

STAMP    = $(shell tools/stamp)
LDFLAGS  = -s -w -X github.com/belljar-sh/belljar/internal/build.Stamp=$(STAMP)
PROGRAMS := belljar belljar-engine belljar-guest

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the three programs into bin/ (the first build of gVisor takes minutes)
	@mkdir -p $(BIN)
	go build -p $(JOBS) -ldflags '$(LDFLAGS)' -o $(BIN)/ $(PROGRAMS:%=./cmd/%)

.PHONY: install
install: build ## install the three programs into PREFIX/bin (PREFIX=/usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 0755 $(PROGRAMS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin

.PHONY: demo
demo: build ## run the examples, one sandbox each, and show what was refused
	go run -p $(JOBS) ./examples --bin $(BIN)

.PHONY: test
test: build ## build and run all tests; what a host cannot run is skipped by name
	BELLJAR_BIN=$(BIN) go test -v -p $(JOBS) -timeout 14m $(TESTFLAGS) ./... 2>&1 | tools/testsummary

.PHONY: check
check: ## formatting, vet, staticcheck, architecture rules, module files, generated code
	@tools/check

.PHONY: race
race: build ## all tests under the race detector (needs a C compiler); the sandboxes' own processes come from bin/
	BELLJAR_BIN=$(BIN) CGO_ENABLED=1 go test -race -p $(JOBS) -timeout 40m ./...

.PHONY: e2e
e2e: build ## end-to-end tests only
	BELLJAR_BIN=$(BIN) go test -p $(JOBS) -count 1 -timeout 20m ./test/... ./cmd/...

FUZZTIME ?= 30s
.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	@grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | while read -r file; do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+)\(.*/\1/p' "$$file"); do \
			echo "fuzz: $$(dirname "$$file") $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")"; \
		done; \
	done

.PHONY: bench
bench: build ## measure what SPECIFICATION.md promises (BENCH=name for one, ARGS=--json)
	go run -p $(JOBS) ./bench --bin $(BIN) $(ARGS) $(BENCH)

.PHONY: doctor
doctor: build ## tell what each boundary needs here and whether it is there
	$(BIN)/belljar doctor

.PHONY: generate
generate: ## write generated code anew
	go generate ./...

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BIN) dist
