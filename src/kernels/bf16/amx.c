/* Whether AMX can be used. */
#include "kernels/bf16/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool usable, hidden;

static bool has_bits(unsigned value, unsigned bits) {
    return (value & bits) == bits;
}

/* Whether the processor has tiles with bf16 products, and AVX-512 with bf16 for the code around them. */
static bool processor_has_amx(void) {
    enum { FEATURES = 7 };
    const unsigned amx = 1u << 22 | 1u << 24, avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31, bf16 = 1u << 5;
    unsigned a = 0, b = 0, c = 0, d = 0, further = 0;
    if (!__get_cpuid_count(FEATURES, 0, &a, &b, &c, &d) || !has_bits(d, amx) || !has_bits(b, avx512)) {
        return false;
    }
    return __get_cpuid_count(FEATURES, 1, &further, &b, &c, &d) && has_bits(further, bf16);
}

/* Tiles add 8 KB of state to each thread, so Linux requires a request. */
static bool system_permits(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool describes_tiles(void) {
    enum { TILES = 0x1d };
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(TILES, 0, &a, &b, &c, &d) && a > 0;
}

/* The environment variable that limits oneDNN also limits us. */
static bool is_forbidden(void) {
    static const char *const names[] = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"};
    const char *value = NULL;
    for (int n = 0; n < 2 && !value; n++) {
        value = getenv(names[n]);
    }
    return value && *value && strcmp(value, "ALL") != 0 && strcmp(value, "DEFAULT") != 0 &&
           strcmp(value, "AVX512_CORE_AMX") != 0;
}

static void find_out(void) {
    bool there = processor_has_amx() && system_permits();
    hidden = there && !describes_tiles() && !is_forbidden();
    usable = there && car_amx_is_built() && !is_forbidden();
}

static void find_out_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_out);
}

bool car_amx_usable(void) {
    find_out_once();
    return usable;
}

bool car_amx_is_hidden(void) {
    find_out_once();
    return hidden;
}
#else
bool car_amx_usable(void) {
    return false;
}

bool car_amx_is_hidden(void) {
    return false;
}
#endif
