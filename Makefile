# The commands of the project. Each target sets up and builds only what it needs. If nothing is missing, this takes no time. So `make demo`
# can simulate its first comparison before LibTorch is installed and the tests are built.

BUILD := build
JOBS ?= 2
SECONDS ?= 60
SEED ?= 0
N ?= 10
PART ?=
SHELL := /bin/bash

.PHONY: help setup simulator build configure demo tests test soak flaky validate lint lint-quick format bench fuzz gpu gpu-check clean

help:
	@echo "make demo     compare methods by simulation, then train a small model in real processes"
	@echo "make build    the command, build/bin/rehearse"
	@echo "make test     build, and run every test that does not need minutes or the clock"
	@echo "make soak     the other tests and the fuzzers, or PART=\"name ...\"; ends with a table"
	@echo "make flaky    make test N times (10), half of them on a busy machine"
	@echo "make validate predict published measurements and compare: table, out/accuracy.svg"
	@echo "make lint     formatting, clang-tidy, ruff and architecture checks; lint-quick: without clang-tidy"
	@echo "make format   format every C++ and Python file"
	@echo "make bench    the speed figures"
	@echo "make fuzz     fuzz every reader of files, SECONDS each (60)"
	@echo "make gpu      the CUDA and NCCL plug-in (toolkit, or PyPI's nvcc)"
	@echo "make gpu-check builds it and checks real training on this machine's GPUs"
	@echo "make setup    only set up: Debian packages, SimGrid, LibTorch, Python environment"
	@echo "make clean    remove the build folders (the cache of make setup stays)"

setup:
	@tools/setup

# $(call on,OPTION...): configures with these options on, unless they are on already.
on = @([ -e $(BUILD)/build.ninja ] && for o in $(1); do grep -qx "$$o:BOOL=ON" $(BUILD)/CMakeCache.txt || exit; done) || \
  cmake --preset release $(1:%=-D%=ON) >/dev/null
program = @cmake --build $(BUILD) -j $(JOBS) --target rehearse

# The command without the part that needs LibTorch. A build folder that is already configured keeps its options.
simulator:
	@tools/setup packages simgrid
	@[ -e $(BUILD)/build.ninja ] || cmake --preset release -DREHEARSE_RUNTIME=OFF -DREHEARSE_TESTS=OFF >/dev/null
	$(program)

build: setup
	$(call on,REHEARSE_RUNTIME)
	$(program)

configure: setup
	$(call on,REHEARSE_RUNTIME REHEARSE_TESTS REHEARSE_PYTHON $(ALSO))

demo: simulator
	@tools/demo compare
	@$(MAKE) --no-print-directory build
	@tools/demo train

test soak flaky: export BUILD := $(BUILD)
# Builds everything.
tests: configure
	@cmake --build $(BUILD) -j $(JOBS)

test: tests
	@tools/tests fast

# Some of them need the Debian packages of tools/setup testbed launchers browser, and say so.
soak: tests
	@tools/tests soak $(PART)

flaky: tests
	@tools/tests flaky --runs $(N)

lint: configure
	@tools/setup lint
	@tools/lint

lint-quick:
	@tools/setup lint
	@tools/lint --quick

format:
	@tools/setup lint
	@tools/format

validate: build
	@mkdir -p out
	@$(BUILD)/bin/rehearse validate -o out/accuracy.svg
	@echo "out/accuracy.svg"

bench: configure
	@tools/bench

fuzz:
	@tools/fuzz --seconds $(SECONDS) --jobs $(JOBS) --timeout 30 --seed $(SEED)

gpu: configure
	@tools/gpu

gpu-check: gpu
	@tools/gpu-check

clean:
	rm -rf build build-*
