/* oneDNN: engine, streams, the mode of a thread, and helpers for primitives. */
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <pthread.h>

#include "carousel/program.h"
#include "kernels/bf16/amx.h"
#include "kernels/onednn/onednn.h"

enum { MAX_ARGUMENTS = 8 };

/* oneDNN uses GNU OpenMP. Declared here because clang's omp.h belongs to another runtime, and a process must not
 * load both. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int count);

/* If the processor hides its AMX description, oneDNN must not use AMX. Must be called before oneDNN's first
 * primitive. */
static void limit_isa(void) {
    if (car_amx_is_hidden()) {
        dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    }
}

static void limit_isa_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, limit_isa);
}

static unsigned effective_isa(void) {
    limit_isa_once();
    return (unsigned)dnnl_get_effective_cpu_isa();
}

static bool isa_has(unsigned wanted) {
    return (effective_isa() & wanted) == wanted;
}

/* ---- engine and streams ---------------------------------------------------------------------- */

car_status car_kernels_onednn_open(car_context *context, void **engine) {
    dnnl_engine_t handle = NULL;
    *engine = NULL;
    limit_isa_once();
    if (dnnl_engine_create(&handle, dnnl_cpu, 0) != dnnl_success) {
        return car_context_fail(context, CAR_ERROR_KERNEL, "oneDNN could not create a CPU engine");
    }
    *engine = handle;
    return CAR_OK;
}

void car_kernels_onednn_close(void *engine) {
    if (engine) {
        dnnl_engine_destroy(engine);
    }
}

car_status car_kernels_onednn_open_stream(car_context *context, void *engine, void **stream) {
    dnnl_stream_t handle = NULL;
    *stream = NULL;
    if (dnnl_stream_create(&handle, engine, dnnl_stream_default_flags) != dnnl_success) {
        return car_context_fail(context, CAR_ERROR_KERNEL, "oneDNN could not create a stream");
    }
    *stream = handle;
    return CAR_OK;
}

void car_kernels_onednn_close_stream(void *stream) {
    if (stream) {
        dnnl_stream_destroy(stream);
    }
}

car_kernel_mode car_kernels_enter(int threads) {
    car_kernel_mode previous = {.threads = omp_get_max_threads()};
    omp_set_num_threads(threads); /* applies to this thread only */
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
    previous.control = _mm_getcsr();
    _mm_setcsr(previous.control | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
#endif
    return previous;
}

void car_kernels_leave(car_kernel_mode previous) {
    omp_set_num_threads(previous.threads);
#if defined(__x86_64__)
    _mm_setcsr(previous.control);
#endif
}

bool car_kernels_multiply(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    limit_isa_once();
    return dnnl_sgemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) == dnnl_success;
}

/* Asks oneDNN for the preferred layout of a typical convolution, which depends only on the machine. */
int car_kernels_onednn_block(void) {
    enum { NARROW = 8, WIDE = 16 };
    const dnnl_dims_t image = {1, 64, 16, 16}, weight = {64, 64, 3, 3}, ones = {1, 1};
    dnnl_memory_desc_t source, weights, target, wide;
    dnnl_convolution_desc_t convolution;
    dnnl_engine_t engine = NULL;
    dnnl_primitive_desc_t description = NULL;
    int block = NARROW;
    limit_isa_once();
    if (dnnl_memory_desc_init_by_tag(&source, 4, image, dnnl_f32, dnnl_format_tag_any) == dnnl_success &&
        dnnl_memory_desc_init_by_tag(&target, 4, image, dnnl_f32, dnnl_format_tag_any) == dnnl_success &&
        dnnl_memory_desc_init_by_tag(&weights, 4, weight, dnnl_f32, dnnl_format_tag_any) == dnnl_success &&
        dnnl_memory_desc_init_by_tag(&wide, 4, image, dnnl_f32, dnnl_nChw16c) == dnnl_success &&
        dnnl_convolution_forward_desc_init(&convolution, dnnl_forward_training, dnnl_convolution_direct, &source,
                                           &weights, NULL, &target, ones, ones, ones) == dnnl_success &&
        dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_primitive_desc_create(&description, &convolution, NULL, engine, NULL) == dnnl_success) {
        const dnnl_memory_desc_t *chosen = dnnl_primitive_desc_query_md(description, dnnl_query_dst_md, 0);
        block = chosen && dnnl_memory_desc_equal(chosen, &wide) ? WIDE : NARROW;
    }
    if (description) {
        dnnl_primitive_desc_destroy(description);
    }
    if (engine) {
        dnnl_engine_destroy(engine);
    }
    return block;
}

bool car_program_multiplies_bf16(void) {
    bool would_die = car_amx_is_hidden() && isa_has(dnnl_cpu_isa_avx512_core_amx);
    return isa_has(dnnl_cpu_isa_avx512_core_bf16) && !would_die;
}

/* ---- helpers --------------------------------------------------------------------------------- */

car_status car_onednn_check(const car_kernel *kernel, dnnl_status_t result, const char *what) {
    if (result == dnnl_success) {
        return CAR_OK;
    }
    car_status status = result == dnnl_out_of_memory ? CAR_ERROR_MEMORY : CAR_ERROR_KERNEL;
    return car_context_fail(kernel->context, status, "%s (%s): oneDNN failed to %s (code %d)", kernel->op->name,
                            car_op_kind_text(kernel->op->kind), what, (int)result);
}

car_status car_onednn_image(const car_kernel *kernel, car_shape shape, int block, dnnl_memory_desc_t *out) {
    dnnl_dims_t dims = {0};
    for (int d = 0; d < shape.rank; d++) {
        dims[d] = shape.dim[d];
    }
    dnnl_format_tag_t tag = block == 16 ? dnnl_nChw16c : block == 8 ? dnnl_nChw8c : dnnl_nchw;
    return car_onednn_check(kernel, dnnl_memory_desc_init_by_tag(out, shape.rank, dims, car_onednn_type(kernel), tag),
                            "describe a tensor");
}

car_status car_onednn_execute(const car_kernel *kernel, const_dnnl_primitive_t primitive, void *stream,
                              const car_onednn_argument *arguments, int count) {
    dnnl_exec_arg_t bound[MAX_ARGUMENTS] = {{0}};
    int made = 0;
    car_status status = CAR_OK;
    for (; made < count; made++) {
        bound[made].arg = arguments[made].index;
        CAR_DNNL(kernel,
                 dnnl_memory_create(&bound[made].memory, arguments[made].layout, kernel->engine,
                                    (void *)(uintptr_t)arguments[made].data),
                 "bind memory");
    }
    CAR_DNNL(kernel, dnnl_primitive_execute(primitive, stream, count, bound), "run");
    CAR_DNNL(kernel, dnnl_stream_wait(stream), "finish");
done:
    while (made > 0) {
        dnnl_memory_destroy(bound[--made].memory);
    }
    return status;
}

car_status car_onednn_step_describe(const car_kernel *kernel, const_dnnl_op_desc_t descriptor,
                                    const_dnnl_primitive_desc_t hint, car_onednn_step *out) {
    dnnl_primitive_attr_t attributes = NULL;
    car_status status = CAR_OK;
    CAR_DNNL(kernel, dnnl_primitive_attr_create(&attributes), "create attributes");
    CAR_DNNL(kernel, dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), "ask for scratch");
    CAR_DNNL(kernel, dnnl_primitive_desc_create(&out->description, descriptor, attributes, kernel->engine, hint),
             "find an implementation");
    out->scratch = *dnnl_primitive_desc_query_md(out->description, dnnl_query_scratchpad_md, 0);
    out->scratch_bytes = dnnl_memory_desc_get_size(&out->scratch);
done:
    if (attributes) {
        dnnl_primitive_attr_destroy(attributes);
    }
    return status;
}

car_status car_onednn_step_compile(const car_kernel *kernel, car_onednn_step *step) {
    return car_onednn_check(kernel, dnnl_primitive_create(&step->primitive, step->description), "compile");
}

car_status car_onednn_step_create(const car_kernel *kernel, const_dnnl_op_desc_t descriptor,
                                  const_dnnl_primitive_desc_t hint, car_onednn_step *out) {
    car_status status = car_onednn_step_describe(kernel, descriptor, hint, out);
    return status == CAR_OK ? car_onednn_step_compile(kernel, out) : status;
}

void car_onednn_step_destroy(car_onednn_step *step) {
    if (step->primitive) {
        dnnl_primitive_destroy(step->primitive);
    }
    if (step->description) {
        dnnl_primitive_desc_destroy(step->description);
    }
    *step = (car_onednn_step){0};
}

const char *car_onednn_step_name(const car_onednn_step *step) {
    const char *name = NULL;
    dnnl_primitive_desc_query(step->description, dnnl_query_impl_info_str, 0, &name);
    return name ? name : "oneDNN";
}

const dnnl_memory_desc_t *car_onednn_step_layout(const car_onednn_step *step, dnnl_query_t what) {
    return dnnl_primitive_desc_query_md(step->description, what, 0);
}

car_status car_onednn_reorder(const car_kernel *kernel, void *stream, const dnnl_memory_desc_t *from,
                              const void *source, const dnnl_memory_desc_t *to, void *target) {
    dnnl_primitive_desc_t description = NULL;
    dnnl_primitive_t primitive = NULL;
    car_status status = CAR_OK;
    CAR_DNNL(kernel, dnnl_reorder_primitive_desc_create(&description, from, kernel->engine, to, kernel->engine, NULL),
             "find a reorder");
    CAR_DNNL(kernel, dnnl_primitive_create(&primitive, description), "compile a reorder");
    const car_onednn_argument arguments[] = {{DNNL_ARG_FROM, from, source}, {DNNL_ARG_TO, to, target}};
    CAR_TRY(car_onednn_execute(kernel, primitive, stream, arguments, 2));
done:
    if (primitive) {
        dnnl_primitive_destroy(primitive);
    }
    if (description) {
        dnnl_primitive_desc_destroy(description);
    }
    return status;
}

car_status car_onednn_sgemm(const car_kernel *kernel, char trans_a, char trans_b, int64_t m, int64_t n, int64_t k,
                            const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                            int64_t ldc) {
    return car_onednn_check(kernel, dnnl_sgemm(trans_a, trans_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc),
                            "multiply matrices");
}
