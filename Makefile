# The commands of the project. Each sets up what it needs first, which takes no time when nothing is missing.

BUILD := build
JOBS ?= 2
SECONDS ?= 60
SEED ?= 0
SHELL := /bin/bash

.PHONY: help setup configure build demo test lint format bench fuzz gpu clean

help:
	@echo "make demo     set up, build, and rehearse and train a small model"
	@echo "make test     set up, build, run all tests"
	@echo "make lint     formatting, clang-tidy, ruff and architecture checks"
	@echo "make format   format every C++ and Python file"
	@echo "make bench    the speed figures"
	@echo "make fuzz     fuzzers of all that reads a file, SECONDS each (60)"
	@echo "make gpu      the CUDA and NCCL plug-in (toolkit, or PyPI's nvcc)"
	@echo "make setup    only set up: Debian packages, SimGrid, LibTorch, Python environment"
	@echo "make clean    remove the build folder (what was set up stays in the cache)"

setup:
	@tools/setup

configure: setup
	@[ -e $(BUILD)/build.ninja ] || cmake --preset release >/dev/null

build: configure
	@cmake --build $(BUILD) -j $(JOBS)

demo: build
	@tools/demo

test: build
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
