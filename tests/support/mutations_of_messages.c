/* Mistakes with messages and collectives for the validator to find. Where a change alone would be obvious nonsense
 * (a message with two different ends), the rest of the table is adapted, so that only the intended mistake remains. */
#include "support/mutations.h"

/* ---- messages ------------------------------------------------------------------------------------------- */

static bool drop_send(car_mutant *t) {
    return drop(t, is_send);
}
static bool drop_receive(car_mutant *t) {
    return drop(t, is_receive);
}

static bool drop_message(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_send);
    if (exists(s)) {
        car_spot end = car_mutant_other_end(t, s);
        car_mutant_erase(t, s);
        car_mutant_erase(t, end);
    }
    return exists(s);
}

static bool wrong_peer(car_mutant *t) {
    car_spot s = t->devices > 2 ? car_mutant_find(t, is_send) : (car_spot){CAR_NONE, CAR_NONE};
    if (exists(s)) {
        car_task *task = car_mutant_task(t, s);
        int peer = task->peer;
        while (peer == task->peer || peer == s.device) {
            peer = car_mutant_roll(t, t->devices);
        }
        task->peer = peer;
    }
    return exists(s);
}

static bool wrong_tag(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_send);
    if (exists(s)) {
        car_mutant_task(t, s)->tag += 1 + car_mutant_roll(t, 5);
    }
    return exists(s);
}

static bool receive_with_send(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_receive);
    if (exists(s)) {
        int64_t slot = car_mutant_task(t, car_mutant_other_end(t, s))->slot;
        car_task task = car_mutant_erase(t, s);
        task.slot = slot;
        car_mutant_insert_in_slot(t, s.device, task, true);
    }
    return exists(s);
}

static bool receive_late(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_urgent_receive);
    if (exists(s)) {
        car_task task = car_mutant_erase(t, s);
        task.slot++;
        car_mutant_insert_in_slot(t, s.device, task, true);
    }
    return exists(s);
}

static bool second_message(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_send);
    if (exists(s)) {
        car_spot end = car_mutant_other_end(t, s);
        car_mutant_insert(t, s, *car_mutant_task(t, s));
        car_mutant_insert(t, end, *car_mutant_task(t, end));
    }
    return exists(s);
}

/* Moves it to a slot in which the worker sends another message of the kind. */
static bool delayed_message(car_mutant *t) {
    car_spot s = car_mutant_find(t, would_meet_another);
    if (exists(s)) {
        car_task task = car_mutant_erase(t, s);
        task.slot++;
        car_mutant_insert_in_slot(t, s.device, task, false);
    }
    return exists(s);
}

/* Via a third device: everything is right except for the route. */
static bool detour(car_mutant *t) {
    car_spot s = t->devices > 2 ? car_mutant_find(t, has_slack) : (car_spot){CAR_NONE, CAR_NONE};
    if (!exists(s)) {
        return false;
    }
    car_spot end = car_mutant_other_end(t, s);
    car_task *send = car_mutant_task(t, s), *receive = car_mutant_task(t, end);
    int middle = s.device;
    while (middle == s.device || middle == end.device) {
        middle = car_mutant_roll(t, t->devices);
    }
    car_task in = *receive, out = *send;
    in.slot = out.slot = send->slot + 1;
    in.tag = send->tag = 1 << 28;
    out.tag = receive->tag = 1 << 29;
    send->peer = receive->peer = middle;
    in.peer = s.device;
    out.peer = end.device;
    car_mutant_insert_in_slot(t, middle, in, true);
    car_mutant_insert_in_slot(t, middle, out, false);
    return true;
}

static bool early_message(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_urgent_send);
    if (exists(s)) {
        car_task task = car_mutant_erase(t, s);
        task.slot--;
        car_mutant_insert_in_slot(t, s.device, task, false);
    }
    return exists(s);
}

/* zero: a message with time to spare moves to a slot that is already full. */
static bool one_too_many(car_mutant *t) {
    car_spot s =
        t->placement == CAR_PLACEMENT_ZERO ? car_mutant_find(t, has_time_for_another) : (car_spot){CAR_NONE, CAR_NONE};
    if (exists(s)) {
        car_task task = car_mutant_erase(t, s);
        task.slot = full_slot(t, s.device, task.slot + 1, task.slot + 2);
        car_mutant_insert_in_slot(t, s.device, task, false);
    }
    return exists(s);
}

static bool is_copy_send(car_mutant *t, car_spot s, const car_task *task) {
    return car_plan_config_of(t->plan)->zero_copies == 2 && is_send(t, s, task) && car_cargo_is_weights(task->cargo);
}

static void change_chain(car_mutant *t, car_task *task) {
    (void)t;
    task->cargo = task->cargo == CAR_CARGO_WEIGHTS ? CAR_CARGO_BACKWARD_WEIGHTS : CAR_CARGO_WEIGHTS;
}
static bool other_chain(car_mutant *t) {
    return change_message(t, is_copy_send, change_chain);
}

/* Both ends are so early that more than L slots are between the receive and its use. */
static bool too_far_ahead(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_copy_send);
    int64_t more = car_plan_config_of(t->plan)->zero_ahead + 1;
    if (!exists(s) || car_mutant_task(t, s)->slot - more < -car_plan_period(t->plan)) {
        return false;
    }
    car_spot end = car_mutant_other_end(t, s);
    car_task receive = car_mutant_erase(t, end), send = car_mutant_erase(t, s);
    send.slot -= more;
    receive.slot -= more;
    car_mutant_insert_in_slot(t, end.device, receive, true);
    car_mutant_insert_in_slot(t, s.device, send, false);
    return true;
}

/* From a rank that has no copy: the message goes to the rank after the one that should get it. */
static bool copy_of_another(car_mutant *t) {
    car_spot s = t->devices > 2 ? car_mutant_find(t, is_copy_send) : (car_spot){CAR_NONE, CAR_NONE};
    if (!exists(s)) {
        return false;
    }
    car_spot end = car_mutant_other_end(t, s);
    int other = 0;
    while (other == s.device || other == end.device) {
        other++;
    }
    car_mutant_task(t, end)->peer = other;
    car_task send = car_mutant_erase(t, s);
    car_mutant_insert_in_slot(t, other, send, false);
    return true;
}

/* Sends a sum to where it already is. */
static bool needless_message(car_mutant *t) {
    if (t->placement != CAR_PLACEMENT_SHARED || !car_plan_is_cyclic(t->plan)) {
        return false;
    }
    car_spot s = car_mutant_find(t, is_backward_with_successor);
    if (exists(s)) {
        car_task task = *car_mutant_task(t, s);
        car_task send = {.kind = CAR_TASK_SEND,
                         .cargo = CAR_CARGO_PARTIAL,
                         .micro_batch = task.micro_batch,
                         .stage = task.stage,
                         .bundle = task.bundle,
                         .step = task.step,
                         .version = CAR_NONE,
                         .tied_version = CAR_NONE,
                         .peer = task.micro_batch + 1,
                         .slot = task.slot};
        car_task receive = send;
        receive.kind = CAR_TASK_RECEIVE;
        receive.peer = task.micro_batch;
        receive.slot = task.slot + 1;
        car_mutant_insert_in_slot(t, s.device, send, false);
        car_mutant_insert_in_slot(t, s.device + 1, receive, true);
    }
    return exists(s);
}

/* Also sends weights that a rank computes with to a rank of another group. */
static bool weights_to_stranger(car_mutant *t) {
    bool groups = t->placement == CAR_PLACEMENT_PIPELINE || t->placement == CAR_PLACEMENT_GRID;
    car_spot s = groups && t->workers > 1 ? car_mutant_find(t, is_forward_that_keeps) : (car_spot){CAR_NONE, CAR_NONE};
    if (exists(s)) {
        car_task task = *car_mutant_task(t, s);
        int k = car_plan_per_worker(t->plan), group = task.stage / k == 0 ? 1 : 0;
        car_task send = {.kind = CAR_TASK_SEND,
                         .cargo = CAR_CARGO_WEIGHTS,
                         .micro_batch = CAR_NONE,
                         .stage = task.stage,
                         .bundle = task.bundle,
                         .step = task.version - 1,
                         .version = task.version,
                         .tied_version = CAR_NONE,
                         .peer = car_plan_device(t->plan, 0, 0, group * k),
                         .tag = 1 << 28,
                         .slot = task.slot};
        car_task receive = send;
        receive.kind = CAR_TASK_RECEIVE;
        receive.peer = s.device;
        receive.slot++;
        car_mutant_insert_in_slot(t, s.device, send, false);
        car_mutant_insert_in_slot(t, send.peer, receive, true);
    }
    return exists(s);
}

static void change_cargo(car_mutant *t, car_task *task) {
    (void)t;
    task->cargo = task->cargo == CAR_CARGO_PARTIAL ? CAR_CARGO_FINISHED : CAR_CARGO_PARTIAL;
}
static bool wrong_cargo(car_mutant *t) {
    return change_message(t, is_sum_send, change_cargo);
}

static void change_bundle(car_mutant *t, car_task *task) {
    task->bundle = (task->bundle + 1) % t->stages;
    task->stage = task->bundle;
}
static bool wrong_bundle(car_mutant *t) {
    return t->stages > 1 && change_message(t, is_sum_send, change_bundle);
}

static void change_cut(car_mutant *t, car_task *task) {
    task->stage = task->stage + 1 < t->stages ? task->stage + 1 : 0;
}
static bool wrong_cut(car_mutant *t) {
    return change_message(t, is_across_send, change_cut);
}

static void change_weights(car_mutant *t, car_task *task) {
    (void)t;
    set_version(task, task->version + 1);
    task->step++;
}
static bool wrong_weights(car_mutant *t) {
    return change_message(t, is_weights_send, change_weights);
}

/* ---- collectives ---------------------------------------------------------------------------------------- */

/* Makes a change on all devices that take part in the chosen collective. */
static bool for_collective(car_mutant *t, car_mutant_wanted wanted, bool (*change)(car_mutant *t, car_spot s)) {
    car_spot s = car_mutant_find(t, wanted);
    if (!exists(s)) {
        return false;
    }
    car_task chosen = *car_mutant_task(t, s);
    for (int device = 0; device < t->devices; device++) {
        for (int at = t->rows[device].count - 1; at >= 0; at--) {
            const car_task *task = &t->rows[device].tasks[at];
            if (task->kind == chosen.kind && task->bundle == chosen.bundle && task->step == chosen.step &&
                task->slot == chosen.slot) {
                change(t, (car_spot){device, at});
                break;
            }
        }
    }
    return true;
}

static bool drop_reduce(car_mutant *t) {
    return t->devices > 1 && drop(t, is_reduce);
}

static bool erase_it(car_mutant *t, car_spot s) {
    car_mutant_erase(t, s);
    return true;
}
static bool drop_all_reduces(car_mutant *t) {
    return for_collective(t, is_reduce, erase_it);
}
static bool drop_broadcast(car_mutant *t) {
    return drop(t, is_broadcast);
}
static bool drop_all_broadcasts(car_mutant *t) {
    return for_collective(t, is_broadcast, erase_it);
}

static bool bring_forward(car_mutant *t, car_spot s) {
    car_task task = car_mutant_erase(t, s);
    task.slot--;
    car_mutant_insert_in_slot(t, s.device, task, false);
    return true;
}
static bool early_reduce(car_mutant *t) {
    return for_collective(t, is_reduce, bring_forward);
}

static bool make_newer(car_mutant *t, car_spot s) {
    car_task *task = car_mutant_task(t, s);
    set_version(task, task->version + 1);
    return true;
}
static bool wrong_broadcast(car_mutant *t) {
    return for_collective(t, is_broadcast, make_newer);
}

static bool change_goal(car_mutant *t, car_spot s) {
    car_task *task = car_mutant_task(t, s);
    task->peer = (task->peer + 1) % t->devices;
    return true;
}
static bool wrong_reduce_goal(car_mutant *t) {
    return (t->devices > 1 || t->placement != CAR_PLACEMENT_ZERO) && for_collective(t, is_reduce, change_goal);
}
static bool wrong_broadcast_owner(car_mutant *t) {
    return for_collective(t, is_broadcast, change_goal);
}

/* One device runs two collectives in the wrong order. */
static bool swap_collectives(car_mutant *t) {
    car_spot s = t->devices > 1 ? car_mutant_find(t, is_reduce) : (car_spot){CAR_NONE, CAR_NONE};
    for (int at = s.at + 1; exists(s) && at < t->rows[s.device].count; at++) {
        car_task *a = car_mutant_task(t, s), *b = &t->rows[s.device].tasks[at];
        if (b->kind == a->kind && b->bundle != a->bundle) {
            int bundle = a->bundle, stage = a->stage;
            a->bundle = b->bundle;
            a->stage = b->stage;
            b->bundle = bundle;
            b->stage = stage;
            return true;
        }
    }
    return false;
}

/* ---- the list ------------------------------------------------------------------------------------------- */

/* ---- pieces of sums -------------------------------------------------------------------------------------- */

static void take_another_piece(car_mutant *t, car_task *task) {
    int pieces = car_plan_pieces(t->plan, task->bundle);
    task->piece = (task->piece + 1) % pieces;
}
static bool wrong_piece(car_mutant *t) {
    return change_message(t, is_cut_send, take_another_piece);
}

static void take_no_piece(car_mutant *t, car_task *task) {
    task->piece = car_plan_pieces(t->plan, task->bundle);
}
static bool extra_piece(car_mutant *t) {
    return change_message(t, is_sum_send, take_no_piece);
}

/* Of a sum that is sent, not of what the last piece frees. */
static bool swap_pieces(car_mutant *t) {
    car_spot s = car_mutant_find(t, is_cut_send);
    if (!exists(s)) {
        return false;
    }
    car_spot first = {s.device, s.at - car_mutant_task(t, s)->piece};
    car_spot second = {first.device, first.at + 1},
             ends[2] = {car_mutant_other_end(t, first), car_mutant_other_end(t, second)};
    car_mutant_task(t, first)->piece = car_mutant_task(t, ends[0])->piece = 1;
    car_mutant_task(t, second)->piece = car_mutant_task(t, ends[1])->piece = 0;
    return true;
}

static const car_mutation mutations[] = {
    {"a SEND is missing", drop_send},
    {"a RECEIVE is missing", drop_receive},
    {"a message is missing at both ends", drop_message},
    {"a message to another device", wrong_peer},
    {"a wrong tag", wrong_tag},
    {"a message received in the slot in which it is sent", receive_with_send},
    {"a message received after the task that needs it", receive_late},
    {"a message twice in a slot", second_message},
    {"a message in the slot of another of its kind", delayed_message},
    {"a message sent before what it carries is made", early_message},
    {"a message too many in a slot of zero", one_too_many},
    {"zero's copy for a backward in the place of one for a forward, or the reverse", other_chain},
    {"zero's copy sent on too early", too_far_ahead},
    {"zero's copy from another rank", copy_of_another},
    {"a message where nothing need be sent", needless_message},
    {"weights to a device that has no use for them", weights_to_stranger},
    {"a message by way of a device that is no neighbour", detour},
    {"a partial sum as a finished one, or the reverse", wrong_cargo},
    {"a message with the sum of another bundle", wrong_bundle},
    {"a piece of a sum twice, and another not at all", wrong_piece},
    {"a piece that does not exist", extra_piece},
    {"pieces of a sum in another order", swap_pieces},
    {"activations of another cut", wrong_cut},
    {"a message with another version", wrong_weights},
    {"a REDUCE is missing on one device", drop_reduce},
    {"a REDUCE is missing", drop_all_reduces},
    {"a REDUCE before the backward", early_reduce},
    {"a REDUCE to another device", wrong_reduce_goal},
    {"two collectives in different order on one device", swap_collectives},
    {"a BROADCAST is missing on one device", drop_broadcast},
    {"a BROADCAST is missing", drop_all_broadcasts},
    {"a BROADCAST of another version", wrong_broadcast},
    {"a BROADCAST from another device", wrong_broadcast_owner},
};

const car_mutation *car_mutations_of_messages(int *count) {
    *count = (int)(sizeof mutations / sizeof mutations[0]);
    return mutations;
}
