/* Predictions of a run: the logits of one micro-batch. */
#include "run/internal.h"

typedef struct prediction {
    car_subject subject;
    int input; /* tensor */
    const void *inputs;
    float *logits;
    int64_t rows;
} prediction;

/* The input that the dataset feeds, or else the graph's only input besides the labels. */
static car_status find_input(const car_run *run, int labels, int *out) {
    int found = 0;
    *out = run->dataset ? car_graph_find_tensor(run->graph, car_dataset_input_name(run->dataset)) : CAR_NONE;
    if (*out != CAR_NONE) {
        return CAR_OK;
    }
    for (int t = 0; t < car_graph_tensor_count(run->graph); t++) {
        if (car_graph_tensor(run->graph, t)->producer == CAR_NONE && t != labels) {
            *out = t;
            found++;
        }
    }
    return found == 1
               ? CAR_OK
               : car_context_fail(run->context, CAR_ERROR_UNSUPPORTED,
                                  "a prediction needs a graph with one input besides the labels, but this graph has %d",
                                  found);
}

static car_status predict_first(car_member *member, void *user) {
    const prediction *p = user;
    const car_run *run = member->run;
    car_tape *tape = NULL;
    car_lane *lane = NULL;
    car_status status = CAR_OK;
    CAR_TRY(car_tape_create(run->program, member->arena, &tape));
    CAR_TRY(car_lane_create(run->program, member->arena, &lane));
    car_tape_begin(tape, 0, false);
    CAR_TRY(car_tape_feed(tape, p->input, p->inputs));
    CAR_TRY(
        car_tape_forward(tape, lane, p->subject.weights, 0, car_graph_op_count(run->graph) - 1)); /* all but the loss */
    CAR_TRY(car_tape_logits(tape, p->subject.weights, 0, p->rows, p->logits));
done:
    car_lane_destroy(lane);
    car_tape_destroy(tape);
    return status;
}

static car_status predict_member(car_member *member, void *user) {
    prediction p = *(const prediction *)user;
    size_t bytes = (size_t)(p.rows * car_graph_classes(member->run->graph)) * sizeof *p.logits;
    car_status status = CAR_OK;
    CAR_TRY(car_member_gather(member, &p.subject));
    CAR_TRY(car_member_work_first(member, predict_first, &p, p.logits, bytes));
done:
    car_member_drop(member, &p.subject);
    return status;
}

car_status car_run_predict(car_run *run, const void *inputs, float *logits) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, inputs);
    CAR_REQUIRE(run->context, logits);
    const car_op *loss = car_graph_op(run->graph, car_graph_op_count(run->graph) - 1);
    if (car_graph_classes(run->graph) == 0) {
        return car_context_fail(run->context, CAR_ERROR_UNSUPPORTED,
                                "this graph ends in a custom stage, so it has no logits to predict");
    }
    int labels = loss->inputs[1];
    prediction p = {
        .inputs = inputs, .logits = logits, .rows = car_shape_elements(car_graph_tensor(run->graph, labels)->shape)};
    car_status status = find_input(run, labels, &p.input);
    return status == CAR_OK ? car_run_together(run, predict_member, &p) : status;
}
