# Carousel's front door: every everyday command, each of which does its own set-up. CMake does the work.
# `make help` lists the targets.

PREFIX ?= /usr/local
JOBS ?= $(shell nproc 2>/dev/null || echo 1)
DEMO ?= demo
BENCH_ARGS ?=
SOAK_SECONDS ?= 1800
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0
# DEPS=no: do not look for missing Debian packages.
DEPS ?= yes

BUILD := build
MAKEFLAGS += --no-print-directory

# The packages of the sections given, if they are missing. Asked for again by every target: it takes some
# hundredths of a second when all are there.
want = $(if $(filter no,$(DEPS)),,tools/deps.sh $(1))
compile = cmake --build $(1) --parallel $(JOBS)
check = ctest --test-dir $(1) --parallel $(JOBS) --output-on-failure --no-tests=error --no-label-summary
# Configures from scratch, with Ninja if it is there. CMake cannot change the generator of a directory.
configure = rm -rf $(2)/CMakeCache.txt $(2)/CMakeFiles && \
	cmake --preset $(1) -G "$$(command -v ninja >/dev/null && echo Ninja || echo Unix Makefiles)"

.DEFAULT_GOAL := build
# What runs at once is for CMake and ctest to say (JOBS).
.NOTPARALLEL:
.PHONY: build demo test bench install uninstall deb want-deb deps help format check-format tidy test-asan test-tsan soak fuzz debug clang clean \
	results bench-models bench-memory bench-stagger bench-mpi-memory bench-train bench-data bench-network bench-scale bench-overhead want-build want-test want-style want-bench want-fuzz want-all

.PHONY: docs want-docs test-mpi-full test-mpich test-page want-page want-mpich

##@ Use

build: $(BUILD)/.configured ## compile the program, build/carousel, and the libraries (this is the default)
	@$(call compile,$(BUILD)) --target carousel carousel_static carousel_shared manual

demo: build ## where the cycle wins and where it does not, measured here in about a minute
	@$(BUILD)/carousel $(DEMO)

install: build ## install under PREFIX (default /usr/local); DESTDIR is honoured
	@DESTDIR="$(DESTDIR)" cmake --install $(BUILD) --prefix "$(PREFIX)"
	@if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

uninstall: $(BUILD)/.configured ## remove from PREFIX what this tree installs there; DESTDIR is honoured
	@tools/uninstall.sh $(BUILD) "$(PREFIX)" "$(DESTDIR)"

docs: want-docs ## make the API reference of the public headers, build/docs/html
	@mkdir -p $(BUILD)
	@doxygen docs/Doxyfile
	@echo "$(BUILD)/docs/html/index.html"

deb: want-deb ## build Debian packages of program, library, headers and documentation, in build/deb
	@tools/deb.sh $(BUILD)/deb

deps: ## install whatever is missing of the Debian packages in packages.txt
	@tools/deps.sh

clean: ## remove everything that was built
	rm -rf $(BUILD)

##@ Check

test: $(BUILD)/.with-tests ## build and run all tests
	@$(call compile,$(BUILD))
	@$(call check,$(BUILD))

bench: $(BUILD)/.with-bench ## measure every claim in its short form, under 20 minutes in all
	@$(call compile,$(BUILD)) --target bench carousel
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/evidence.py $(BENCH_ARGS)

results: $(BUILD)/.with-bench ## measure every claim in its long form (hours, goes on where it was), and render docs/results.md
	@$(call compile,$(BUILD)) --target bench carousel
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/evidence.py --long $(BENCH_ARGS)
	@bench/evidence.py --render

bench-models: $(BUILD)/.with-bench ## measure kernels and models, beside OpenBLAS and (if python3-torch is there) PyTorch
	@$(call compile,$(BUILD)) --target bench carousel
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/run.sh $(BENCH_ARGS)

bench-memory: build want-bench ## measure the memory of training under each rule, beside the plan's prediction
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/memory.py $(BENCH_ARGS)

bench-stagger: build want-bench ## measure memory and time of rule stagger, beside accumulate and dp
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/stagger.py $(BENCH_ARGS)

bench-mpi-memory: build want-bench ## measure the resident memory of ranks on this machine, dp beside the cyclic rules
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/mpi_memory.py $(BENCH_ARGS)

bench-train: $(BUILD)/.with-bench ## measure whole steps of training, beside PyTorch if it is there
	@$(call compile,$(BUILD)) --target bench carousel
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/training.py $(BENCH_ARGS)

bench-data: $(BUILD)/.with-bench ## measure how fast images are read, beside torchvision; CAROUSEL_CIFAR10_JPEG=DIR
	@$(call compile,$(BUILD)) --target bench carousel
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/data.py $(BENCH_ARGS)

bench-network: $(BUILD)/.with-bench ## measure ranks over links of a limited rate, beside DDP (needs root; skips otherwise)
	@$(call compile,$(BUILD)) --target bench carousel
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/network/run.py $(BENCH_ARGS) || [ $$? = 77 ]

bench-overhead: $(BUILD)/.with-bench ## measure what the executor itself costs, for each task; BENCH_ARGS=SECONDS for each line
	@$(call compile,$(BUILD)) --target bench_overhead
	@$(BUILD)/bench/overhead $(BENCH_ARGS)

bench-scale: build want-bench ## plans of large models on described clusters, beside SimGrid's SMPI; BENCH_ARGS=--long for all
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/evidence.py scale $(BENCH_ARGS)

test-asan: $(BUILD)/asan/.configured ## run all tests under AddressSanitizer and UBSan
	@$(call compile,$(BUILD)/asan)
	@$(call check,$(BUILD)/asan)

# ThreadSanitizer's runtime wants its addresses free, which randomisation does not promise on every kernel.
test-tsan: $(BUILD)/tsan/.configured ## run the tests of threads under ThreadSanitizer
	@$(call compile,$(BUILD)/tsan) --target thread_tests
	@$$(setarch -R true 2>/dev/null && echo setarch -R) $(call check,$(BUILD)/tsan) --label-regex threads

test-mpi-full: $(BUILD)/.with-tests ## run every placement, rule and model over MPI ranks; kill and stop some
	@$(call compile,$(BUILD))
	@tests/mpi/full.sh $(BUILD)/tests/mpi $(BUILD)/carousel
	@tests/mpi/kills.sh $(CURDIR)/$(BUILD)/carousel 100
	@CAR_MPI_FULL=1 $(call check,$(BUILD)) --timeout 7200 --tests-regex 'mpi\.(traffic|memory)'
	@BUILD_DIR="$(CURDIR)/$(BUILD)" bench/mpi_memory.py --most 0.85

test-page: $(BUILD)/.with-tests want-page ## look at the report's page in Chromium
	@$(call compile,$(BUILD)) --target carousel
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -R '^report\.(page|live)$$'

test-mpich: $(BUILD)/mpich/.configured ## build with MPICH instead of Open MPI, and run the tests of ranks
	@$(call compile,$(BUILD)/mpich)
	@$(call check,$(BUILD)/mpich) --label-regex mpi

soak: $(BUILD)/tsan/.configured $(BUILD)/asan/.configured ## train random configurations under the sanitizers, SOAK_SECONDS=1800
	@SOAK_SECONDS=$(SOAK_SECONDS) JOBS=$(JOBS) tests/soak/run.sh $(BUILD)/tsan $(BUILD)/asan

fuzz: $(BUILD)/fuzz/.configured ## feed the readers of files with what no program wrote, FUZZ_SECONDS=60 each
	@$(call compile,$(BUILD)/fuzz) --target fuzzers
	@FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(FUZZ_SEED) tests/fuzz/run.sh $(BUILD)/fuzz

debug: $(BUILD)/debug/.configured ## compile everything unoptimised and with assertions, in build/debug
	@$(call compile,$(BUILD)/debug)

clang: $(BUILD)/clang/.configured ## compile everything with clang, in build/clang
	@$(call compile,$(BUILD)/clang)

##@ Style

format: want-style ## format all C files in place
	@tools/format.sh

check-format: want-style ## fail if `make format` would change anything
	@tools/format.sh --check

tidy: $(BUILD)/clang/.configured ## run clang-tidy over the library and the program
	@tools/tidy.sh $(BUILD)/clang $(JOBS)

##@ Help

help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  JOBS=$(JOBS) at once. DEPS=no leaves the packages of the system alone."

# ---- behind the door ----------------------------------------------------------------------------

want-build:
	@$(call want,build)
want-test:
	@$(call want,build test)
want-style:
	@$(call want,style)
want-all:
	@$(call want,build test style bench)
want-bench:
	@$(call want,build bench)
want-page:
	@$(call want,build test page)
want-docs:
	@$(call want,docs)
want-deb:
	@$(call want,build deb)
want-fuzz:
	@$(call want,build fuzz)
want-mpich:
	@$(call want,build test mpich)

# One configuration serves building, testing and measuring; it asks for cmocka and OpenBLAS only once
# tests or bench are wanted.
$(BUILD)/.configured: CMakePresets.json | want-build
	@$(call configure,release,$(BUILD))
	@rm -f $(BUILD)/.with-*
	@touch $@

$(BUILD)/.with-tests: $(BUILD)/.configured | want-test
	@cmake $(BUILD) -DCAR_BUILD_TESTS=ON >/dev/null
	@touch $@

$(BUILD)/.with-bench: $(BUILD)/.configured | want-bench
	@cmake $(BUILD) -DCAR_BUILD_BENCH=ON >/dev/null
	@touch $@

$(BUILD)/asan/.configured $(BUILD)/tsan/.configured $(BUILD)/debug/.configured: $(BUILD)/%/.configured: CMakePresets.json | want-test
	@$(call configure,$*,$(BUILD)/$*)
	@touch $@

$(BUILD)/clang/.configured: CMakePresets.json | want-all
	@$(call configure,clang,$(BUILD)/clang)
	@touch $@

$(BUILD)/mpich/.configured: CMakePresets.json | want-mpich
	@$(call configure,mpich,$(BUILD)/mpich)
	@touch $@

$(BUILD)/fuzz/.configured: CMakePresets.json | want-fuzz
	@$(call configure,fuzz,$(BUILD)/fuzz)
	@touch $@
