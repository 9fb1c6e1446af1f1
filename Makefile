# Two commands do everything: `make run` and `make test`. Each installs what it needs into this folder.
# All of it names what cargo has built by this folder.
override export CARGO_TARGET_DIR := $(CURDIR)/target

TRACE ?=
ARGS ?=
VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.ready
SLACKWATER := target/release/slackwater

# A test that hangs must fail, not stall: each of these ends after LIMIT with everything it has started.
LIMIT ?= 25m
define bounded
@echo '$(1)'; timeout --kill-after=10 $(LIMIT) env $(1) & job=$$!; trap "kill $$job; wait $$job" HUP INT TERM; wait $$job || { code=$$?; \
	case $$code in 124|137) echo "hung: the last test named above did not end within $(LIMIT)" >&2;; esac; exit $$code; }
endef

# How long `make soak` runs.
MINUTES ?= 30

# What release packages are built with: a linker for glibc 2.28 (manylinux_2_28), which wheels, containers and Debian
# packages then run with.
PACKAGING := target/packaging
PACKAGED_FOR := x86_64-unknown-linux-gnu
PACKAGED := target/$(PACKAGED_FOR)/release/slackwater
# The licences and the list of what the command is built from, for containers.
MATERIALS := target/package/command
# Features that they are built with, which are none by default: FEATURES=otel.
FEATURES ?=
WITH := $(if $(FEATURES),--features $(FEATURES))
comma := ,
MODULE_WITH := $(if $(FEATURES),--features $(FEATURES)$(comma)pyo3/extension-module)

.PHONY: help run test wheel wheel-mooncake wheel-aarch64 deb static docs bench peers soak test-aarch64 test-deploy lint test-side-by-side test-computing build-tested test-rust test-c test-loom test-miri test-sim test-python c mutants build clean

# Targets share folders, and cargo uses all processors by itself.
.NOTPARALLEL:

help:
	@echo "make run             replay generated chat traffic through the tiered store; report in report/"
	@echo "make run TRACE=PATH  the same with a trace in the published JSONL format"
	@echo "make test            every check and test; what cannot run here is named"
	@echo "make wheel           a wheel with the Python module and the command, for every Linux of x86-64 with glibc 2.28, in dist/;"
	@echo "                     one for aarch64 too where Rust's library for it is installed, and the package mooncake"
	@echo "make deb             a Debian package with the command and its services, in dist/"
	@echo "make static          the command as one file that needs nothing of the system, in dist/"
	@echo "make docs            all documents as a site, in target/book/site"
	@echo "make c               the library for C and C++, shared and static, with its header, in dist/c"
	@echo "make bench           every benchmark once, with ratios against limits and the peers that are there; reports in report/"
	@echo "make peers           foyer, for the next make bench: a program that plays other caches the same traces"
	@echo "make soak MINUTES=30 the simulator's profiles on seeds that were never used before"
	@echo "make test-deploy     the chart by Helm and the schemas of Kubernetes, dashboard and alerts in a Prometheus if there is one"
	@echo "make test-aarch64    copies and checksums of aarch64, under an emulator"
	@echo "make mutants         plants small mistakes in the cores and the lock-free parts; MUTANTS='pool wait' for some"

run: build
	$(SLACKWATER) replay $(if $(TRACE),'$(TRACE)',--generate) --report report $(ARGS)

build: toolchain
	cargo build --release --locked --package slackwater-cli

PEERS_DIR := bench/peers
peers: toolchain
	CARGO_TARGET_DIR=$(PEERS_DIR)/target cargo build --release --locked --manifest-path $(PEERS_DIR)/Cargo.toml

# Each is run once, these two in a pool of processes too; foyer is beside `tiers` where its program was built.
BENCHMARKS := store promotion tiers copy meta wait pool mq transfer master idle page restart
SERVED := store promotion
PEERS := $(wildcard $(PEERS_DIR)/target/release/slackwater-peers)
bench: build $(STAMP)
	@run() { echo "slackwater bench $$*"; SLACKWATER_PYTHON=$(CURDIR)/$(PYTHON) $(SLACKWATER) bench "$$@" --report report; }; \
	for name in $(BENCHMARKS); do \
	case $$name in tiers) run tiers $(PEERS:%=--peers %);; *) run $$name;; esac || exit 1; done; \
	for name in $(SERVED); do run $$name --served || exit 1; done

# A release asks which commit passed: the one that was there at the beginning, and still is at the end.
TESTED := $(shell git rev-parse HEAD 2>/dev/null)

test: lint test-side-by-side
	@rm -f target/.tested; [ -n "$$(git status --porcelain 2>&1)" ] || [ "$$(git rev-parse HEAD)" != "$(TESTED)" ] || echo "$(TESTED)" > target/.tested
	@echo "all checks and tests passed"

# Tests with real processes wait much, and those of Python more than they compute: they run side by side, and what only computes
# beside them, with what they leave of the processors. What does not go to the terminal is printed when it is over. Each has
# process groups of its own, which end with it.
BESIDE := target/beside
BESIDE_LIMIT ?= 60m
LANE = timeout --kill-after=20 3h $(1) $(MAKE) --no-print-directory
test-side-by-side: build-tested
	@echo "Python's tests, and loom, Miri and the simulator, run beside those of Rust: what they print follows at the end, and is in $(BESIDE) now"
	@mkdir -p $(BESIDE); stop() { kill $$rust $$python $$computing 2>/dev/null; wait; }; trap 'stop; exit 130' HUP INT TERM; \
	failed() { code=$$?; stop; [ ! -f "$(BESIDE)/$$1" ] || cat "$(BESIDE)/$$1"; echo "$$1: failed as said above; the others were stopped if they were not over" >&2; exit $$code; }; \
	$(call LANE,nice -n 5) test-computing LIMIT=$(BESIDE_LIMIT) >$(BESIDE)/computing 2>&1 & computing=$$!; \
	$(call LANE) test-python LIMIT=$(BESIDE_LIMIT) >$(BESIDE)/python 2>&1 & python=$$!; \
	$(call LANE) test-c test-rust & rust=$$!; \
	wait $$rust || failed rust; \
	wait $$python || failed python; cat $(BESIDE)/python; \
	wait $$computing || failed computing; cat $(BESIDE)/computing

test-computing: test-loom test-miri test-sim

lint: toolchain
	cargo fmt --all -- --check
	cargo xtask all
	cargo clippy --all-targets --locked $(TESTED_RUST) -- -D warnings
	cargo clippy $(SIMULATED) --locked $(TESTED_RUST) -- -D warnings
	cargo clippy --package slackwater-otel --locked -- -D warnings
	cargo check --locked --package slackwater-cli --package slackwater-py --package slackwater-c

# The Python of the folder has pyzmq, which the message layer is tested against.
test-rust: build-tested
	$(call bounded,SLACKWATER_PYTHON=$(CURDIR)/$(PYTHON) cargo test --locked $(TESTED_RUST))
	$(call bounded,cargo test --locked --package slackwater-otel)

# All tests have one build: with traces, which are exported with the feature `otel` alone, and with what tests plant. That all builds as
# most users have it is checked by `lint`.
OTEL := --features slackwater-otel/otel,slackwater-cli/otel,slackwater-py/otel,pyo3/extension-module
TESTED_RUST := --workspace $(OTEL)
# Those of the simulator that take minutes have to be named: `--all-targets` leaves them out.
SIMULATED := --test seeds --test planted_bugs --test outlived
BUILT := target/tested
.PHONY: $(BUILT)
build-tested: toolchain $(STAMP)
	cargo build --locked --all-targets $(TESTED_RUST)
	cargo build --locked $(SIMULATED) $(TESTED_RUST)

# What Python's tests use of it.
$(BUILT): build-tested
	rm -rf $(BUILT)
	mkdir -p $(BUILT)/python
	cp target/debug/slackwater $(BUILT)/
	cp -r python/slackwater $(BUILT)/python/
	install target/debug/lib_native.so $(BUILT)/python/slackwater/_native.abi3.so

test-loom: toolchain
	$(call bounded,RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test --locked --release --package slackwater-wait --package slackwater-pool --lib models)

# What `test-rust` checks of `deploy/` with tools that it only uses where they are: here Go builds Helm first, at this version.
HELM_VERSION := v3.16.4
HELM := target/tools/bin/helm
test-deploy: toolchain $(STAMP) $(HELM)
	$(call bounded,PATH=$(CURDIR)/target/tools/bin:$$PATH SLACKWATER_PYTHON=$(CURDIR)/$(PYTHON) cargo test --locked --package slackwater-cli --test reference)

$(HELM):
	@command -v go >/dev/null || { echo "Go is needed to build Helm: 'apt-get install golang' (or your system's package)"; exit 1; }
	GOBIN=$(CURDIR)/target/tools/bin go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

# Miri interprets the unsafe parts of waiting and of the pool. It knows the system calls of libc, not rustix's own.
test-miri: toolchain
	@RUSTUP_AUTO_INSTALL=0 cargo +nightly miri setup >/dev/null 2>&1 || { echo "skipped: Miri (rustup toolchain install nightly --component miri,rust-src)"; exit 0; }; \
	RUSTFLAGS="--cfg rustix_use_libc" MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" \
	sh -c 'cargo +nightly miri test --locked --package slackwater-wait --package slackwater-pool --lib --test waits && \
	cargo +nightly miri test --locked --package slackwater-pool --test pool -- scope join handle'

test-sim: toolchain
	$(call bounded,cargo test --locked $(SIMULATED) $(TESTED_RUST))

# Plants small mistakes, one at a time, and tells which no test notices; by hand, since it takes hours. What is left out,
# and why, is in .cargo/mutants.toml; the mistakes that are known to go unnoticed are in docs/design/mutants.md.
MUTANTS ?= client pool wait meta tier
MUTANTS_OUT ?= target/mutants
mutants: toolchain
	@cargo mutants --version >/dev/null 2>&1 || { echo "cargo-mutants is needed: cargo install --locked cargo-mutants"; exit 1; }
	mkdir -p $(MUTANTS_OUT)
	env -u CARGO_TARGET_DIR cargo mutants --jobs 1 --output $(MUTANTS_OUT) $(addprefix --package slackwater-,$(MUTANTS)) $(ARGS)

soak: toolchain
	cargo run --locked --package slackwater-sim -- --soak $(MINUTES)

# The vector paths of aarch64 need its standard library, a linker and an emulator; what is missing is named.
EMULATED := CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
test-aarch64: toolchain
	@rustup target list --installed 2>/dev/null | grep -q aarch64-unknown-linux-gnu || { echo "skipped: aarch64 (rustup target add aarch64-unknown-linux-gnu)"; exit 0; }; \
	command -v aarch64-linux-gnu-gcc >/dev/null || { echo "skipped: aarch64 (apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"; exit 0; }; \
	command -v qemu-aarch64 >/dev/null || { echo "skipped: aarch64 (apt-get install qemu-user)"; exit 0; }; \
	$(EMULATED) cargo test --locked --target aarch64-unknown-linux-gnu --package slackwater-pool --lib copy

wheel: $(PACKAGED) $(STAMP)
	rm -rf target/package/raw
	PATH="$(CURDIR)/$(PACKAGING)/bin:$$PATH" maturin build --quiet --release --zig --locked $(MODULE_WITH) --target $(PACKAGED_FOR) \
		--compatibility manylinux_2_28 --out target/package/raw
	cargo xtask wheel --binary $(PACKAGED) --wheel target/package/raw/*.whl --python $(PYTHON) $(WITH) --out dist
	$(PACKAGING)/bin/auditwheel show dist/$$(basename target/package/raw/*.whl)
	@$(MAKE) --no-print-directory wheel-mooncake wheel-aarch64

# The package `mooncake`, which runs on that wheel: of Python alone.
wheel-mooncake: $(STAMP)
	mkdir -p dist
	cd python/mooncake && $(CURDIR)/$(PYTHON) -c 'import backend; print(backend.build_wheel("../../dist"))'

# The linker of Zig links for aarch64 too; what that needs beside it is Rust's own library for that processor. Nothing that is
# built so runs here, so the manual comes from the command of this machine.
AARCH64 := aarch64-unknown-linux-gnu
wheel-aarch64: $(PACKAGED) $(STAMP)
	@rustup target list --installed 2>/dev/null | grep -qx $(AARCH64) || { echo "skipped: a wheel for aarch64 (rustup target add $(AARCH64))"; exit 0; }; \
	set -e; export PATH="$(CURDIR)/$(PACKAGING)/bin:$$PATH"; rm -rf target/package/raw-aarch64; \
	CARGO_PROFILE_RELEASE_STRIP=symbols cargo-zigbuild build --release --locked $(WITH) --target $(AARCH64).2.28 --package slackwater-cli; \
	maturin build --quiet --release --zig --locked $(MODULE_WITH) --target $(AARCH64) --compatibility manylinux_2_28 --out target/package/raw-aarch64; \
	cargo xtask wheel --binary target/$(AARCH64)/release/slackwater --native $(PACKAGED) --wheel target/package/raw-aarch64/*.whl --python $(PYTHON) $(WITH) --out dist

deb: $(PACKAGED)
	cargo xtask deb --binary $(PACKAGED) $(WITH) --out dist

# One file without a C library of the system: for containers without anything, and machines older than glibc 2.28.
STATIC_FOR := x86_64-unknown-linux-musl
STATIC_PROFILE ?= release
static: toolchain $(PACKAGING)/.ready
	@rustup target list --installed 2>/dev/null | grep -qx $(STATIC_FOR) || rustup target add $(STATIC_FOR) || { \
	echo "the standard library for $(STATIC_FOR) is needed: rustup target add $(STATIC_FOR)" >&2; exit 1; }
	PATH="$(CURDIR)/$(PACKAGING)/bin:$$PATH" cargo-zigbuild build --profile $(STATIC_PROFILE) --locked $(WITH) --target $(STATIC_FOR) --package slackwater-cli
	cargo xtask static --binary target/$(STATIC_FOR)/$(if $(filter dev,$(STATIC_PROFILE)),debug,$(STATIC_PROFILE))/slackwater $(WITH) --out dist

.PHONY: $(PACKAGED)
$(PACKAGED): toolchain $(PACKAGING)/.ready
	PATH="$(CURDIR)/$(PACKAGING)/bin:$$PATH" cargo-zigbuild build --release --locked $(WITH) --target $(PACKAGED_FOR).2.28 --package slackwater-cli
	cargo xtask sbom --of command $(WITH) --out $(MATERIALS)

$(PACKAGING)/.ready: python/packaging.txt
	python3 -m venv $(PACKAGING)
	$(PACKAGING)/bin/pip install --quiet --disable-pip-version-check --requirement python/packaging.txt
	touch $@

# The chapters lie in several places; the links between them are checked in the sources, and again in the pages.
MDBOOK_VERSION := 0.4.52
MDBOOK := target/tools/bin/mdbook
docs: toolchain $(MDBOOK)
	cargo xtask book --out target/book/source
	$(MDBOOK) build
	cargo xtask site --at target/book/site
	@echo "begin at target/book/site/index.html"

$(MDBOOK):
	@cargo install mdbook --version $(MDBOOK_VERSION) --locked --no-default-features --features search --root target/tools || { \
	echo "mdbook $(MDBOOK_VERSION) could be neither fetched nor built: read the documents as they are, from docs/SUMMARY.md on" >&2; exit 1; }

# The library and what belongs to it, as `make c` leaves them.
C_PROFILE ?= release
C_OUT ?= dist/c
C_PACKAGES := --package slackwater-c
C_BUILT = target/$(if $(filter dev,$(C_PROFILE)),debug,$(C_PROFILE))
c: toolchain
	cargo build --profile $(C_PROFILE) --locked $(C_PACKAGES)
	rm -rf $(C_OUT)
	mkdir -p $(C_OUT)/include $(C_OUT)/lib/pkgconfig
	cp crates/c/include/slackwater.h $(C_OUT)/include/
	cp $(C_BUILT)/libslackwater.so $(C_OUT)/lib/libslackwater.so.0
	ln -s libslackwater.so.0 $(C_OUT)/lib/libslackwater.so
	cp $(C_BUILT)/libslackwater.a $(C_OUT)/lib/
	sed "s/VERSION/$$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)/" crates/c/slackwater.pc.in > $(C_OUT)/lib/pkgconfig/slackwater.pc
	cargo xtask sbom --of library --out $(C_OUT)

# What `make c` leaves is enough for a program elsewhere. That the examples work with either library is a test of the crate.
test-c: build-tested
	@for tool in cc c++ pkg-config; do command -v $$tool >/dev/null || { echo "skipped: C and C++ as installed ($$tool is not there)"; exit 0; }; done; \
	$(MAKE) --no-print-directory c C_PROFILE=dev C_OUT=target/c C_PACKAGES='--all-targets $(TESTED_RUST)' && \
	flags=$$(PKG_CONFIG_PATH=target/c/lib/pkgconfig pkg-config --cflags --libs slackwater) && \
	cc -Wall -Wextra -Werror crates/c/examples/transfer.c $$flags -o target/c/transfer && \
	c++ -Wall -Wextra -Werror crates/c/examples/workers.cc $$flags -o target/c/workers && \
	c++ -Wall -Wextra -Werror crates/c/examples/messages.cc $$flags -o target/c/messages && \
	for example in transfer workers messages; do LD_LIBRARY_PATH=target/c/lib timeout --foreground --kill-after=10 2m target/c/$$example || exit 1; done

test-python: $(BUILT)
	$(call bounded,TESTED_COMMAND=$(CURDIR)/$(BUILT)/slackwater PYTHONPATH=$(CURDIR)/$(BUILT)/python $(PYTHON) -m pytest -q -rs python/tests)

$(STAMP): python/requirements.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --requirement python/requirements.txt
	touch $@

.PHONY: toolchain
toolchain:
	@command -v cargo >/dev/null || { echo "Rust 1.95 or newer is needed: install rustup, then 'rustup toolchain install stable'"; exit 1; }
	@command -v cc >/dev/null || { echo "a C linker is needed: 'apt-get install gcc' (or your system's package)"; exit 1; }

clean:
	cargo clean
	rm -rf $(VENV) report
