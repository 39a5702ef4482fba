/* Draws the figure of a plan: grids above, activation memory below, with data parallelism beside the cycle on one
 * scale. */
#include "carousel/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "carousel/predict.h"
#include "report/svg.h"

/* The layout, in units of the viewBox. */
enum {
    WIDTH = 1200,
    HEIGHT = 760,
    LEFT = 92,   /* left edge of the first panel's chart */
    RIGHT = 676, /* left edge of the second panel's chart */
    CHART_WIDTH = 484,
    GRID_TOP = 124,
    GRID_MOST = 184, /* the largest height of a grid */
    MEMORY_BOTTOM = 648,
    LEAST_PASSES = 2, /* bounds on the micro-batches of a worker that are shown: normally those of a step */
    MOST_PASSES = 4,
    FROM_STEP = 2 /* the first steps only fill the cycle */
};

enum { MOST_WORKERS = 32, MOST_STAGES = 128, SAMPLES = 960 };

typedef struct figure {
    car_text *svg;
    const car_partition *partition;
    const car_plan *cycle;
    const car_plan *dp;
    int workers, stages, each; /* each: micro-batches of a worker per step */
    int passes;                /* number of micro-batches of a worker that are shown */
    double row_height, grid_bottom, memory_top;
    double dp_peak, cycle_peak, limit; /* bytes */
    double limit_without;              /* the limit without recomputation; 0: nothing is recomputed */
    double unit, top, tick;            /* the axis: bytes per unit; its end and its tick distance in that unit */
    const char *unit_name;
} figure;

/* One side of the figure. */
typedef struct panel {
    const car_plan *plan;
    double left;
    bool cyclic;
} panel;

static const car_svg_style body = {13, CAR_INK, CAR_ANCHOR_START, false};
static const car_svg_style small = {12, CAR_FAINT, CAR_ANCHOR_START, false};
static const car_svg_style centred = {12, CAR_FAINT, CAR_ANCHOR_MIDDLE, false};
static const car_svg_style at_end = {12, CAR_FAINT, CAR_ANCHOR_END, false};

/* ---- the grid -------------------------------------------------------------------------------- */

static car_colour stage_colour(const figure *f, int stage, bool backward) {
    car_colour colour = car_colour_stage(f->stages > 1 ? (double)stage / (f->stages - 1) : 0);
    return backward ? colour : car_colour_lighten(colour, 0.62);
}

static int64_t slots_shown(const figure *f) {
    return 2 * (int64_t)f->stages * f->passes;
}

static double slot_width(const figure *f) {
    return (double)CHART_WIDTH / (double)slots_shown(f);
}

/* `number`: the micro-batch's number in its step. */
static void draw_cell(const figure *f, const panel *p, int64_t slot, int number, int stage, bool backward) {
    double wide = slot_width(f), x = p->left + (double)(slot - FROM_STEP * car_plan_period(p->plan)) * wide;
    double y = GRID_TOP + number % f->workers * f->row_height;
    if (x < p->left - 1e-6 || x + wide > p->left + CHART_WIDTH + 1e-6) {
        return;
    }
    double gap = wide > 6 ? 1 : 0;
    car_colour fill = stage_colour(f, stage, backward);
    car_svg_rect(f->svg, x + gap / 2, y + 1, wide - gap, f->row_height - 2, fill);
    if (wide >= 14 && f->row_height >= 14) {
        double size = wide >= 22 ? 13 : 10;
        car_svg_style style = {size, car_colour_text_on(fill), CAR_ANCHOR_MIDDLE, false};
        car_svg_label(f->svg, x + wide / 2, y + f->row_height / 2 + size * 0.36, style, "%d%s", stage,
                      backward ? "′" : "");
    }
    /* A corner marks weights of the previous step: this is where the rules differ. */
    if (car_plan_delay(p->plan, number, stage) && wide >= 5) {
        double side = fmin(wide / 3, 7), inset = wide >= 14 ? 2 : 0;
        car_text_add(f->svg, "<path d=\"M%.2f %.2fh%.2fv%.2fz\" fill=\"#%06x\"/>\n", x + wide - gap / 2 - side - inset,
                     y + 1 + inset, side, side, car_colour_text_on(fill));
    }
}

static void draw_axis(const figure *f, const panel *p) {
    int64_t slots = slots_shown(f), every = 1;
    while ((double)every * slot_width(f) < 24) {
        every *= 2;
    }
    for (int64_t s = 0; s < slots; s += every) {
        car_svg_label(f->svg, p->left + ((double)s + 0.5) * slot_width(f), f->grid_bottom + 16, centred, "%lld",
                      (long long)s);
    }
    car_svg_label(f->svg, p->left + CHART_WIDTH / 2.0, f->grid_bottom + 33, centred, "slot");
}

static void draw_grid(const figure *f, const panel *p) {
    for (int i = 0; i < f->workers; i++) {
        double y = GRID_TOP + (i + 0.5) * f->row_height + 4;
        if (f->row_height >= 12 || i % 4 == 0) {
            car_svg_label(f->svg, p->left - 10, y, at_end, "worker %d", i);
        }
    }
    int64_t end = (FROM_STEP + LEAST_PASSES + 1) * (int64_t)f->workers * f->each;
    for (int64_t n = 0; n < end; n++) {
        int64_t t = n / (f->workers * f->each);
        int number = (int)(n % (f->workers * f->each));
        for (int j = 0; j < f->stages; j++) {
            draw_cell(f, p, car_plan_forward_slot(p->plan, t, number, j), number, j, false);
            draw_cell(f, p, car_plan_backward_slot(p->plan, t, number, j), number, j, true);
        }
    }
    draw_axis(f, p);
}

/* Draws the stages as a strip of swatches, forward above backward. */
static void draw_stage_legend(const figure *f) {
    double y = f->grid_bottom + 50, x = LEFT, wide = fmin(26, 430.0 / f->stages);
    car_svg_label(f->svg, x - 10, y + 11, at_end, "forward");
    car_svg_label(f->svg, x - 10, y + 27, at_end, "backward");
    for (int j = 0; j < f->stages; j++) {
        for (int backward = 0; backward <= 1; backward++) {
            car_colour fill = stage_colour(f, j, backward);
            car_svg_rect(f->svg, x + j * wide, y + 16 * backward, wide > 5 ? wide - 1 : wide, 15, fill);
            if (wide >= 16) {
                car_svg_style style = {11, car_colour_text_on(fill), CAR_ANCHOR_MIDDLE, false};
                car_svg_label(f->svg, x + (j + 0.5) * wide, y + 16 * backward + 11.5, style, "%d%s", j,
                              backward ? "′" : "");
            }
        }
    }
    x += f->stages * wide + 10;
    car_svg_label(f->svg, x, y + 19, small, f->stages == 1 ? "of the stage" : "of stages 0 to %d", f->stages - 1);
    car_text_add(f->svg, "<path d=\"M%d %.2fh8v8z\" fill=\"#%06x\"/>\n", RIGHT, y + 9, CAR_INK);
    car_svg_label(f->svg, RIGHT + 16, y + 18, small, "computed with the weights of the step before");
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The last event that begins at or before a point of the step. */
static int event_at(const car_curve *curve, double share) {
    int low = 0, high = curve->events - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (curve->begin[middle] <= share) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* The most that a micro-batch holds in a small interval, given as shares of its step. Some events are shorter than a
 * point of the drawing, and the peak may be among them. */
static double most_bytes(const car_curve *curve, double from, double to) {
    size_t most = 0;
    int last = event_at(curve, to);
    int first = event_at(curve, from);
    while (first > 0 && curve->begin[first - 1] >= from) {
        first--; /* events that take no time */
    }
    for (int e = first; e <= last && e < curve->events; e++) {
        most = curve->during[e] > most ? curve->during[e] : most;
    }
    return (double)most;
}

/* Bytes of workers 0 .. count-1 in one sample. */
static double bytes_in_sample(const figure *f, const panel *p, int count, int sample) {
    const double wide = (double)f->passes / SAMPLES;
    double sum = 0, all = 0, peak = p->cyclic ? f->cycle_peak : f->dp_peak;
    for (int i = 0; i < f->workers; i++) {
        double share = sample * wide - (p->cyclic ? (double)i / f->workers : 0);
        share -= floor(share + 1e-9);
        all += most_bytes(&f->partition->curve, share, share + wide * (1 - 1e-9));
        sum = i < count ? all : sum;
    }
    /* The peaks of two workers in one sample need not coincide, but the sum never exceeds the exact peak. */
    return all > peak ? sum * peak / all : sum;
}

static double y_of(const figure *f, double bytes) {
    return MEMORY_BOTTOM - bytes / f->unit / f->top * (MEMORY_BOTTOM - f->memory_top);
}

/* Draws the sum over workers 0 .. count-1 as the outline of an area, from left to right. */
static void add_outline(const figure *f, const panel *p, int count) {
    double last = NAN;
    for (int s = 0; s < SAMPLES; s++) {
        double y = y_of(f, bytes_in_sample(f, p, count, s)), x = p->left + (double)s * CHART_WIDTH / SAMPLES;
        if (s == 0) {
            car_text_add(f->svg, "M%.1f %.1f", x, y);
        } else if (!(fabs(y - last) < 0.05)) {
            car_text_add(f->svg, "H%.1fV%.1f", x, y);
        }
        last = fabs(y - last) < 0.05 ? last : y;
    }
    car_text_add(f->svg, "H%d", (int)p->left + CHART_WIDTH);
}

static void draw_areas(const figure *f, const panel *p) {
    /* From the whole sum down, so that each worker's area covers the ones above it. */
    for (int count = f->workers; count >= 1; count--) {
        car_colour fill = car_colour_worker(f->workers > 1 ? (count - 1.0) / (f->workers - 1) : 0);
        car_text_add(f->svg, "<path d=\"");
        add_outline(f, p, count);
        car_text_add(f->svg, "V%dH%dz\" fill=\"#%06x\" stroke=\"#ffffff\" stroke-width=\"0.5\"/>\n", MEMORY_BOTTOM,
                     (int)p->left, fill);
    }
    car_text_add(f->svg, "<path d=\"");
    add_outline(f, p, f->workers);
    car_text_add(f->svg, "\" fill=\"none\" stroke=\"#%06x\" stroke-width=\"1.6\"/>\n", CAR_INK);
}

static void draw_scale(const figure *f, const panel *p) {
    for (int n = 0; n * f->tick <= f->top + 1e-9; n++) {
        double tick = n * f->tick, y = y_of(f, tick * f->unit);
        car_svg_line(f->svg, p->left, y, p->left + CHART_WIDTH, y, CAR_GUIDE, 1, NULL);
        car_svg_label(f->svg, p->left - 10, y + 4, at_end, "%g", tick);
    }
    for (int half = 0; half <= 2 * f->passes; half++) {
        double x = p->left + half * (double)CHART_WIDTH / (2 * f->passes);
        car_svg_line(f->svg, x, MEMORY_BOTTOM, x, MEMORY_BOTTOM + 5, CAR_FAINT, 1, NULL);
        car_svg_label(f->svg, x, MEMORY_BOTTOM + 20, centred, "%g", half / 2.0);
    }
    car_svg_label(f->svg, p->left + CHART_WIDTH / 2.0, MEMORY_BOTTOM + 38, centred, "time, in %s of one worker",
                  f->each > 1 ? "micro-batches" : "steps");
    car_text_add(f->svg,
                 "<text transform=\"translate(%.1f %.1f) rotate(-90)\" font-size=\"12\" fill=\"#%06x\" "
                 "text-anchor=\"middle\">activation memory, %s</text>\n",
                 p->left - 56, (f->memory_top + MEMORY_BOTTOM) / 2, CAR_FAINT, f->unit_name);
}

/* Draws a level with its label. Below the line the label gets a white background, because there are areas behind it. */
static void draw_level(const figure *f, const panel *p, double bytes, const char *dash, bool below, const char *label) {
    double y = y_of(f, bytes), text_y = below ? y + 18 : y - 7;
    car_svg_style style = {12.5, CAR_INK, CAR_ANCHOR_END, true};
    car_svg_line(f->svg, p->left, y, p->left + CHART_WIDTH, y, CAR_INK, 1.3, dash);
    if (below) {
        double wide = 7.4 * (double)strlen(label) + 10;
        car_text_add(f->svg,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"18\" rx=\"3\" fill=\"#ffffff\" "
                     "fill-opacity=\"0.85\"/>\n",
                     p->left + CHART_WIDTH - 4 - wide, text_y - 13, wide);
    }
    car_svg_label(f->svg, p->left + CHART_WIDTH - 8, text_y, style, "%s", label);
}

static void draw_memory(const figure *f, const panel *p) {
    char label[128];
    draw_scale(f, p);
    draw_areas(f, p);
    bool crowded = p->cyclic && f->cycle_peak > 0.93 * f->dp_peak; /* no room for both labels */
    snprintf(label, sizeof label, "peak %.3g %s", f->dp_peak / f->unit, f->unit_name);
    draw_level(f, p, f->dp_peak, "7 4", false, crowded ? "" : p->cyclic ? "peak of data parallelism" : label);
    if (p->cyclic) {
        snprintf(label, sizeof label, "peak %.3g %s, %.2f of data parallelism", f->cycle_peak / f->unit, f->unit_name,
                 f->cycle_peak / f->dp_peak);
        draw_level(f, p, f->cycle_peak, NULL, crowded, label);
        snprintf(label, sizeof label, "limit of any schedule%s %.3g %s, %.2f",
                 f->limit_without > 0 ? " with this recomputation" : "", f->limit / f->unit, f->unit_name,
                 f->limit / f->dp_peak);
        draw_level(f, p, f->limit, "2 3", true, label);
        if (f->limit_without > 0) {
            snprintf(label, sizeof label, "limit without recomputation %.3g %s", f->limit_without / f->unit,
                     f->unit_name);
            draw_level(f, p, f->limit_without, "2 3", f->limit_without > 0.93 * f->dp_peak, label);
        }
    }
}

static void draw_worker_legend(const figure *f) {
    double y = MEMORY_BOTTOM + 66, x = LEFT, wide = fmin(92, 700.0 / f->workers);
    for (int i = 0; i < f->workers; i++) {
        car_svg_rect(f->svg, x + i * wide, y, wide < 60 ? wide : 14, 14,
                     car_colour_worker(f->workers > 1 ? (double)i / (f->workers - 1) : 0));
        if (wide >= 60) {
            car_svg_label(f->svg, x + i * wide + 20, y + 11.5, small, "worker %d", i);
        }
    }
    x += f->workers * wide + 10;
    if (wide < 60) {
        car_svg_label(f->svg, x, y + 11.5, small, "workers 0 to %d", f->workers - 1);
        x += 130;
    }
    car_svg_line(f->svg, x, y + 7, x + 22, y + 7, CAR_INK, 1.6, NULL);
    car_svg_label(f->svg, x + 29, y + 11.5, small, "all workers together");
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Chooses the unit that keeps a number of bytes short. */
static const char *choose_unit(double bytes, double *unit) {
    static const char *const names[] = {"B", "kB", "MB", "GB", "TB"};
    int name = 0;
    for (*unit = 1; name < 4 && bytes / *unit >= 1000; name++) {
        *unit *= 1000;
    }
    return names[name];
}

/* Chooses about four ticks at 1, 2 or 5 times a power of ten. */
static void choose_scale(figure *f) {
    double highest = fmax(fmax(f->dp_peak, f->limit_without), 1);
    f->unit_name = choose_unit(highest, &f->unit);
    double most = highest / f->unit * 1.12; /* room for the label above the line */
    double power = pow(10, floor(log10(most / 4)));
    double digit = most / 4 / power;
    f->tick = power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
    f->top = most;
}

static void draw_figure(const figure *f, const char *title) {
    const panel panels[] = {{f->dp, LEFT, false}, {f->cycle, RIGHT, true}};
    const car_plan_config *config = car_plan_config_of(f->cycle);
    car_svg_style heading = {21, CAR_INK, CAR_ANCHOR_START, true}, name = {15, CAR_INK, CAR_ANCHOR_START, true};
    car_svg_begin(f->svg, WIDTH, HEIGHT, title);
    car_svg_label(f->svg, 32, 42, heading, "%s", title);
    double held = (double)f->partition->held_bytes, held_unit;
    const char *held_name = choose_unit(held, &held_unit);
    char each[64] = "";
    if (f->each > 1) {
        snprintf(each, sizeof each, ", %d micro-batches of each in a step", f->each);
    }
    car_svg_label(f->svg, 32, 65, body, "%d %s, %d %s%s; one micro-batch holds %.3g %s of activations for backward",
                  f->workers, f->workers == 1 ? "worker" : "workers", f->stages, f->stages == 1 ? "stage" : "stages",
                  each, held / held_unit, held_name);
    car_svg_label(f->svg, LEFT, GRID_TOP - 14, name, "Data parallelism");
    car_svg_label(f->svg, RIGHT, GRID_TOP - 14, name, "Cyclic data parallelism, %s", car_rule_text(config->rule));
    for (int p = 0; p < 2; p++) {
        draw_grid(f, &panels[p]);
        draw_memory(f, &panels[p]);
    }
    draw_stage_legend(f);
    draw_worker_legend(f);
    car_svg_end(f->svg);
}

car_status car_report_plan_svg(const car_plan *plan, const char *title, char **out) {
    CAR_REQUIRE(NULL, plan);
    CAR_REQUIRE(car_plan_context(plan), title);
    CAR_REQUIRE(car_plan_context(plan), out);
    const car_partition *partition = car_plan_partition(plan);
    car_context *context = car_plan_context(plan);
    car_plan_config config = car_plan_config_default();
    int workers = car_plan_config_of(plan)->workers;
    car_text svg = {.context = context};
    car_plan *dp = NULL;
    car_status status = CAR_OK;
    *out = NULL;
    if (!car_plan_is_cyclic(plan)) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "the figure compares dp with a cyclic rule, and %s is not cyclic",
                                car_rule_text(car_plan_config_of(plan)->rule));
    }
    if (workers > MOST_WORKERS || partition->stage_count > MOST_STAGES) {
        return car_context_fail(context, CAR_ERROR_ARGUMENT,
                                "a figure of %d workers and %d stages would not be readable; use at most %d and %d",
                                workers, partition->stage_count, MOST_WORKERS, MOST_STAGES);
    }
    config.workers = workers;
    config.rule = CAR_RULE_DP;
    config.accumulate = car_plan_config_of(plan)->accumulate;
    CAR_TRY(car_plan_create(context, partition, &config, &dp));
    figure f = {.svg = &svg, .partition = partition, .cycle = plan, .dp = dp, .workers = workers};
    f.stages = partition->stage_count;
    f.each = config.accumulate;
    f.passes = f.each < LEAST_PASSES ? LEAST_PASSES : f.each > MOST_PASSES ? MOST_PASSES : f.each;
    f.row_height = fmin(38, (double)GRID_MOST / workers);
    f.grid_bottom = GRID_TOP + workers * f.row_height;
    f.memory_top = f.grid_bottom + 112;
    f.dp_peak = (double)workers * (double)partition->curve.peak;
    f.cycle_peak = f.dp_peak * car_predict_free_running(partition, workers);
    f.limit = partition->limit * workers * (double)partition->held_bytes;
    if (partition->recompute) {
        f.limit_without = partition->recomputation.limit * workers * (double)partition->recomputation.held_bytes;
    }
    choose_scale(&f);
    draw_figure(&f, title);
    status = car_text_finish(&svg, out);
done:
    car_plan_destroy(dp);
    return status;
}
