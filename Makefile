# The commands of the project. Each sets up and builds what it needs first, and nothing else, which takes no time when nothing is
# missing: the first comparison of `make demo` is simulated before LibTorch and the tests are there.

BUILD := build
JOBS ?= 2
SECONDS ?= 60
SEED ?= 0
SHELL := /bin/bash

.PHONY: help setup simulator build configure demo test lint format bench fuzz gpu clean

help:
	@echo "make demo     compare methods by simulation, then really train a small model"
	@echo "make build    the command, build/bin/rehearse"
	@echo "make test     build and run all tests"
	@echo "make lint     formatting, clang-tidy, ruff and architecture checks"
	@echo "make format   format every C++ and Python file"
	@echo "make bench    the speed figures"
	@echo "make fuzz     fuzzers of all that reads a file, SECONDS each (60)"
	@echo "make gpu      the CUDA and NCCL plug-in (toolkit, or PyPI's nvcc)"
	@echo "make setup    only set up: Debian packages, SimGrid, LibTorch, Python environment"
	@echo "make clean    remove the build folder (what was set up stays in the cache)"

setup:
	@tools/setup

# $(call on,OPTION...): configures with these options on, unless it was.
on = @([ -e $(BUILD)/build.ninja ] && for o in $(1); do grep -qx "$$o:BOOL=ON" $(BUILD)/CMakeCache.txt || exit; done) || \
  cmake --preset release $(1:%=-D%=ON) >/dev/null
program = @cmake --build $(BUILD) -j $(JOBS) --target rehearse

# The command as far as it needs no LibTorch, of a folder that was not configured yet.
simulator:
	@tools/setup packages simgrid
	@[ -e $(BUILD)/build.ninja ] || cmake --preset release -DREHEARSE_RUNTIME=OFF -DREHEARSE_TESTS=OFF >/dev/null
	$(program)

build: setup
	$(call on,REHEARSE_RUNTIME)
	$(program)

configure: setup
	$(call on,REHEARSE_RUNTIME REHEARSE_TESTS)

demo: simulator
	@tools/demo compare
	@$(MAKE) --no-print-directory build
	@tools/demo train

test: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

lint: configure
	@tools/setup lint
	@tools/lint

format:
	@tools/setup lint
	@tools/format

bench: configure
	@tools/bench

fuzz:
	@tools/fuzz --seconds $(SECONDS) --jobs $(JOBS) --timeout 30 --seed $(SEED)

gpu: configure
	@tools/gpu

clean:
	rm -rf build build-*
