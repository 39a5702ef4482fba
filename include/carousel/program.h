/* A program: a graph made ready for one table of kernels on this machine.
 *
 * Creating it chooses the memory layout of every tensor and parameter, creates the primitives and
 * sums up the scratch space that they need. A program is immutable: any number of threads may run it
 * at the same time, each through a car_lane of its own. */
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
    CAR_KERNELS_ONEDNN     /* oneDNN's primitives and vectorised loops */
} car_kernels;

/* How convolutions are computed; for oneDNN's table. */
typedef enum car_convolutions {
    CAR_CONVOLUTIONS_AUTO,    /* whichever is faster for the shape: a fixed rule, the same on all machines of a kind */
    CAR_CONVOLUTIONS_DIRECT,  /* never by Winograd's algorithm */
    CAR_CONVOLUTIONS_WINOGRAD /* Winograd's wherever the shape allows, even where that is slower */
} car_convolutions;

typedef struct car_program_config {
    car_kernels kernels;
    int threads; /* inside one kernel; part of what fixes the bits. With more than one, convolutions are direct */
    car_convolutions convolutions;
    bool tight; /* auto convolutions: by Winograd's algorithm only if that takes no more memory than direct ones */
    /* Finds stages of one's own that write out of bounds (stage.h), at the cost of copies. Default: in debug builds. */
    bool guards;
} car_program_config;

car_program_config car_program_config_default(void); /* oneDNN, 1 thread, auto */

/* Whether this machine has instructions that multiply bf16. Without them a program in bf16 computes products in fp32,
 * of the same numbers and rounded at the same points. */
bool car_program_multiplies_bf16(void);

/* "auto", "direct" or "winograd"; CAR_ERROR_UNKNOWN_NAME for anything else. */
car_status car_convolutions_find(car_context *context, const char *name, car_convolutions *out);
const char *car_convolutions_text(car_convolutions convolutions);
/* "normal" or "tight", for `tight`. */
car_status car_convolutions_find_memory(car_context *context, const char *name, bool *tight);

/* Whether a program of this graph would compute an operation by Winograd's algorithm. Needs no program, and depends
 * on nothing but the arguments and the machine's instruction set. `config` may be NULL. */
bool car_program_uses_winograd(const car_graph *graph, const car_program_config *config, int op);

/* The graph must outlive the program. `config` may be NULL. */
car_status car_program_create(const car_graph *graph, const car_program_config *config, car_program **out);
void car_program_destroy(car_program *program);

const car_graph *car_program_graph(const car_program *program);
size_t car_program_tensor_bytes(const car_program *program, int tensor); /* in its layout, padding included */
size_t car_program_grad_buffer_bytes(const car_program *program, int buffer);
size_t car_program_param_bytes(const car_program *program, int param); /* of its values: master, gradient, states */
size_t car_program_copy_bytes(const car_program *program, int param);  /* of what forwards and backwards read */
size_t car_program_derived_bytes(const car_program *program, int op);  /* forms of weights kept per version */
size_t car_program_scratch_bytes(const car_program *program);          /* of one lane */
/* Which implementation runs an operation, for people: "jit:avx512_core", "winograd:avx2", "reference". */
const char *car_program_kernel_name(const car_program *program, int op);
/* Equal for two programs of the same graph that compute the same bits on the same kind of machine: over all of those
 * names and the configuration. What processes that train together compare. */
uint64_t car_program_fingerprint(const car_program *program);

/* Between PyTorch's row-major layout and the program's. Buffers must not overlap. The padding of
 * `stored` is set to zero. Values are floats, or doubles where the parameter holds doubles. */
car_status car_program_import_param(const car_program *program, int param, const void *canonical, void *stored);
car_status car_program_export_param(const car_program *program, int param, const void *stored, void *canonical);
/* The same for a tensor of floats, for looking at activations. */
car_status car_program_export_tensor(const car_program *program, int tensor, const void *stored, float *canonical);

/* What one thread needs to run kernels: scratch space from the arena's workspace and a stream. */
car_status car_lane_create(const car_program *program, car_arena *arena, car_lane **out);
void car_lane_destroy(car_lane *lane);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
