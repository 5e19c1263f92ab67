/* Preloaded beside inject.c on a GPU machine: every call of the driver and of NVML that a program finds by dlsym, or the CUDA
 * runtime by cuGetProcAddress, goes through a stub here that may fail instead. Their names and parameters need not be known. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define STUBS 2048
#define STUB_BYTES 16

int inject_cuda_call(const char *name, void *caller);
int inject_stub(unsigned long i, void *caller);
void *dlsym(void *restrict handle, const char *restrict name);

extern const char inject_stubs[];
void *inject_reals[STUBS];
static char names[STUBS][64];
static unsigned used;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* Stub i: its number on the stack, above where to return to; then common ground: all that may carry a parameter is kept,
 * inject_stub asked, and either its answer returned or the real call jumped to. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl inject_stubs\n"
        ".hidden inject_stubs\n"
        "inject_stubs:\n"
        ".set i, 0\n"
        ".rept 2048\n"
        ".p2align 4\n"
        "pushq $i\n"
        "jmp inject_common\n"
        ".set i, i + 1\n"
        ".endr\n"
        ".p2align 4\n"
        "inject_common:\n"
        "pushq %rdi; pushq %rsi; pushq %rdx; pushq %rcx; pushq %r8; pushq %r9; pushq %rax\n"
        "subq $136, %rsp\n"
        "movups %xmm0, (%rsp); movups %xmm1, 16(%rsp); movups %xmm2, 32(%rsp); movups %xmm3, 48(%rsp)\n"
        "movups %xmm4, 64(%rsp); movups %xmm5, 80(%rsp); movups %xmm6, 96(%rsp); movups %xmm7, 112(%rsp)\n"
        "movq 192(%rsp), %rdi\n"
        "movq 200(%rsp), %rsi\n"
        "call inject_stub@PLT\n"
        "movl %eax, %r11d\n"
        "movups (%rsp), %xmm0; movups 16(%rsp), %xmm1; movups 32(%rsp), %xmm2; movups 48(%rsp), %xmm3\n"
        "movups 64(%rsp), %xmm4; movups 80(%rsp), %xmm5; movups 96(%rsp), %xmm6; movups 112(%rsp), %xmm7\n"
        "addq $136, %rsp\n"
        "popq %rax; popq %r9; popq %r8; popq %rcx; popq %rdx; popq %rsi; popq %rdi\n"
        "testl %r11d, %r11d\n"
        "jnz 1f\n"
        "movq inject_reals@GOTPCREL(%rip), %r10\n"
        "popq %r11\n"
        "jmpq *(%r10, %r11, 8)\n"
        "1: addq $8, %rsp\n"
        "movl %r11d, %eax\n"
        "ret\n");

int inject_stub(unsigned long i, void *caller)
{
    return inject_cuda_call(names[i], caller);
}

static void *stub_of(const char *name, void *real)
{
    unsigned i = 0;

    pthread_mutex_lock(&mutex);
    while (i < used && inject_reals[i] != real)
        i++;
    if (i == used && used < STUBS) {
        used++;
        inject_reals[i] = real;
        strncpy(names[i], name, sizeof(names[i]) - 1);
    }
    pthread_mutex_unlock(&mutex);
    return i < STUBS ? (void *)(inject_stubs + (size_t)i * STUB_BYTES) : real;
}

static int (*get_proc_address)(const char *, void **, int, uint64_t);
static int (*get_proc_address_v2)(const char *, void **, int, uint64_t, void *);

static void *wrapped(const char *name, void *real);

static int wrapped_get_proc_address(const char *name, void **call, int version, uint64_t flags)
{
    int error = get_proc_address(name, call, version, flags);

    if (!error && call)
        *call = wrapped(name, *call);
    return error;
}

static int wrapped_get_proc_address_v2(const char *name, void **call, int version, uint64_t flags, void *status)
{
    int error = get_proc_address_v2(name, call, version, flags, status);

    if (!error && call)
        *call = wrapped(name, *call);
    return error;
}

/* What answers with something else than an error is left alone. */
static void *wrapped(const char *name, void *real)
{
    if (!real || !strcmp(name, "cuGetExportTable") || strstr(name, "ErrorString") || strstr(name, "ErrorName"))
        return real;
    if (!strcmp(name, "cuGetProcAddress_v2")) {
        get_proc_address_v2 = (__typeof__(get_proc_address_v2))real;
        return (void *)wrapped_get_proc_address_v2;
    }
    if (!strcmp(name, "cuGetProcAddress")) {
        /* Asked of dlsym it is the first version; asked of the second, the second. */
        if (get_proc_address_v2) {
            get_proc_address_v2 = (__typeof__(get_proc_address_v2))real;
            return (void *)wrapped_get_proc_address_v2;
        }
        get_proc_address = (__typeof__(get_proc_address))real;
        return (void *)wrapped_get_proc_address;
    }
    return stub_of(name, real);
}

/* A jump to the real one for all else: RTLD_NEXT means next to whoever called. */
void *dlsym(void *restrict handle, const char *restrict name)
{
    static void *(*real)(void *, const char *);

    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (strncmp(name, "cu", 2) && strncmp(name, "nvml", 4))
        return real(handle, name);
    return wrapped(name, real(handle, name));
}
