/* The table of kernels: one class for each kind of operation, in two implementations.
 *
 * A kernel is an operation of a graph prepared for execution. `prepare` sees only shapes; `forward` and `backward`
 * see only pointers. A prepared kernel is immutable, so threads share it.
 *
 * Layouts. Tensors of rank 4 are stored as [n][ceil(c/block)][h][w][block], with one block size per tensor: 1 is
 * PyTorch's NCHW, 8 or 16 suit oneDNN's convolutions. Padding channels in the last block are always zero. All other
 * tensors are row-major. So are parameters, except for weights of convolutions, whose layout `prepare` chooses. */
#ifndef CAR_KERNEL_H
#define CAR_KERNEL_H

#include "base/base.h"
#include "carousel/graph.h"
#include "carousel/program.h"

typedef struct car_kernel car_kernel;

/* What a kernel works on. Pointers that do not apply to the operation are NULL. */
typedef struct car_kernel_io {
    const void *in[CAR_MAX_INPUTS]; /* in backward: only inputs that the operation saves */
    void *out;                      /* in backward: only if saved */
    void *aux;
    const void *param[CAR_MAX_PARAMS]; /* bf16 or floats, by car_param.copy */
    const void *derived;               /* made by `derive` from the parameters */
    const void *grad_out;
    /* NULL where grad_mode is NONE or SHARED. May be the same buffer as grad_out (never with mode ADD). For
     * convolutions, linear layers and the loss it may also be in[0]: these read in[0] before they write. */
    void *grad_in[CAR_MAX_INPUTS];
    float *grad_param[CAR_MAX_PARAMS]; /* overwritten */
    void *scratch;                     /* car_kernel.scratch_bytes, aligned to 64 */
    void *rebuilt;                     /* for user-defined stages: see car_stage_io */
    double *loss; /* for user-defined stages, in forward: the loss that stages have added up so far */
    void *stream; /* the lane's dnnl_stream_t */
    bool training;
    bool makes_loss; /* in backward of a head with its loss: forward was skipped, so write the loss to `out`, too */
    uint64_t key;    /* for random numbers; depends on micro-batch and operation */
} car_kernel_io;

typedef struct car_kernel_class {
    /* Returns a more specialised class for this kernel's shapes, or this one. NULL: always this one. */
    const struct car_kernel_class *(*choose)(const car_kernel *kernel);
    car_status (*prepare)(car_kernel *kernel); /* may be NULL */
    void (*release)(car_kernel *kernel);       /* may be NULL; also called after a failed prepare */
    car_status (*forward)(const car_kernel *kernel, const car_kernel_io *io);
    car_status (*backward)(const car_kernel *kernel, const car_kernel_io *io);
    /* Makes derived_bytes of whatever else forward or backward need from the stored parameters. */
    car_status (*derive)(const car_kernel *kernel, const float *const *param, void *derived, void *stream);
    /* Convert a parameter whose layout prepare chose (own_layout). */
    car_status (*import_param)(const car_kernel *kernel, const float *canonical, float *stored);
    car_status (*export_param)(const car_kernel *kernel, const float *stored, float *canonical);
    bool adds_grad; /* backward handles CAR_GRAD_ADD; otherwise the program adds */
} car_kernel_class;

struct car_kernel {
    const car_kernel_class *class; /* chosen by car_kernel_prepare */
    const car_graph *graph;
    const car_op *op;
    car_context *context;
    void *engine; /* from car_kernels_onednn_open; NULL for the reference */
    /* Set before prepare. Blocks apply to tensors of rank 4. */
    car_convolutions convolutions;
    bool guards; /* see car_program_config */
    bool bf16;   /* works on bf16 tensors directly; see widen.c */
    int block_in[CAR_MAX_INPUTS], block_out;
    /* Set by prepare. */
    size_t scratch_bytes;     /* the larger of forward's and backward's, including space for widening */
    size_t own_scratch_bytes; /* without space for widening */
    size_t derived_bytes;
    size_t weight_bytes; /* stored bytes of params[0], if own_layout */
    size_t aux_bytes;    /* stored bytes of aux; initially its logical size */
    bool own_layout;     /* params[0] is not stored row-major */
    bool widened;        /* the class handles only floats, but tensors or parameters are bf16: see widen.c */
    const char *name;
    void *state;
};

/* The tables, indexed by car_op_kind. */
extern const car_kernel_class *const car_kernels_reference[CAR_OP_KINDS];
extern const car_kernel_class *const car_kernels_onednn[CAR_OP_KINDS];
/* Classes that work on bf16 tensors and weights directly; NULL where there is none. Their `choose` returns NULL if
 * the machine lacks the instructions. */
extern const car_kernel_class *const car_kernels_bf16[CAR_OP_KINDS];

/* User-defined stages, and what is carried through them; in both tables. */
extern const car_kernel_class car_stage_kernel, car_carry_kernel;

/* The class for 3x3 convolutions with Winograd's algorithm, and whether a convolution should use it. */
extern const car_kernel_class car_winograd_conv;
bool car_winograd_suits(const car_kernel *kernel);
size_t car_winograd_scratch_bytes(const car_kernel *kernel);
size_t car_winograd_weight_bytes(const car_kernel *kernel);

/* The channel block that convolutions prefer on this machine: 8 or 16. */
int car_kernels_onednn_block(void);

/* What the oneDNN table needs: an engine for preparing, and a stream for each thread. */
car_status car_kernels_onednn_open(car_context *context, void **engine);
void car_kernels_onednn_close(void *engine);
car_status car_kernels_onednn_open_stream(car_context *context, void *engine, void **stream);
void car_kernels_onednn_close_stream(void *stream);

/* Call enter and leave around each run of kernels, and around prepare, on the thread that runs them. Enter sets how
 * many threads the libraries may use and flushes denormals to zero; leave restores both. */
typedef struct car_kernel_mode {
    int threads;
    unsigned control;
} car_kernel_mode;
car_kernel_mode car_kernels_enter(int threads);
void car_kernels_leave(car_kernel_mode previous);

/* C = alpha * op(A) op(B) + beta * C, row-major, on the calling thread; op is 'N' or 'T'. False on failure. */
bool car_kernels_multiply(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                          int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);

/* How many classes rank above the label: those with a larger logit, an equal one at a smaller index, or NaN. Values
 * beyond CAR_HEAD_MOST_RANK need not be distinguished. */
enum { CAR_HEAD_MOST_RANK = 5 };
int car_head_rank(const float *logits, int64_t classes, int32_t label);
/* The class with the largest logit, the first of equals. */
int64_t car_head_answer(const float *logits, int64_t classes);

/* Whether a kernel's tensors allow it to work on bf16 directly: some are bf16, and no input is floats. In widen.c. */
bool car_kernel_has_bf16_inputs(const car_kernel *kernel);
/* Chooses the class and prepares it. Set op, engine and blocks first. After a failure `class` is set if there is
 * something to release. */
car_status car_kernel_prepare(car_kernel *kernel, const car_kernel_class *const *table);
car_status car_kernel_forward(const car_kernel *kernel, const car_kernel_io *io);
car_status car_kernel_backward(const car_kernel *kernel, const car_kernel_io *io);
/* Uses only the parameters, scratch and stream of `io`. */
car_status car_kernel_derive(const car_kernel *kernel, const car_kernel_io *io, void *derived);
/* Parameter p of a kernel that works on floats. */
static inline const float *car_kernel_floats(const car_kernel_io *io, int p) {
    return io->param[p];
}
/* Whether backward handles CAR_GRAD_ADD; otherwise the program adds. */
static inline bool car_kernel_adds_grad(const car_kernel *kernel) {
    return kernel->widened || kernel->class->adds_grad;
}

/* Elements as stored, including padding channels of an image. */
static inline int64_t car_kernel_stored_elements(car_shape shape, int block) {
    if (shape.rank == 4) {
        shape.dim[1] = (int64_t)car_round_up((size_t)shape.dim[1], (size_t)block);
    }
    return car_shape_elements(shape);
}

/* Shapes of input q, of the output, and of parameter p of a kernel. */
static inline car_shape car_kernel_in(const car_kernel *kernel, int q) {
    return car_graph_tensor(kernel->graph, kernel->op->inputs[q])->shape;
}
static inline car_shape car_kernel_out(const car_kernel *kernel) {
    return car_graph_tensor(kernel->graph, kernel->op->output)->shape;
}
static inline car_shape car_kernel_param(const car_kernel *kernel, int p) {
    return car_graph_param(kernel->graph, kernel->op->params[p])->shape;
}

#endif
