# LooseKV for PostgreSQL. `make demo` and `make test` install what they need; see README.md.

export PG_CONFIG ?= /usr/lib/postgresql/15/bin/pg_config

.PHONY: help
help:
	@echo "make demo          a private PostgreSQL cluster with the extension, and a guided tour on it"
	@echo "make test          every test: engine, extension, campaigns in their short forms"
	@echo "make install       build, and install into the server that PG_CONFIG names ($(PG_CONFIG))"
	@echo "make deb           a Debian package of it, in target/deb"
	@echo "make test-docker   the steps of docker/Dockerfile in clean systems, without a container engine"
	@echo "make lint          formatting, clippy, documentation"
	@echo "make test-engine   the engine's tests alone"
	@echo "make test-bench    the benchmark programs' own tests"
	@echo "make miri          the engine's unsafe leaf modules under miri (needs a nightly toolchain)"
	@echo "make soak-engine   the engine's campaigns with new seeds for an hour (MINUTES=n)"
	@echo "make fuzz          libFuzzer over every decoder, a minute each (needs nightly and cargo-fuzz)"
	@echo "make test-server   the tests that need a server (after make install)"
	@echo "make bench         loosekv beside heap + btree, at the SQL level (SHORT=1: a few minutes)"
	@echo "make bench-soak    inserts for 30 minutes on both (MINUTES=n)"
	@echo "make bench-docs    docs/performance.md from the results of LABEL"
	@echo "make bench-engine  LooseKV beside LevelDB, RocksDB and fjall (SHORT=1: two minutes)"
	@echo "make clean         remove what was built"

.PHONY: setup
setup:
	@scripts/setup.sh

.PHONY: install
install: setup
	scripts/install.sh

.PHONY: deb
deb: setup
	scripts/deb.sh

.PHONY: test-deb
test-deb: setup
	scripts/limited 1800 scripts/check-deb.sh

.PHONY: test-docker
test-docker:
	docker/test-in-chroot.sh

.PHONY: demo
demo: install
	scripts/demo.sh

.PHONY: test
test: setup lint test-engine install test-server test-deb test-bench
	python3 -m unittest discover --quiet --start-directory regress/campaigns
	scripts/limited 2400 $(MAKE) SHORT=1 bench-engine bench-sql

.PHONY: lint
lint: setup
	cargo fmt --all --check
	cargo fmt --manifest-path engine/fuzz/Cargo.toml --check
	scripts/format-doc.sh --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --package loosekv-engine --package loosekv-shm

.PHONY: test-engine
test-engine: setup
	scripts/limited 2400 cargo test --quiet --package loosekv-engine --package loosekv-shm --package loosekv

# The benchmark programs' own tests; that of the engine is a workspace of its own.
.PHONY: test-bench
test-bench:
	bench/install-engine-rivals.sh
	cargo fmt --manifest-path bench/engine/Cargo.toml --check
	scripts/limited 2400 cargo clippy --quiet --release --locked --manifest-path bench/engine/Cargo.toml --all-targets -- -D warnings
	scripts/limited 2400 cargo test --quiet --release --locked --manifest-path bench/engine/Cargo.toml
	python3 -m unittest discover --quiet --start-directory bench/sql

.PHONY: miri
miri:
	scripts/miri.sh

.PHONY: soak-engine
soak-engine: setup
	scripts/soak-engine.sh $(or $(MINUTES),60)

.PHONY: fuzz
fuzz:
	scripts/fuzz.sh 60

.PHONY: test-server
test-server:
	regress/run

# Engine benchmark: LooseKV beside LevelDB, RocksDB and fjall (bench/engine/README.md).
#   SHORT=1    under two minutes, for CI            FORM=medium   about half an hour
#   RESUME=1   skip cells that LABEL has already    OPTIONS="--sizes=256 --rounds=1"   any option of the program
FORM ?= $(if $(SHORT),short,long)

.PHONY: bench-engine
bench-engine:
	bench/install-engine-rivals.sh
	cargo build --release --locked --manifest-path bench/engine/Cargo.toml
	cargo run --release --locked --quiet --manifest-path bench/engine/Cargo.toml -- run --form=$(FORM) \
		$(if $(LABEL),--label=$(LABEL)) $(if $(RESUME),--resume=1) $(OPTIONS)

# SQL benchmark: loosekv beside heap + btree (bench/sql/README.md). The same variables, and FORM=wide: the whole product.
.PHONY: bench
bench: install bench-sql

.PHONY: bench-sql
bench-sql:
	python3 bench/sql run --form $(FORM) $(if $(LABEL),--label $(LABEL)) $(if $(RESUME),--resume) $(OPTIONS)

.PHONY: bench-soak
bench-soak: install
	python3 bench/sql soak --minutes $(or $(MINUTES),30) $(if $(LABEL),--label $(LABEL)) $(if $(RESUME),--resume) $(OPTIONS)

.PHONY: bench-docs
bench-docs:
	python3 bench/sql docs --label $(or $(LABEL),long) $(if $(SOAK),--soak $(SOAK))

.PHONY: clean
clean:
	cargo clean
	cargo clean --manifest-path bench/engine/Cargo.toml
