/* Reads the text form of a plan back into tasks: the inverse of text.c. */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "plan/text.h"

typedef struct reader {
    car_context *context;
    const char *name;     /* names the text in messages */
    const car_plan *plan; /* NULL while reading the header */
    car_task_list *devices;
    bool *seen; /* by device: its section was there */
    int count;
    const char *next; /* after the current line */
    int number;       /* line number, from 1 */
    int device;       /* of the current section; CAR_NONE before the first */
    int64_t slot;     /* of the last line of the section */
} reader;

/* A part of the text from `at` to `end`, not terminated. */
typedef struct span {
    const char *at, *end;
} span;

static car_status bad(const reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static car_status bad(const reader *r, const char *format, ...) {
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return car_context_fail(r->context, CAR_ERROR_FORMAT, "%s, line %d: %s", r->name, r->number, what);
}

static int quoted(span p) { /* how many characters a message shows */
    return p.end - p.at < 80 ? (int)(p.end - p.at) : 80;
}

/* ---- small things ---------------------------------------------------------------------------- */

static bool next_line(reader *r, span *line) {
    if (!*r->next) {
        return false;
    }
    line->at = r->next;
    line->end = line->at + strcspn(line->at, "\n");
    r->next = *line->end ? line->end + 1 : line->end;
    line->end -= line->end > line->at && line->end[-1] == '\r';
    r->number++;
    return true;
}

static bool next_word(span *line, span *word) {
    while (line->at < line->end && *line->at == ' ') {
        line->at++;
    }
    word->at = line->at;
    while (line->at < line->end && *line->at != ' ') {
        line->at++;
    }
    word->end = line->at;
    return word->end > word->at;
}

static bool take(span *p, char c) {
    bool there = p->at < p->end && *p->at == c;
    p->at += there;
    return there;
}

static bool take_text(span *p, const char *text) {
    size_t length = strlen(text);
    bool there = (size_t)(p->end - p->at) >= length && memcmp(p->at, text, length) == 0;
    p->at += there ? length : 0;
    return there;
}

/* A whole number; at most 18 digits, which an int64_t holds. */
static bool take_number(span *p, int64_t *out) {
    int64_t value = 0;
    bool negative = take(p, '-');
    const char *first = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9' && p->at - first < 18) {
        value = value * 10 + (*p->at++ - '0');
    }
    *out = negative ? -value : value;
    return p->at > first;
}

/* ---- one task -------------------------------------------------------------------------------- */

static bool take_letter(span *p, const char *letters, int *index) {
    const char *found = p->at < p->end && *p->at ? strchr(letters, *p->at) : NULL;
    if (found) {
        *index = (int)(found - letters);
        p->at++;
    }
    return found != NULL;
}

/* Reads an optional mark followed by a number from 0 to most. */
static car_status take_marked(const reader *r, span word, span *p, const char *marks, const char *what, int64_t most,
                              int64_t *out) {
    int mark = 0;
    if (!take_letter(p, marks, &mark)) {
        return CAR_OK;
    }
    if (!take_number(p, out)) {
        return bad(r, "in '%.*s' a number is missing after '%c'", quoted(word), word.at, marks[mark]);
    }
    if (*out < 0 || *out > most) {
        return bad(r, "in '%.*s' the %s is %lld, but must be from 0 to %lld", quoted(word), word.at, what,
                   (long long)*out, (long long)most);
    }
    return CAR_OK;
}

/* Reads the stage or bundle that names a task. */
static car_status take_name(const reader *r, span word, span *p, car_task *task) {
    const car_partition *partition = car_plan_partition(r->plan);
    bool tied = take(p, '~');
    int64_t number = 0, most = tied ? partition->bundle_count - partition->stage_count : partition->stage_count;
    if (!take_number(p, &number)) {
        return bad(r, "in '%.*s' the number of a stage is missing", quoted(word), word.at);
    }
    if (number < 0 || number >= most || (tied && !car_task_names_bundle(task))) {
        return bad(r, "in '%.*s' there is no %s %lld", quoted(word), word.at, tied ? "tied parameter" : "stage",
                   (long long)number);
    }
    *(car_task_names_bundle(task) ? &task->bundle : &task->stage) = (int)number + (tied ? partition->stage_count : 0);
    return CAR_OK;
}

/* "{step=4,tag=2}": the fields that do not follow from the rest. */
static car_status take_differences(const reader *r, span word, span *p, car_task *task) {
    if (!take(p, '{')) {
        return CAR_OK;
    }
    do {
        int *field = take_text(p, "stage=")    ? &task->stage
                     : take_text(p, "bundle=") ? &task->bundle
                     : take_text(p, "tag=")    ? &task->tag
                                               : NULL;
        int64_t value = 0;
        if ((!field && !take_text(p, "step=")) || !take_number(p, &value) || value < INT_MIN || value > INT_MAX) {
            return bad(r, "in '%.*s' the braces must have stage=, bundle=, step= or tag= and a number", quoted(word),
                       word.at);
        }
        if (field) {
            *field = (int)value;
        } else {
            task->step = value;
        }
    } while (take(p, ','));
    return take(p, '}') ? CAR_OK : bad(r, "in '%.*s' the closing brace is missing", quoted(word), word.at);
}

/* A custom plan has no clock. Without a step in the text, a task is the next of its kind on its device. */
static int64_t count_step(const reader *r, const car_task *task) {
    const car_task_list *list = &r->devices[r->device];
    for (int n = list->count - 1; n >= 0; n--) {
        const car_task *other = &list->tasks[n];
        bool bundle = car_task_names_bundle(task);
        if (other->kind == task->kind && other->cargo == task->cargo && other->micro_batch == task->micro_batch &&
            (bundle ? other->bundle == task->bundle : other->stage == task->stage)) {
            return other->step + 1;
        }
    }
    return 0;
}

static car_status parse_task(const reader *r, span word, int64_t slot, car_task *task) {
#define LETTER(code, text) text
    static const char kinds[] = CAR_TASK_LIST(LETTER), cargos[] = CAR_CARGO_LIST(LETTER);
#undef LETTER
    int kind = 0, cargo = CAR_CARGO_NONE;
    int64_t micro_batch = CAR_NONE, version = CAR_NONE, tied = CAR_NONE, peer = CAR_NONE, step = CAR_NONE, part = 0;
    span p = word;
    car_status status = CAR_OK;
    if (!take_letter(&p, kinds, &kind)) {
        return bad(r, "'%.*s' is not a task; a task begins with one of %s", quoted(word), word.at, kinds);
    }
    take_letter(&p, cargos, &cargo);
    *task = (car_task){.kind = (car_task_kind)kind, .cargo = (car_cargo)cargo, .slot = slot};
    CAR_TRY(take_name(r, word, &p, task));
    CAR_TRY(take_marked(r, word, &p, ".", "micro-batch", car_plan_micro_batches(r->plan) - 1, &micro_batch));
    CAR_TRY(take_marked(r, word, &p, "@", "version", INT64_MAX, &version));
    CAR_TRY(take_marked(r, word, &p, "~", "version of the tied parameter", INT64_MAX, &tied));
    CAR_TRY(take_marked(r, word, &p, "/", "step", INT64_MAX, &step));
    CAR_TRY(take_marked(r, word, &p, ":", "piece", CAR_MOST_PIECES - 1, &part));
    CAR_TRY(take_marked(r, word, &p, "<>", "device", r->count - 1, &peer));
    task->micro_batch = (int)micro_batch;
    task->version = version;
    task->tied_version = tied;
    task->peer = (int)peer;
    task->piece = (int)part;
    task->step = step != CAR_NONE ? step : count_step(r, task);
    car_task_derive(r->plan, task);
    if (step != CAR_NONE && step != task->step) {
        return bad(r, "in '%.*s' the step is %lld, but its slot or version belongs to step %lld", quoted(word), word.at,
                   (long long)step, (long long)task->step);
    }
    CAR_TRY(take_differences(r, word, &p, task));
    if (p.at < p.end) {
        status = bad(r, "in '%.*s' there is an error at '%.*s'%s", quoted(word), word.at, quoted(p), p.at,
                     *p.at == '-' ? ": plans no longer say what a task frees" : "");
    }
done:
    return status;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Compares word by word, so that the message can name the one that differs. The number of steps is the text's own. A
 * custom plan was created from this header. */
static car_status parse_header(reader *r) {
    char text[CAR_HEADER_TEXT];
    int length = car_plan_format_header(r->plan, 0, text, sizeof text);
    span expected = {text, text + length}, line, want, have;
    if (!next_line(r, &line)) {
        return bad(r, "the text is empty");
    }
    if (car_plan_config_of(r->plan)->rule == CAR_RULE_CUSTOM) {
        return CAR_OK;
    }
    while (next_word(&expected, &want)) {
        bool there = next_word(&line, &have);
        span rest = have;
        int64_t steps = 0;
        if (there && take_text(&rest, "steps=") && take_number(&rest, &steps)) {
            have.at = rest.at;
            want.at = want.end;
        }
        if (want.end - want.at != have.end - have.at || memcmp(want.at, have.at, (size_t)(want.end - want.at)) != 0) {
            return bad(r, "the header has '%.*s', but this plan has '%.*s'", quoted(have), have.at, quoted(want),
                       want.at);
        }
    }
    return next_word(&line, &have) ? bad(r, "'%.*s' does not belong in the header", quoted(have), have.at) : CAR_OK;
}

static car_status begin_device(reader *r, span line) {
    int64_t device = 0;
    if (!take_number(&line, &device) || line.at < line.end || device < 0 || device >= r->count) {
        return bad(r, "'device' needs a number from 0 to %d", r->count - 1);
    }
    if (r->seen[device]) {
        return bad(r, "device %lld occurs twice", (long long)device);
    }
    r->seen[device] = true;
    r->device = (int)device;
    r->slot = INT64_MIN;
    return CAR_OK;
}

static car_status parse_slot(reader *r, span line) {
    car_context *context = car_plan_context(r->plan);
    span word = line;
    int64_t slot = 0;
    if (!take_number(&line, &slot) || !take(&line, ':')) {
        return bad(r, "'%.*s' is neither 'device D' nor 'SLOT: TASKS'", quoted(word), word.at);
    }
    if (r->device == CAR_NONE) {
        return bad(r, "there are tasks before the first 'device D'");
    }
    if (slot <= r->slot) {
        return bad(r, "slot %lld does not come after slot %lld", (long long)slot, (long long)r->slot);
    }
    r->slot = slot;
    car_task_list *list = &r->devices[r->device];
    car_status status = CAR_OK;
    while (next_word(&line, &word)) {
        CAR_TRY(car_context_grow(context, &list->tasks, &list->capacity, list->count + 1, sizeof *list->tasks));
        CAR_TRY(parse_task(r, word, slot, &list->tasks[list->count]));
        list->count++;
    }
done:
    return status;
}

/* ---- the header by itself -------------------------------------------------------------------- */

/* A word in the header: its key, its bounds, and where its value goes. */
typedef struct header_word {
    const char *key;
    int64_t least, most;
    int64_t *value; /* NULL: the value is a name, not a number */
} header_word;

static car_status take_period(reader *r, span word, span *p, car_plan_header *out) {
    if (!take_number(p, &out->period_begin) || !take(p, ':') || !take_number(p, &out->period_end) ||
        out->period_begin < 0 || out->period_end <= out->period_begin || out->period_end > INT_MAX) {
        return bad(r, "'%.*s' is not valid: write period=A:B for a period from slot A to the slot before B",
                   quoted(word), word.at);
    }
    return CAR_OK;
}

static car_status take_header_name(reader *r, const char *key, span *p, car_plan_header *out) {
    char name[32] = "";
    int length = quoted(*p) < (int)sizeof name ? quoted(*p) : (int)sizeof name - 1;
    memcpy(name, p->at, (size_t)length);
    p->at = p->end;
    if (strcmp(key, "rule=") == 0 && strcmp(name, car_rule_text(CAR_RULE_CUSTOM)) == 0) {
        out->config.rule = CAR_RULE_CUSTOM;
        return CAR_OK;
    }
    bool known = strcmp(key, "rule=") == 0        ? car_rule_is_known(name, &out->config.rule)
                 : strcmp(key, "placement=") == 0 ? car_placement_is_known(name, &out->config.placement)
                 : strcmp(key, "sum-order=") == 0
                     ? car_sum_order_find(r->context, name, &out->config.sum_order) == CAR_OK
                     : car_mapping_find(r->context, name, &out->config.mapping) == CAR_OK;
    if (!known) {
        car_context_clear_error(r->context);
        return bad(r, "there is no %.*s '%s'", (int)strlen(key) - 1, key, name);
    }
    return CAR_OK;
}

/* Finds out which of the known words it is, and reads it. */
static car_status take_header_word(reader *r, span word, const header_word *words, int count, unsigned *seen,
                                   car_plan_header *out) {
    car_status status = CAR_OK;
    for (int w = 0; w < count; w++) {
        span p = word;
        if (!take_text(&p, words[w].key)) {
            continue;
        }
        if (*seen & 1u << w) {
            return bad(r, "'%s' occurs twice", words[w].key);
        }
        *seen |= 1u << w;
        if (strcmp(words[w].key, "period=") == 0) {
            CAR_TRY(take_period(r, word, &p, out));
        } else if (!words[w].value) {
            CAR_TRY(take_header_name(r, words[w].key, &p, out));
        } else if (!take_number(&p, words[w].value) || *words[w].value < words[w].least ||
                   *words[w].value > words[w].most) {
            return bad(r, "'%.*s' needs a number from %lld to %lld", quoted(word), word.at, (long long)words[w].least,
                       (long long)words[w].most);
        }
        return p.at < p.end ? bad(r, "in '%.*s' there is an error at '%.*s'", quoted(word), word.at, quoted(p), p.at)
                            : CAR_OK;
    }
    status = bad(r, "'%.*s' is not known in the header of a plan", quoted(word), word.at);
done:
    return status;
}

car_status car_plan_read_header(car_context *context, const char *name, const char *text, car_plan_header *out) {
    CAR_REQUIRE(NULL, context);
    CAR_REQUIRE(context, name);
    CAR_REQUIRE(context, text);
    CAR_REQUIRE(context, out);
    reader r = {.context = context, .name = name, .next = text};
    int64_t workers = 0, stages = 0, bundles = 0, devices = 0, threads = 0, slack = 0, accumulate = 1, copies = 0,
            ahead = 0;
    enum { CUSTOM_WORDS = 2, MORE_WORDS = 5, MOST_DELAY = 4 };
    *out = (car_plan_header){.max_delay = 1};
    const header_word words[] = {
        {"rule=", 0, 0, NULL},
        {"placement=", 0, 0, NULL},
        {"mapping=", 0, 0, NULL},
        {"workers=", 1, 1 << 16, &workers},
        {"stages=", 1, 1 << 20, &stages},
        {"bundles=", 1, 1 << 21, &bundles},
        {"devices=", 1, INT_MAX, &devices},
        {"threads=", 1, 1 << 16, &threads},
        {"slack=", 0, 1 << 20, &slack},
        {"steps=", 1, 1000000000, &out->steps},
        {"piece-bytes=", 1, 1000000000000000, &out->config.piece_bytes},
        {"accumulate=", 1, 1 << 16, &accumulate},
        {"sum-order=", 0, 0, NULL},
        {"zero-copies=", 1, 2, &copies},
        {"zero-ahead=", 0, 1 << 21, &ahead},
        {"period=", 0, 0, NULL},
        {"max-delay=", 0, MOST_DELAY, &out->max_delay},
    };
    const int count = sizeof words / sizeof words[0];
    unsigned seen = 0;
    span line, word;
    car_status status = CAR_OK;
    bool read = next_line(&r, &line);
    if (read && take_text(&line, "carousel-plan 1 ")) {
        return bad(&r, "this plan has an older version; change 'carousel-plan 1' to 'carousel-plan 2', and remove what "
                       "tasks free (-a, -w and -s after them)");
    }
    if (!read || !take_text(&line, "carousel-plan 2 ")) {
        return bad(&r, "a plan must begin with 'carousel-plan 2', as written by 'carousel plan --dump'");
    }
    while (next_word(&line, &word)) {
        CAR_TRY(take_header_word(&r, word, words, count, &seen, out));
    }
    for (int w = 0; w < count - CUSTOM_WORDS - MORE_WORDS; w++) {
        if (!(seen & 1u << w)) {
            return bad(&r, "the header lacks '%s'", words[w].key);
        }
    }
    if (out->config.rule != CAR_RULE_CUSTOM && seen >> (count - CUSTOM_WORDS)) {
        return bad(&r, "period= and max-delay= are only allowed with rule=custom");
    }
    out->config.workers = (int)workers;
    out->config.accumulate = (int)accumulate;
    out->config.threads = (int)threads;
    out->config.freshness_slack = (int)slack;
    out->config.zero_copies = (int)copies;
    out->config.zero_ahead = (int)ahead;
    out->stages = (int)stages;
    out->bundles = (int)bundles;
    out->devices = (int)devices;
    if (car_placement_info_of(out->config.placement)->fewer_ranks) {
        out->config.ranks = (int)devices;
    }
done:
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

car_status car_plan_parse(const car_plan *plan, const char *text, car_task_list *devices, int count) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), text);
    CAR_REQUIRE(car_plan_context(plan), devices);
    return car_plan_parse_named(plan, "plan text", text, devices, count);
}

car_status car_plan_parse_named(const car_plan *plan, const char *name, const char *text, car_task_list *devices,
                                int count) {
    car_context *context = car_plan_context(plan);
    reader r = {.context = context,
                .name = name,
                .plan = plan,
                .devices = devices,
                .count = count,
                .next = text,
                .device = CAR_NONE};
    span line;
    car_status status = CAR_OK;
    if (count != car_plan_devices(plan)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "a plan for %d devices cannot be read into %d lists",
                                car_plan_devices(plan), count);
    }
    for (int d = 0; d < count; d++) {
        devices[d].count = 0;
    }
    CAR_TRY(car_context_allocate(context, (size_t)count, sizeof(bool), &r.seen));
    CAR_TRY(parse_header(&r));
    while (next_line(&r, &line)) {
        if (line.at == line.end || *line.at == '#') {
            continue;
        }
        CAR_TRY(take_text(&line, "device ") ? begin_device(&r, line) : parse_slot(&r, line));
    }
    for (int d = 0; d < count; d++) {
        if (!r.seen[d]) {
            status = bad(&r, "device %d is missing", d);
            break;
        }
    }
done:
    car_context_release(context, r.seen, (size_t)count, sizeof(bool));
    return status;
}
