/* Runs the one operation of a kernel case, for tests and bench: a trial.
 *
 * A trial does for its kernel what a program does for all of a graph: it chooses layouts, prepares, provides
 * buffers that are exactly as large as asked for, with guard bytes behind them, and hands over only those pointers
 * that the operation has declared to need. */
#ifndef CAR_TEST_HARNESS_H
#define CAR_TEST_HARNESS_H

#include "kernels/cases.h"
#include "kernels/kernel.h"

/* A table of kernels with what it needs around it. */
typedef struct car_trial_table {
    const char *name;
    const car_kernel_class *const *classes;
    int block; /* of tensors of rank 4 */
    car_convolutions convolutions;
    car_precision precision;
    void *engine, *stream;
} car_trial_table;

car_status car_trial_open_reference(car_context *context, car_trial_table *out);
car_status car_trial_open_onednn(car_context *context, car_trial_table *out); /* convolutions are direct */
/* The same table with Winograd's convolutions wherever they can be, on images of another block than the machine's own
 * if `block` says so. */
car_status car_trial_open_winograd(car_context *context, int block, car_trial_table *out);
/* The same table with bf16 tensors and weights. */
car_trial_table car_trial_in_bf16(const car_trial_table *table);
void car_trial_close(car_trial_table *table);

/* How the trial treats gradients of inputs. The default: everything is written, nothing in place. */
typedef struct car_trial_config {
    int batch; /* dimension 0 instead of the case's own, or 0 */
    car_grad_mode grad_mode[CAR_CASE_INPUTS];
    /* The input whose gradient takes the buffer of the output's (cross-entropy: of the logits), or CAR_NONE. */
    int in_place;
} car_trial_config;

/* WRITE for every input of floats that can have a gradient in this table, NONE for the others. */
car_trial_config car_trial_config_default(const car_trial_table *table, const car_case *test);
/* Whether a program may let the gradient of input q take over another buffer. */
bool car_trial_works_in_place(const car_case *test, int q);

typedef struct car_trial_buffer {
    size_t bytes; /* without guard */
    unsigned char *data;
    bool borrowed; /* belongs to another tensor of the trial */
} car_trial_buffer;

typedef struct car_trial_tensor {
    char name[16];
    car_shape shape;
    int block;
    bool own_layout;
    bool bf16; /* stored so; `values` are rounded when they are loaded */
    size_t elements;
    /* Canonical; int32_t for tokens and labels. Of a gradient: what CAR_GRAD_ADD adds to. NULL: no such tensor. */
    float *values;
    car_trial_buffer stored;
} car_trial_tensor;

enum {
    CAR_TRIAL_IN, /* and the following: one for each input */
    CAR_TRIAL_PARAM = CAR_TRIAL_IN + CAR_CASE_INPUTS,
    CAR_TRIAL_OUT = CAR_TRIAL_PARAM + CAR_MAX_PARAMS,
    CAR_TRIAL_GRAD_OUT,
    CAR_TRIAL_GRAD_IN,
    CAR_TRIAL_GRAD_PARAM = CAR_TRIAL_GRAD_IN + CAR_CASE_INPUTS,
    CAR_TRIAL_TENSORS = CAR_TRIAL_GRAD_PARAM + CAR_MAX_PARAMS
};

typedef struct car_trial {
    const car_trial_table *table;
    const car_case *test;
    car_trial_config config;
    car_context *context;
    car_graph *graph;
    car_op op; /* a copy of the graph's last, with grad_mode set */
    car_kernel kernel;
    car_trial_tensor tensors[CAR_TRIAL_TENSORS];
    car_trial_buffer aux, derived, scratch;
} car_trial;

/* Prepares the kernel and fills `values` of everything that is given. */
car_status car_trial_create(car_context *context, const car_trial_table *table, const car_case *test,
                            const car_trial_config *config, car_trial **out);
void car_trial_destroy(car_trial *trial);

/* Brings `values` into the stored layout (after every change of them), remakes derived forms of parameters, and
 * fills results, aux and scratch with NaN. */
car_status car_trial_load(car_trial *trial);
void car_trial_soil_scratch(car_trial *trial);
car_status car_trial_forward(car_trial *trial, bool training);
car_status car_trial_backward(car_trial *trial);

/* A tensor's stored contents in canonical layout. */
car_status car_trial_read(const car_trial *trial, int tensor, float *values);

/* After backward: whether all guard bytes are whole, the channels that only pad zero and what was only to be read
 * unchanged; if not, `message` says where. */
bool car_trial_inspect(const car_trial *trial, char *message, size_t capacity);

#endif
