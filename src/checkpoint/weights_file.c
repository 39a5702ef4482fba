/* Weights in safetensors files, ours and PyTorch's.
 *
 * Parameters have the names and layouts of PyTorch's state dicts. Only a few names need translating: a prefix that
 * Hugging Face omits in some files, and two names that torchvision has changed. Everything is checked and read into
 * one buffer before the first parameter is set, so an invalid file changes nothing. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "carousel/checkpoint.h"
#include "carousel/safetensors.h"
#include "checkpoint/card_pairs.h"
#include "checkpoint/params.h"
#include "engine/internal.h"

/* ---- writing --------------------------------------------------------------------------------- */

car_status car_weights_save(const car_weights *weights, const char *path) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), path);
    return car_weights_save_with(weights, path, NULL, CAR_PRECISION_FP32);
}

car_status car_weights_save_with(const car_weights *weights, const char *path, const car_card *card,
                                 car_precision precision) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), path);
    car_context *context = car_program_context(weights->program);
    const car_graph *graph = car_program_graph(weights->program);
    int params = car_graph_param_count(graph);
    size_t largest = car_params_largest(graph);
    car_safetensors_entry *entries = NULL;
    car_safetensors_writer *writer = NULL;
    car_card_pairs pairs = {0};
    void *values = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_card_list_pairs(context, card, &pairs));
    CAR_TRY(car_context_allocate(context, (size_t)params, sizeof *entries, &entries));
    CAR_TRY(car_context_allocate(context, largest, 1, &values));
    for (int p = 0; p < params; p++) {
        entries[p] = car_params_entry(graph, p);
        entries[p].bf16 = precision == CAR_PRECISION_BF16 && !entries[p].f64 &&
                          car_graph_param(graph, p)->role != CAR_PARAM_STATISTIC;
    }
    CAR_TRY(car_safetensors_writer_create(context, path, entries, params, pairs.texts, &writer));
    for (int p = 0; p < params; p++) {
        CAR_TRY(car_weights_get(weights, p, values));
        CAR_TRY(car_safetensors_writer_add(writer, values));
    }
    CAR_TRY(car_safetensors_writer_finish(writer, NULL));
done:
    car_safetensors_writer_destroy(writer);
    car_context_release(context, values, largest, 1);
    car_context_release(context, entries, (size_t)params, sizeof *entries);
    car_card_release_pairs(context, &pairs);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A line of names; those that do not fit are only counted. */
typedef struct name_list {
    char *line;
    size_t capacity;
    int count, shown;
} name_list;

typedef struct loading {
    car_weights *weights;
    const car_graph *graph;
    car_context *context;
    const char *path;
    bool reset_head;
    car_safetensors *file;
    const car_safetensors_tensor **found; /* per parameter */
    int loaded;
    name_list missing, left_over, reset;
    char shape_error[512]; /* the first mismatch, or "" */
} loading;

static void list_name(name_list *list, const char *name) {
    enum { ROOM_FOR_COUNT = 24 };
    size_t length = strlen(list->line);
    if (list->shown == list->count && length + strlen(name) + ROOM_FOR_COUNT < list->capacity) {
        snprintf(list->line + length, list->capacity - length, "%s%s", length > 0 ? ", " : "", name);
        list->shown++;
    }
    list->count++;
}

static void end_list(name_list *list) {
    size_t length = strlen(list->line);
    if (list->shown < list->count) {
        snprintf(list->line + length, list->capacity - length, " and %d more", list->count - list->shown);
    }
}

/* Finds NAME with `part` replaced by `replacement`. */
static const car_safetensors_tensor *find_renamed(const car_safetensors *file, const char *name, const char *part,
                                                  const char *replacement) {
    char other[256];
    const char *place = strstr(name, part);
    if (place == NULL) {
        return NULL;
    }
    int length =
        snprintf(other, sizeof other, "%.*s%s%s", (int)(place - name), name, replacement, place + strlen(part));
    return length < (int)sizeof other ? car_safetensors_find(file, other) : NULL;
}

static const car_safetensors_tensor *find_tensor(const car_safetensors *file, const char *name) {
    static const struct {
        const char *ours, *theirs;
    } renamed[] = {
        {"transformer.", ""},          /* Hugging Face's GPT2Model, which has no head */
        {".mlp.0.", ".mlp.linear_1."}, /* torchvision's vision transformers up to 0.12 */
        {".mlp.3.", ".mlp.linear_2."},
    };
    const car_safetensors_tensor *tensor = car_safetensors_find(file, name);
    for (size_t i = 0; tensor == NULL && i < sizeof renamed / sizeof *renamed; i++) {
        tensor = find_renamed(file, name, renamed[i].ours, renamed[i].theirs);
    }
    return tensor;
}

/* Whether a parameter belongs to the head: the operation that makes the logits, with a classifier or a tied
 * embedding. */
static bool is_head(const car_graph *graph, int param) {
    const car_op *op = car_graph_head(graph) != CAR_NONE ? car_graph_op(graph, car_graph_head(graph)) : NULL;
    for (int q = 0; op != NULL && q < op->param_count; q++) {
        if (op->params[q] == param) {
            return true;
        }
    }
    return false;
}

static bool fits(const loading *load, int param) {
    const car_safetensors_tensor *tensor = load->found[param];
    return tensor != NULL && car_params_same_shape(car_graph_param(load->graph, param)->shape, tensor);
}

static void note_shape(loading *load, int param) {
    const car_param *wanted = car_graph_param(load->graph, param);
    car_params_text want = car_params_shape_text(wanted->shape.rank, wanted->shape.dim);
    car_params_text have = car_params_shape_text(load->found[param]->rank, load->found[param]->shape);
    bool head = is_head(load->graph, param);
    if (load->shape_error[0] == '\0') {
        snprintf(load->shape_error, sizeof load->shape_error, "%.100s has shape %s in the file and %s in the model%s",
                 wanted->name, have.text, want.text, head ? "; reset-head keeps the initial values of the head" : "");
    }
}

/* Whether other operations use it as well: a tied embedding cannot be replaced as a head alone. */
static bool is_tied(const car_graph *graph, int param) {
    int users = 0;
    for (int l = 0; l < car_graph_op_count(graph); l++) {
        const car_op *op = car_graph_op(graph, l);
        for (int q = 0; q < op->param_count; q++) {
            users += op->params[q] == param;
        }
    }
    return users > 1;
}

/* Finds all parameters. A head is reset as a whole or not at all. If it is also an embedding, it is reset only if
 * its shape differs. */
static void match(loading *load) {
    int params = car_graph_param_count(load->graph);
    bool resets = false;
    for (int p = 0; p < params; p++) {
        load->found[p] = find_tensor(load->file, car_graph_param(load->graph, p)->name);
        resets |= load->reset_head && is_head(load->graph, p) && (!fits(load, p) || !is_tied(load->graph, p));
    }
    for (int p = 0; p < params; p++) {
        const char *name = car_graph_param(load->graph, p)->name;
        if (resets && is_head(load->graph, p)) {
            list_name(&load->reset, name);
        } else if (load->found[p] == NULL) {
            list_name(&load->missing, name);
        } else if (!fits(load, p)) {
            note_shape(load, p);
        } else {
            load->loaded++;
        }
    }
}

/* ---- tensors that the model lacks ------------------------------------------------------------ */

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

/* What PyTorch stores but training does not need: counters, and the constant masks of older GPT-2 files. */
static bool is_buffer(const char *name) {
    return ends_with(name, ".num_batches_tracked") || ends_with(name, ".attn.bias") ||
           ends_with(name, ".attn.masked_bias");
}

static bool is_used(const loading *load, const car_safetensors_tensor *tensor) {
    for (int p = 0; p < car_graph_param_count(load->graph); p++) {
        if (load->found[p] == tensor) {
            return true;
        }
    }
    return false;
}

/* Some files store GPT-2's tied head a second time. If it differs from the embedding, the model is not ours. */
static car_status compare_with_embedding(const loading *load, const car_safetensors_tensor *head, bool *same) {
    const car_safetensors_tensor *embedding = find_tensor(load->file, "transformer.wte.weight");
    bool comparable = embedding != NULL && embedding->elements == head->elements;
    size_t count = comparable ? (size_t)head->elements : 0;
    float *left = NULL, *right = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(load->context, count, sizeof *left, &left));
    CAR_TRY(car_context_allocate(load->context, count, sizeof *right, &right));
    if (comparable) {
        CAR_TRY(car_safetensors_copy_floats(load->file, head, left));
        CAR_TRY(car_safetensors_copy_floats(load->file, embedding, right));
    }
    *same = comparable && memcmp(left, right, count * sizeof *left) == 0;
    if (!*same && !load->reset_head) {
        status = car_context_fail(load->context, CAR_ERROR_FORMAT,
                                  "%s: lm_head.weight differs from the embedding, but the model uses one tensor for "
                                  "both; reset-head ignores lm_head.weight",
                                  load->path);
    }
done:
    car_context_release(load->context, right, count, sizeof *right);
    car_context_release(load->context, left, count, sizeof *left);
    return status;
}

/* Whether this name is the model's head, which is no parameter of its own. */
static bool is_tied_head(const loading *load, const char *name) {
    return strcmp(name, "lm_head.weight") == 0 &&
           car_graph_find_param(load->graph, "transformer.wte.weight") != CAR_NONE;
}

static car_status list_left_over(loading *load) {
    car_status status = CAR_OK;
    for (int i = 0; i < car_safetensors_count(load->file); i++) {
        const car_safetensors_tensor *tensor = car_safetensors_at(load->file, i);
        bool same = false;
        if (is_used(load, tensor) || is_buffer(tensor->name)) {
            continue;
        }
        if (is_tied_head(load, tensor->name)) {
            CAR_TRY(compare_with_embedding(load, tensor, &same));
        }
        if (!same) {
            list_name(&load->left_over, tensor->name);
        }
    }
done:
    return status;
}

/* ---- loading --------------------------------------------------------------------------------- */

static car_status check(const loading *load) {
    if (load->missing.count > 0) {
        return car_context_fail(load->context, CAR_ERROR_FORMAT,
                                "%s lacks %d of the model's %d parameters: %s; it has %d that the model does not have: "
                                "is it the file of another model?",
                                load->path, load->missing.count, car_graph_param_count(load->graph), load->missing.line,
                                load->left_over.count);
    }
    if (load->shape_error[0] != '\0') {
        return car_context_fail(load->context, CAR_ERROR_FORMAT, "%s: %s", load->path, load->shape_error);
    }
    return CAR_OK;
}

/* Doubles may follow floats, so align them. */
static size_t room_of(const loading *load, int param) {
    return car_round_up(car_params_bytes(load->graph, param), sizeof(double));
}

/* Reads everything that was found into one block, and only then sets the first parameter. */
static car_status transfer(const loading *load) {
    int params = car_graph_param_count(load->graph);
    size_t total = 0, place = 0;
    char *values = NULL;
    car_status status = CAR_OK;
    for (int p = 0; p < params; p++) {
        total += load->found[p] != NULL ? room_of(load, p) : 0;
    }
    CAR_TRY(car_context_allocate(load->context, total, 1, &values));
    for (int p = 0; p < params; p++) {
        if (load->found[p] != NULL) {
            CAR_TRY(car_params_copy(load->file, load->found[p], car_graph_param(load->graph, p), values + place));
            place += room_of(load, p);
        }
    }
    place = 0;
    for (int p = 0; p < params; p++) {
        if (load->found[p] != NULL) {
            CAR_TRY(car_weights_set(load->weights, p, values + place));
            place += room_of(load, p);
        }
    }
done:
    car_context_release(load->context, values, total, 1);
    return status;
}

static void fill_report(loading *load, car_weights_load_report *report) {
    end_list(&load->missing);
    end_list(&load->left_over);
    end_list(&load->reset);
    report->loaded = load->loaded;
    report->missing = load->missing.count;
    report->left_over = load->left_over.count;
    report->reset = load->reset.count;
}

/* Loads with a prepared `load`; the report holds the lists. */
static car_status load_into(loading *load, car_weights_load_report *report) {
    car_status status = CAR_OK;
    load->missing = (name_list){.line = report->missing_names, .capacity = sizeof report->missing_names};
    load->left_over = (name_list){.line = report->left_over_names, .capacity = sizeof report->left_over_names};
    load->reset = (name_list){.line = report->reset_names, .capacity = sizeof report->reset_names};
    CAR_TRY(car_safetensors_open(load->context, load->path, &load->file));
    match(load);
    CAR_TRY(list_left_over(load));
    fill_report(load, report);
    CAR_TRY(check(load));
    for (int p = 0; load->reset.count > 0 && p < car_graph_param_count(load->graph); p++) {
        load->found[p] = is_head(load->graph, p) ? NULL : load->found[p];
    }
    CAR_TRY(transfer(load));
done:
    car_safetensors_close(load->file);
    return status;
}

car_status car_weights_load(car_weights *weights, const char *path, const car_weights_load_config *config,
                            car_weights_load_report *report) {
    CAR_REQUIRE(NULL, weights);
    CAR_REQUIRE(car_program_context(weights->program), path);
    car_weights_load_report unwanted, *out = report != NULL ? report : &unwanted;
    loading load = {.weights = weights,
                    .graph = car_program_graph(weights->program),
                    .context = car_program_context(weights->program),
                    .path = path,
                    .reset_head = config != NULL && config->reset_head};
    size_t params = (size_t)car_graph_param_count(load.graph);
    car_status status = CAR_OK;
    *out = (car_weights_load_report){0};
    CAR_TRY(car_context_allocate(load.context, params, sizeof(void *), &load.found));
    CAR_TRY(load_into(&load, out));
done:
    car_context_release(load.context, load.found, params, sizeof(void *));
    return status;
}
