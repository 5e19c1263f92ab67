# hbmd: a GPU-memory broker. `make help` introduces every target.
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:

VERSION := 0.1.0
BUILD ?= build
PREFIX ?= /usr
CC = gcc
NVCC ?= $(or $(wildcard /usr/local/cuda/bin/nvcc),$(shell command -v nvcc 2>/dev/null))
CUDA_ARCHS ?= 80 90 100

WARN = -Wall -Wextra -Werror -Wshadow -Wmissing-prototypes -Wstrict-prototypes -Wvla
CFLAGS ?= -O2 -g
ALL_CFLAGS = -std=gnu17 -D_GNU_SOURCE -I. $(WARN) -ffp-contract=off -fPIC -fvisibility=hidden -pthread \
	-DHBM_VERSION='"$(VERSION)"' $(CFLAGS) $(SANITIZE_FLAGS)
ifneq ($(SANITIZE),)
SANITIZE_FLAGS = -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
LINK = $(CC) -pthread $(CFLAGS) $(SANITIZE_FLAGS) $(LDFLAGS)

pc = $(shell pkg-config --$(1) $(2))
OWNER_LIBS = libuv libcjson libsystemd inih
WORKER_LIBS = liburing libxxhash libcrypto

PROTO = $(wildcard proto/*.c)
BASE = $(wildcard daemon/base/*.c)
KERNELS = $(wildcard kernels/*.c)
KERNELS_CU = $(wildcard kernels/*.cu)
MATMUL_CU = $(wildcard kernels/matmul/*.cu)
OWNER = $(PROTO) $(BASE) $(wildcard daemon/core/*.c daemon/job/*.c daemon/wire/*.c daemon/rpc/*.c config/*.c daemon/*.c)
WORKER = $(PROTO) $(BASE) $(KERNELS) $(filter-out %_main.c,$(wildcard daemon/worker/*.c))
WORKER_HOST = $(WORKER) $(wildcard daemon/worker/host/*.c)
WORKER_CUDA = $(WORKER) $(wildcard daemon/worker/cuda/*.c)
LIB = $(PROTO) $(wildcard client/lib/*.c)
CTL = $(wildcard client/ctl/*.c)

comma := ,
# A line a step; V=1 shows the commands themselves.
say = $(if $(V),,@echo '  $(1) $@';)
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
cuda_objects = $(patsubst %.cu,$(BUILD)/obj/%.cu.o,$(1))

BINARIES = $(BUILD)/hbmd $(BUILD)/hbm-worker $(BUILD)/hbmctl $(BUILD)/libhbm.so $(BUILD)/libhbm.a $(BUILD)/hbm-rpc.7
ifneq ($(NVCC),)
BINARIES += $(BUILD)/hbm-worker-cuda $(BUILD)/libhbm-matmul.so $(BUILD)/hbm-bench-smem
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_KNOWN := $(shell $(NVCC) --list-gpu-arch 2>/dev/null)
GENCODE := $(foreach a,$(CUDA_ARCHS),$(if $(filter compute_$(a),$(CUDA_KNOWN)),-gencode arch=compute_$(a)$(comma)code=sm_$(a))) \
	-gencode arch=compute_80,code=compute_80
# NVCC_QUICK=1: kernels are there sooner and run more slowly, where nvcc knows how to.
QUICKLY := $(if $(NVCC_QUICK),$(if $(shell $(NVCC) --help | grep -e --Ofast-compile),-Ofc=mid))
NVCCFLAGS = -std=c++17 -O3 $(QUICKLY) -fmad=false -lineinfo -I. $(GENCODE) -Werror all-warnings -Xcompiler -Wall,-Wextra,-fPIC
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif

.PHONY: all help
all: $(BINARIES) ## build everything that this machine can build
ifeq ($(NVCC),)
	@echo "no nvcc found: built for the host device only (hbm-worker-cuda needs CUDA Toolkit 12.4 or newer)"
endif

help: ## this text
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(ALL_CFLAGS) $(EXTRA_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/obj/daemon/worker/cuda/%.o: EXTRA_CFLAGS = -isystem $(CUDA_HOME)/include
$(BUILD)/obj/client/lib/%.o: EXTRA_CFLAGS = -Iclient

$(BUILD)/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call say,NVCC)$(NVCC) $(NVCCFLAGS) -MMD -MP -c $< -o $@

# Tensor cores by warp group are of 9.0 alone, and no part of what later architectures run.
$(BUILD)/obj/kernels/matmul/wide_half.cu.o: GENCODE := $(subst compute_90$(comma)code=sm_90,compute_90a$(comma)code=sm_90a,$(GENCODE))

$(BUILD)/hbmd: $(call objects,$(OWNER))
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,$(OWNER_LIBS))

$(BUILD)/hbm-worker: $(call objects,$(WORKER_HOST))
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,$(WORKER_LIBS)) -ldl -lm

$(BUILD)/hbm-worker-cuda: $(call objects,$(WORKER_CUDA)) $(call cuda_objects,$(KERNELS_CU))
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,$(WORKER_LIBS)) $(CUDA_LIBS) -lstdc++ -lm

$(BUILD)/libhbm-matmul.so: $(call cuda_objects,$(MATMUL_CU))
	$(call say,LD)$(LINK) -shared -Wl,-soname,libhbm-matmul.so.0 $^ -o $@ $(CUDA_LIBS) -lstdc++

$(BUILD)/hbm-bench-smem: $(call cuda_objects,kernels/bench/smem.cu $(MATMUL_CU))
	$(call say,LD)$(LINK) $^ -o $@ $(CUDA_LIBS) -lstdc++

$(BUILD)/hbmctl: $(call objects,$(CTL)) $(BUILD)/libhbm.a
	$(call say,LD)$(LINK) $^ -o $@ $(call pc,libs,libcjson libxxhash) -ldl -lm

$(BUILD)/libhbm.so: $(call objects,$(LIB)) client/lib/libhbm.map
	$(call say,LD)$(LINK) -shared -Wl,-soname,libhbm.so.0,--version-script=client/lib/libhbm.map $(filter %.o,$^) -o $@ -ldl

$(BUILD)/libhbm.a: $(call objects,$(LIB))
	@rm -f $@
	$(call say,AR)ar rcs $@ $^

# The manual's page of the JSON-RPC, from its own tables.
$(BUILD)/rpc-man: $(BUILD)/obj/packaging/man/rpc_man.o
	$(call say,LD)$(LINK) $^ -o $@

$(BUILD)/hbm-rpc.7: $(BUILD)/rpc-man
	$(call say,GEN)$< >$@

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

include $(wildcard tests/tests.mk)
