# Everything a user or contributor runs. `make` lists it.
.DEFAULT_GOAL := help
.PHONY: help setup build examples demo test header bench nvcc clean

export CARGO_TARGET_DIR ?= target
# rustup's directory, for shells that have not been told of it.
export PATH := $(PATH):$(HOME)/.cargo/bin

RELEASE := $(CARGO_TARGET_DIR)/release
CKPT_DIR ?= demo/meta
PROMPT ?= Once upon a time
CFLAGS ?= -O2
WARNINGS := -std=c99 -Wall -Wextra -Wpedantic

help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## /make \1|/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## /make \1: /p' Makefile

demo: setup ## build everything, then let the small model that comes along tell a story
	@$(MAKE) --no-print-directory examples
	@build/generate --ckpt_dir "$(CKPT_DIR)" --prompt "$(PROMPT)"

build: setup ## target/release/libllamabi.so and .a
	cargo build --release --locked
	@ln -sf libllamabi.so $(RELEASE)/libllamabi.so.0

examples: build ## build/generate and build/chat, with the system's C compiler
	@mkdir -p build
	$(CC) $(CFLAGS) $(WARNINGS) examples/generate.c -Iinclude -L$(RELEASE) -lllamabi \
	  -Wl,-rpath,$(abspath $(RELEASE)) -o build/generate
	$(CC) $(CFLAGS) $(WARNINGS) examples/chat.c -Iinclude -L$(RELEASE) -lllamabi \
	  -Wl,-rpath,$(abspath $(RELEASE)) -o build/chat

test: ## all tests: Rust, and C programs plainly, under sanitizers and under valgrind
	@scripts/setup --test
	@$(MAKE) --no-print-directory examples
	LLAMABI_LIB_DIR=$(abspath $(RELEASE)) cargo test --release --locked
	@echo "make test: everything passed"

header: setup ## include/llamabi.h from src/capi
	LLAMABI_UPDATE_HEADER=1 cargo test --release --locked --test header

bench: setup ## decode and prefill of a 1.1B shape, beside what this machine can read and compute
	cargo bench --locked --bench cpu

nvcc: ## build/nvcc: the CUDA compiler from PyPI, where none is installed
	@scripts/nvcc

setup: ## install what is missing, or say how
	@scripts/setup

clean: ## forget what was built
	cargo clean
	rm -rf build
