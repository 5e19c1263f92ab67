# Tests, demo, measurements, installation. Included by the Makefile; `make help` lists the targets.

PYTHON ?= python3
# The first that has pytest: Debian's may not be the one in the path.
PYTEST_PYTHON = $(or $(firstword $(shell for p in $(PYTHON) /usr/bin/python3; do $$p -c 'import pytest' 2>/dev/null && echo $$p; done)),$(PYTHON))
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
INSTALL_DEPS = tests/tools/install-deps.sh
SOURCES = $(shell find daemon client kernels proto config tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
SCRIPTS = $(shell find tests packaging .ci -name '*.sh' -o -path .ci/run)

# ---- What each test program is made of: its own file, PARTS (sources), LIBS (pkg-config names). --------------------

test_codec_PARTS = $(PROTO) $(KERNELS)
test_codec_units_PARTS = $(PROTO) $(KERNELS)
test_codec_split_PARTS = $(PROTO) $(KERNELS)
test_receipt_PARTS = $(PROTO) $(KERNELS)
test_calibrate_PARTS = $(PROTO) $(KERNELS)
test_codec_lossless_PARTS = $(PROTO) $(KERNELS)
test_code_cut_PARTS = $(PROTO) $(KERNELS) daemon/worker/code_cut.c
test_packet_PARTS = $(PROTO)
test_closer_PARTS = daemon/base/closer.c daemon/base/errands.c
test_origin_PARTS = daemon/base/origin.c
test_crash_PARTS = daemon/base/crash.c
test_idmap_PARTS = $(BASE)
test_traffic_PARTS = daemon/base/traffic.c
test_io_PARTS = daemon/worker/io.c daemon/worker/failure.c
test_io_LIBS = liburing
test_gds_PARTS = daemon/base/log.c $(addprefix daemon/worker/,gds.c cufile.c failure.c)
test_known_devices_PARTS = $(BASE) daemon/known_devices.c
test_known_devices_LIBS = libuv
WORKER_TESTS = $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_worker*.c))
$(foreach test,$(WORKER_TESTS),$(eval $(test)_PARTS = $(PROTO) $(BASE) tests/unit/worker_fixture.c))
$(foreach test,$(WORKER_TESTS),$(eval $(test)_LIBS = libxxhash))
LIBHBM_TESTS = $(patsubst tests/unit/%.c,%,$(wildcard tests/unit/test_libhbm*.c tests/unit/test_resume*.c))
$(foreach test,$(LIBHBM_TESTS),$(eval $(test)_PARTS = $(LIB) $(addprefix tests/unit/fake_,daemon.c answers.c)))
test_safetensors_PARTS = $(PROTO) $(addprefix client/ctl/,safetensors.c json_text.c layout.c)
test_safetensors_LIBS = libcjson
test_gguf_PARTS = $(PROTO) $(addprefix client/ctl/,gguf.c safetensors.c json_text.c)
test_gguf_LIBS = libcjson
test_ranges_PARTS = $(addprefix client/ctl/,ranges.c json_text.c text.c)
test_ranges_LIBS = libcjson
test_doctor_PARTS = $(filter-out client/ctl/main.c,$(CTL)) $(LIB)
test_doctor_LIBS = libcjson libxxhash
test_bottleneck_PARTS = $(filter-out client/ctl/main.c,$(CTL)) $(LIB)
test_bottleneck_LIBS = libcjson libxxhash
test_config_PARTS = $(PROTO) $(BASE) $(wildcard config/*.c)
test_config_LIBS = inih
CORE_WORLD = $(addprefix tests/unit/core_,world.c client.c jobs.c)
test_core_PARTS = $(PROTO) $(BASE) $(wildcard daemon/core/*.c tests/unit/core_*.c)
test_core_memory_PARTS = $(PROTO) $(CORE_WORLD) $(wildcard tests/unit/memory_*.c)
test_jobs_PARTS = $(PROTO) $(BASE) $(wildcard daemon/job/*.c)
test_jobs_LIBS = libuv
test_rpc_PARTS = $(PROTO) $(BASE) $(wildcard daemon/core/*.c daemon/rpc/*.c)
test_rpc_LIBS = libuv libcjson

UNIT_TESTS = $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(wildcard tests/unit/test_*.c))
TSAN_TESTS = $(filter $(addprefix %/,$(LIBHBM_TESTS) $(WORKER_TESTS) test_codec test_codec_units test_codec_split test_codec_lossless test_closer),$(UNIT_TESTS))
GPU_SOURCES = $(wildcard tests/gpu/*_gpu.cu tests/gpu/*_gpu.c)
GPU_TESTS = $(addprefix $(BUILD)/tests/,$(basename $(notdir $(GPU_SOURCES))))
BENCHES = $(patsubst tests/bench/%.c,$(BUILD)/bench/%,$(wildcard tests/bench/*_bench.c))
CUDA_BENCHES = $(patsubst tests/bench/%.cu,$(BUILD)/bench/%,$(wildcard tests/bench/*_bench.cu))
WITH_KERNELS = $(call objects,$(PROTO) $(KERNELS)) $(call cuda_objects,$(KERNELS_CU))

$(BUILD)/tests/test_resume: LDFLAGS += -Wl,--wrap=packet_receive,--wrap=epoll_wait

$(BUILD)/tests/test_resume_memory: LDFLAGS += -Wl,--wrap=packet_receive,--wrap=pthread_cond_timedwait

$(BUILD)/tests/test_libhbm_early: LDFLAGS += -Wl,--wrap=cuda_driver,--wrap=set_cuda_error

$(BUILD)/tests/test_core: LDFLAGS += -Wl,--wrap=buffer_get

$(BUILD)/tests/test_core_memory: $(BUILD)/tests/struck_core.o

.SECONDARY:
.SECONDEXPANSION:

$(UNIT_TESTS): $(BUILD)/tests/%: $(BUILD)/obj/tests/unit/%.o $$(call objects,$$($$*_PARTS))
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,cmocka $($*_LIBS)) -ldl -lm

# The core by itself, whose uses of memory go to whoever is linked with it.
$(BUILD)/tests/struck_core.o: $(call objects,$(BASE) $(wildcard daemon/core/*.c))
	@mkdir -p $(@D)
	$(call say,LD)$(CC) -r -nostdlib $(foreach f,malloc calloc realloc reallocarray strdup tsearch,-Wl$(comma)--wrap=$(f)) $^ -o $@

$(BUILD)/tests/fake_cufile.so: tests/unit/fake_cufile.c
	@mkdir -p $(@D)
	$(call say,CC)$(CC) -std=gnu17 -D_GNU_SOURCE $(WARN) -O2 -g -fPIC -fvisibility=hidden -shared $< -o $@

# Preloaded into any build, sanitized or not; inject_cuda.so beside it, where there is a driver.
$(BUILD)/tests/inject.so $(BUILD)/tests/inject_cuda.so: $(BUILD)/tests/%.so: tests/inject/%.c
	@mkdir -p $(@D)
	$(call say,CC)$(CC) -std=gnu17 -D_GNU_SOURCE $(WARN) -O2 -g -fno-builtin -fno-omit-frame-pointer -fPIC -shared -pthread $< -o $@ -ldl

$(BUILD)/obj/tests/%.o: EXTRA_CFLAGS = -Iclient $(if $(NVCC),-isystem $(CUDA_HOME)/include)

# (at = "step"), an assignment as a condition, is how codec_gpu remembers which step failed.
$(BUILD)/obj/tests/gpu/%.cu.o: NVCCFLAGS += -diag-suppress 187

matmul_gpu_CUDA = $(MATMUL_CU)
matmul_bench_CUDA = $(MATMUL_CU)
$(GPU_TESTS): $(BUILD)/tests/%: $(BUILD)/obj/tests/gpu/%$$(if $$(wildcard tests/gpu/%.cu),.cu).o $$(WITH_KERNELS) \
		$$(call cuda_objects,$$($$*_CUDA)) $(BUILD)/libhbm.a
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,libxxhash) $(CUDA_LIBS) -lstdc++ -lm

worker_bench_PARTS = $(addprefix daemon/worker/,cipher.c failure.c)
worker_bench_LIBS = libcrypto

$(BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $$(call objects,$$($$*_PARTS)) \
		$$(call cuda_objects,$$($$*_CUDA)) $(BUILD)/libhbm.a
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,libxxhash $($*_LIBS)) $($*_TAIL) -ldl -lm

$(BUILD)/demo/loop: $(BUILD)/obj/tests/demo/loop.o $(BUILD)/libhbm.a
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ -ldl -lm

$(BUILD)/soak/client: $(call objects,$(wildcard tests/soak/*.c)) $(BUILD)/libhbm.a
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ -ldl -lm

# Bare pinned copies and kernels are measured too where the CUDA runtime is there to make them.
ifneq ($(NVCC),)
$(BUILD)/obj/tests/bench/kernel_bench.o: EXTRA_CFLAGS += -DHBM_BENCH_CUDA
kernel_bench_CUDA = tests/bench/grind.cu
kernel_bench_TAIL = $(CUDA_LIBS) -lstdc++
$(BUILD)/obj/tests/bench/worker_bench.o: EXTRA_CFLAGS += -DHBM_BENCH_CUDA
worker_bench_TAIL = $(CUDA_LIBS) -lstdc++
endif

# cuBLAS is measured beside our own where the toolkit has it.
ifneq ($(and $(NVCC),$(wildcard $(CUDA_HOME)/include/cublas_v2.h)),)
$(BUILD)/obj/tests/bench/matmul_bench.cu.o: NVCCFLAGS += -DHBM_BENCH_CUBLAS
matmul_bench_TAIL = -lcublas -Wl,-rpath,$(CUDA_HOME)/lib64
endif

$(CUDA_BENCHES): $(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.cu.o $$(WITH_KERNELS) $$(call cuda_objects,$$($$*_CUDA))
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ $(CUDA_LIBS) $($*_TAIL) -lstdc++ -lm

# ---- Targets --------------------------------------------------------------------------------------------------------

.PHONY: demo pictures check check-gpu inject bench bench-gpu soak soak-gpu asan tsan mutate format lint install deb clean
.PHONY: programs unit-tests gpu-tests tsan-tests benches soak-client demo-loop

programs: $(BINARIES)
unit-tests: $(UNIT_TESTS) $(BUILD)/tests/sim $(BUILD)/tests/inject.so $(BUILD)/tests/fake_cufile.so
tsan-tests: $(TSAN_TESTS) $(BUILD)/tests/fake_cufile.so
gpu-tests: $(GPU_TESTS) $(BUILD)/tests/inject.so $(BUILD)/tests/inject_cuda.so
soak-client: $(BUILD)/soak/client
demo-loop: $(BUILD)/demo/loop
benches: programs $(BENCHES) $(if $(NVCC),$(CUDA_BENCHES))

demo: ## the whole job on a real model, on the GPU if there is one (MODEL=FILE.safetensors); installs what is missing
	@$(INSTALL_DEPS) build $(if $(MODEL),,demo)
	@$(MAKE) $(JOBS) --no-print-directory all demo-loop
	@BUILD='$(BUILD)' tests/demo/demo.sh $(if $(MODEL),'$(MODEL)')

pictures: programs ## draw again what README shows of `hbmctl top` and `hbmctl map`
	@HBM_BUILD='$(BUILD)' $(PYTEST_PYTHON) tests/demo/pictures.py packaging/pictures

check: ## all tests that need no GPU, under ASan and UBSan; installs what is missing
	@$(INSTALL_DEPS) build check
	@$(MAKE) $(JOBS) --no-print-directory all $(if $(NVCC),gpu-tests)
	@$(MAKE) $(JOBS) --no-print-directory asan fuzz-build
	@tests/tools/check.sh host '$(BUILD)' '$(BUILD)/asan'

check-gpu: ## all tests of the CUDA side, flows, injected failures and kill storm on the GPU; none may be waived where a GPU is
	@$(INSTALL_DEPS) build check
	@$(MAKE) $(JOBS) --no-print-directory all gpu-tests soak-client demo-loop
	@tests/tools/check.sh gpu '$(BUILD)'

inject: ## every call of memory and of the kernel fails once, in every flow (make check: a sample of them)
	@$(INSTALL_DEPS) build check
	@$(MAKE) $(JOBS) --no-print-directory asan
	@tests/tools/check.sh inject '$(BUILD)' '$(BUILD)/asan'

bench: ## measure the host device beside what the machine itself does (ONLY=offload,wake: a part), and plot it
	@$(INSTALL_DEPS) build bench
	@$(MAKE) $(JOBS) --no-print-directory benches
	@BUILD='$(BUILD)' tests/bench/run.sh host

bench-gpu: ## measure on the GPU beside the bare driver calls and copies (ONLY=...: a part), and plot it
	@$(INSTALL_DEPS) build bench
	@$(MAKE) $(JOBS) --no-print-directory benches
	@BUILD='$(BUILD)' tests/bench/run.sh gpu

SECONDS ?= 300

soak: ## the kill storm on the host device, sanitized: clients, workers and owner are killed at random (SECONDS=N SEED=S)
	@$(INSTALL_DEPS) build check
	@$(MAKE) $(JOBS) --no-print-directory asan
	@tests/soak/soak.sh host '$(BUILD)/asan' $(SECONDS) $(SEED)

soak-gpu: ## the same on the GPU
	@$(INSTALL_DEPS) build check
	@$(MAKE) $(JOBS) --no-print-directory all soak-client
	@tests/soak/soak.sh cuda '$(BUILD)' $(SECONDS) $(SEED)

# The sanitizers know nothing of device memory: that side is built plain, and tested by check-gpu.
asan: ## build under ASan and UBSan into build/asan, for the host device
	@$(MAKE) --no-print-directory BUILD='$(BUILD)/asan' SANITIZE=address,undefined NVCC= programs unit-tests soak-client demo-loop

tsan: ## the library's and the worker's tests under ThreadSanitizer
	@$(INSTALL_DEPS) build check
	@$(MAKE) $(JOBS) --no-print-directory BUILD='$(BUILD)/tsan' SANITIZE=thread NVCC= programs tsan-tests
	@tests/tools/check.sh tsan '$(BUILD)/tsan'

format: ## lay out all C and CUDA sources as .clang-format says
	clang-format -i $(SOURCES)

mutate: ## break the code, one place at a time, and see the tests of that fault fail (FAULTS='7 11'; minutes)
	@$(INSTALL_DEPS) build check
	@$(PYTEST_PYTHON) tests/mutate/mutate.py '$(BUILD)' $(FAULTS)

lint: ## cppcheck, clang-tidy and shellcheck, where they are installed (ANALYZE=1: gcc's analyzer too)
	@BUILD='$(BUILD)' CUDA_HOME='$(CUDA_HOME)' tests/tools/lint.sh $(SCRIPTS)

install: all ## install under DESTDIR and PREFIX (default /usr)
	@VERSION='$(VERSION)' BUILD='$(BUILD)' DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' tests/tools/install.sh

deb: ## Debian packages, in build/deb: hbmd, libhbm0, libhbm-dev, python3-hbm, libhbm-matmul0 by nvcc; linted, and tried under a systemd
	@$(INSTALL_DEPS) build check deb
	@BUILD='$(BUILD)' VERSION='$(VERSION)' NVCC='$(NVCC)' tests/tools/deb.sh

clean: ## remove everything that was built
	rm -rf '$(BUILD)'

# ---- The simulation: the core in a made-up world against a model, from a seed. ----------------------------------------

SEEDS ?= 20
SIM_STEPS ?= 500000
SIM = $(BUILD)/tests/sim

$(SIM): LDFLAGS += -Wl,--wrap=write,--wrap=renameat
$(SIM): $$(call objects,$$(FUZZ_WORLD) $(wildcard tests/sim/*.c))
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ -lm

.PHONY: sim
sim: asan ## simulate the core with random clients, deaths and restarts (SEEDS=N seeds of SIM_STEPS=M steps)
	@tests/sim/simulate.sh long '$(BUILD)/asan' $(SEEDS) $(SIM_STEPS)

# ---- Fuzzing: clang's libFuzzer with ASan and UBSan; one program a harness, tests/fuzz/fuzz_NAME.c. -----------------

FUZZ_SECONDS ?= 3600
FUZZ = $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZERS = $(FUZZ:%=$(BUILD)/fuzz_%)
FUZZ_WORLD = $(PROTO) $(BASE) $(wildcard daemon/core/*.c) $(addprefix daemon/worker/,check.c failure.c) \
	$(addprefix tests/fuzz/,world.c worker.c furnish.c look.c life.c)

fuzz_wire_PARTS = $(FUZZ_WORLD) $(wildcard daemon/wire/*.c) tests/fuzz/client.c
fuzz_wire_LIBS = libuv
fuzz_worker_PARTS = $(filter-out %/main.c,$(WORKER_HOST)) tests/fuzz/owner.c
fuzz_worker_LIBS = $(WORKER_LIBS)
fuzz_rpc_PARTS = $(FUZZ_WORLD) $(wildcard daemon/rpc/*.c)
fuzz_rpc_LIBS = libuv libcjson
fuzz_lossless_PARTS = $(PROTO) $(KERNELS)
fuzz_config_PARTS = $(test_config_PARTS)
fuzz_config_LIBS = $(test_config_LIBS)
fuzz_safetensors_PARTS = $(test_safetensors_PARTS)
fuzz_safetensors_LIBS = $(test_safetensors_LIBS)
fuzz_ranges_PARTS = $(test_ranges_PARTS)
fuzz_ranges_LIBS = $(test_ranges_LIBS)
fuzz_gguf_PARTS = $(test_gguf_PARTS)
fuzz_gguf_LIBS = $(test_gguf_LIBS)
fuzz_table_PARTS = $(FUZZ_WORLD)
fuzz_ledger_PARTS = $(FUZZ_WORLD)
fuzz_names_PARTS = $(FUZZ_WORLD) $(addprefix daemon/rpc/,encoding.c method.c)
fuzz_names_LIBS = libcjson
dictionary_PARTS = $(test_config_PARTS) daemon/rpc/method.c

$(FUZZERS): $(BUILD)/fuzz_%: $(BUILD)/obj/tests/fuzz/fuzz_%.o $$(call objects,$$(fuzz_$$*_PARTS))
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) -fsanitize=fuzzer $^ -o $@ $(if $(fuzz_$*_LIBS),$(call pc,libs,$(fuzz_$*_LIBS))) -lm

$(BUILD)/dictionary: $(BUILD)/obj/tests/fuzz/dictionary.o $(call objects,$(dictionary_PARTS))
	@mkdir -p $(@D)
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,inih libcjson)

.PHONY: fuzz fuzz-short fuzz-coverage fuzz-build fuzzers
fuzzers: $(FUZZERS) $(BUILD)/dictionary

# Of its own: these objects count the edges that they run over.
fuzz-build:
	@$(INSTALL_DEPS) build fuzz
	@$(MAKE) $(JOBS) --no-print-directory BUILD='$(BUILD)/fuzz' CC=clang SANITIZE=fuzzer-no-link,address,undefined \
		CFLAGS='-O1 -g' NVCC= fuzzers

fuzz: fuzz-build ## fuzz every parser and the daemon with live state, an hour each (FUZZ_SECONDS=N, FUZZ='wire ledger')
	@tests/fuzz/run.sh long '$(BUILD)/fuzz' $(FUZZ_SECONDS) $(FUZZ)
	@$(MAKE) $(JOBS) --no-print-directory fuzz-coverage

fuzz-coverage: ## how much of each parser the corpus reaches, with what make fuzz has kept
	@$(INSTALL_DEPS) build fuzz coverage
	@$(MAKE) $(JOBS) --no-print-directory BUILD='$(BUILD)/fuzz-coverage' CC=clang SANITIZE=fuzzer-no-link \
		CFLAGS='-O1 -g -fprofile-instr-generate -fcoverage-mapping' NVCC= fuzzers
	@tests/fuzz/coverage.sh '$(BUILD)/fuzz-coverage' '$(BUILD)/fuzz/corpus' $(FUZZ)

fuzz-short: fuzz-build ## every fuzzer for ten seconds, always from the same seeds; make check does this
	@tests/fuzz/run.sh short '$(BUILD)/fuzz' 10 $(FUZZ)
