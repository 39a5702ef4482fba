/* A program: a graph prepared for one table of kernels on this machine.
 *
 * Creating it chooses the memory layout of each tensor and parameter, creates the kernels' primitives and adds up
 * their scratch space. A program is immutable: any number of threads may run it at once, each with its own car_lane. */
#ifndef CAROUSEL_PROGRAM_H
#define CAROUSEL_PROGRAM_H

#include "carousel/arena.h"
#include "carousel/graph.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct car_program car_program;
typedef struct car_lane car_lane;

typedef enum car_kernels {
    CAR_KERNELS_REFERENCE, /* plain C, for checking; slow */
    CAR_KERNELS_ONEDNN     /* oneDNN's primitives, and vectorised loops */
} car_kernels;

/* How convolutions are computed. Only for CAR_KERNELS_ONEDNN. */
typedef enum car_convolutions {
    /* The faster one for the shape, by a fixed rule: the same on all machines of a kind. */
    CAR_CONVOLUTIONS_AUTO,
    CAR_CONVOLUTIONS_DIRECT,  /* never Winograd's algorithm */
    CAR_CONVOLUTIONS_WINOGRAD /* Winograd's wherever the shape allows it, even if slower */
} car_convolutions;

typedef struct car_program_config {
    car_kernels kernels;
    /* Threads inside one kernel; the bits depend on it. With more than one, convolutions are direct. */
    int threads;
    car_convolutions convolutions;
    /* With CAR_CONVOLUTIONS_AUTO: use Winograd's algorithm only if it takes no more memory than the direct one. */
    bool tight;
    /* Detect user-defined stages that write out of bounds (stage.h), at the cost of copies. Default: on in debug
     * builds. */
    bool guards;
} car_program_config;

car_program_config car_program_config_default(void); /* oneDNN, 1 thread, auto */

/* Whether this machine can multiply bf16 in hardware. Without it, a bf16 program multiplies in fp32, with the same
 * inputs and the same points of rounding. */
bool car_program_multiplies_bf16(void);

/* "auto", "direct" or "winograd"; CAR_ERROR_UNKNOWN_NAME for anything else. */
car_status car_convolutions_find(car_context *context, const char *name, car_convolutions *out);
const char *car_convolutions_text(car_convolutions convolutions);
/* "normal" or "tight": the name of `tight`. */
car_status car_convolutions_find_memory(car_context *context, const char *name, bool *tight);

/* Whether a program of this graph would use Winograd's algorithm for an operation. Depends only on the arguments and
 * the machine's instruction set. `config` may be NULL. */
bool car_program_uses_winograd(const car_graph *graph, const car_program_config *config, int op);

/* The graph must outlive the program. `config` may be NULL for the defaults. */
car_status car_program_create(const car_graph *graph, const car_program_config *config, car_program **out);
void car_program_destroy(car_program *program);

const car_graph *car_program_graph(const car_program *program);
size_t car_program_tensor_bytes(const car_program *program, int tensor); /* in its layout, with padding */
size_t car_program_grad_buffer_bytes(const car_program *program, int buffer);
/* Bytes of a parameter's values in its layout: of its master copy, its gradient, and each optimizer state. */
size_t car_program_param_bytes(const car_program *program, int param);
/* Bytes of the copy that forwards and backwards read. */
size_t car_program_copy_bytes(const car_program *program, int param);
/* Bytes of additional forms of an operation's weights, kept for each version. */
size_t car_program_derived_bytes(const car_program *program, int op);
size_t car_program_scratch_bytes(const car_program *program); /* of one lane */
/* The implementation of an operation, for display: "jit:avx512_core", "winograd:avx2", "reference". */
const char *car_program_kernel_name(const car_program *program, int op);
/* Equal for two programs of the same graph that compute the same bits on the same kind of machine. Processes that
 * train together compare it. Covers the names above and the configuration. */
uint64_t car_program_fingerprint(const car_program *program);

/* Converts a parameter from PyTorch's row-major layout to the program's. The buffers must not overlap. Padding in
 * `stored` is zeroed. Values are floats, or doubles if the parameter holds doubles. */
car_status car_program_import_param(const car_program *program, int param, const void *canonical, void *stored);
/* The reverse. */
car_status car_program_export_param(const car_program *program, int param, const void *stored, void *canonical);
/* The same for a tensor of floats, to look at activations. */
car_status car_program_export_tensor(const car_program *program, int tensor, const void *stored, float *canonical);

/* What one thread needs to run kernels: scratch space from the arena (CAR_MEMORY_WORKSPACE) and a stream. */
car_status car_lane_create(const car_program *program, car_arena *arena, car_lane **out);
void car_lane_destroy(car_lane *lane);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
