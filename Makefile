# `make` lists the targets. Rust comes by rustup (the version is pinned in rust-toolchain.toml),
# everything else by scripts/install-deps.

export PATH := $(PATH):$(HOME)/.cargo/bin
PREFIX ?= /usr/local
CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help demo build test test-ci test-vm test-long test-cluster bench book lint install dist clean build-deps

help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | expand -t 14

demo: build-deps ## Record a busy redis for half a minute and show which of its memory is hot.
	@scripts/install-deps demo
	$(CARGO) build --profile demo --no-default-features -p isotherm
	@scripts/demo

build: build-deps ## Build the isotherm command: target/release/isotherm.
	$(CARGO) build --release -p isotherm

test: build-deps ## Before a commit: lint, unit, property, command line, first tests of this kernel, one boot of each VM kernel.
	@scripts/install-deps test || echo "What needs these will be skipped."
	@scripts/run-tests

test-ci: build-deps ## Run CI's tests: those of `make test`, the virtual machines, an eighth of the long tests, and long tests of changed code.
	@scripts/install-deps test || echo "What needs these will be skipped."
	@scripts/run-tests --ci

test-vm: build-deps ## Every scenario in virtual machines of Debian's kernels.
	@scripts/install-deps test || echo "What needs these will be skipped."
	@scripts/run-tests --vm

test-long: build-deps ## Everything, with the tests that take longer and a short run of the fuzzers.
	@scripts/install-deps test dist dist-test cluster || echo "What needs these will be skipped."
	@scripts/run-tests --long

test-cluster: build-deps ## A Kubernetes of one node with our manifests (builds Kubernetes, once: ten minutes).
	@scripts/install-deps cluster || echo "What needs these will be skipped."
	@tests/cluster/run.sh --long

bench: build-deps ## Measure cost and speed, and compare with other tools.
	@scripts/install-deps demo test || echo "What needs these will be skipped."
	$(CARGO) bench -p isotherm-bench --bench aggregate --bench schemes
	$(CARGO) run --release -p isotherm-bench

book: build-deps ## Build the documentation as a book: target/book/html/index.html (installs mdBook, once).
	@scripts/book

lint: build-deps ## Formatting, clippy, the rules of the house (xtask tidy), licences (cargo deny, where it is there).
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p isotherm --no-default-features -- -D warnings
	$(CARGO) run -q --bin xtask -- tidy
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --offline check licenses bans sources; \
	else echo "SKIP cargo deny: it is not installed (cargo install --locked cargo-deny)"; fi

install: build ## Install the command, its completions, man pages and systemd unit under PREFIX (/usr/local).
	scripts/install-tree target/release/isotherm $(DESTDIR)$(PREFIX) $(PREFIX)

dist: build-deps ## Into dist/: the static command, its tarball and Debian package, wheels (x86-64 and arm64; no wheel of the command for arm64).
	@scripts/install-deps dist
	@scripts/dist

clean: ## Remove what was built.
	$(CARGO) clean

build-deps:
	@scripts/install-deps build
