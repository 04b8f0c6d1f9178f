# The front door. The build itself is CMake + Ninja; these are the commands one types.
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=

.DEFAULT_GOAL := build
.PHONY: help demo build test test-long bench sanitize format format-check tidy doctor clean deps configure with-mpi

help:             ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: export STARTED := $(shell date +%s)
demo: deps-demo   ## from nothing to a trained model: install, build, train on four ranks, generate
	@$(MAKE) --no-print-directory build && WEFT=$(BUILD)/weft scripts/demo.sh

build: configure  ## Release build of the program: build/weft
	@cmake --build $(BUILD) --parallel $(JOBS) --target weft

test: with-mpi    ## build everything and run every test
	@cmake --build $(BUILD) --parallel $(JOBS)
	@scripts/run_ctest.sh $(BUILD) -LE mutation

test-long: test   ## the tests, then every wrong collective and random layouts: minutes more
	@scripts/run_ctest.sh $(BUILD) -L mutation

bench: deps-bench configure  ## time the operations
	@scripts/bench.sh $(BUILD) $(JOBS)

sanitize: deps    ## address + undefined on the fast tests, thread sanitizer on the communicators
	@scripts/sanitize.sh $(JOBS)

format: deps-tidy ## lay all sources out by .clang-format
	@scripts/format.sh

format-check:     ## fail if `make format` would change something
	@scripts/format.sh --check

tidy: deps-tidy configure  ## clang-tidy over the sources that changed (ALL=1: over all)
	@scripts/tidy.sh $(BUILD) $(JOBS) $(if $(ALL),--all)

doctor: build     ## what this build and machine offer, and what is missing for what
	@$(BUILD)/weft doctor

clean:            ## remove what make has made
	rm -rf build build-asan build-tsan demo-run

deps:
	@scripts/install_deps.sh build

deps-%:
	@scripts/install_deps.sh build $*

# Where MPI cannot be installed the rest is tested all the same. A build configured before it came looks again.
with-mpi:
	@scripts/install_deps.sh build mpi || echo "make: going on without MPI; the tests of ranks as processes are left out"
	@$(MAKE) --no-print-directory configure
	@grep -q 'WEFT_HAS_MPI:INTERNAL=TRUE' $(BUILD)/CMakeCache.txt || cmake $(BUILD) >/dev/null

configure: deps
	@test -f $(BUILD)/build.ninja || cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release $(CMAKE_ARGS)
