/* See options.h. */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "waveform: finds the velocity of the ground from synthetic seismograms, by full waveform inversion.\n"
    "\n"
    "  --size N         cells of the model on a side (96)\n"
    "  --steps N        of time (480)\n"
    "  --stages S       runs of time steps, a multiple of the workers (24)\n"
    "  --checkpoints C  of a stage, which divide its time steps; fields between them are computed again (0: all are "
    "held)\n"
    "  --workers N      shots under way at once (2)\n"
    "  --accumulate M   shots that each worker takes in turn (4): there are M times N\n"
    "  --threads P      (2)\n"
    "  --rule R         stagger, accumulate, dp, cdp-v1, ... (stagger)\n"
    "  --placement P    over ranks of mpirun: replica, pipeline, zero, grid (replica)\n"
    "  --method M       lbfgs or descent (lbfgs)\n"
    "  --iterations N   (20)\n"
    "  --out FILE       a PNG of the true, the first and the recovered model\n"
    "  --plan FILE      the schedule as SVG\n"
    "  --check          compares the gradient with that of a serial program, to the bit\n"
    "  --taylor         compares the gradient with the loss along a direction: the remainder must fall by the square\n"
    "  --repeat N       times N gradients, and prints time and memory\n";

enum { HELP_ANSWERED = 1, WRONG_ANSWERED = 3 };

static int read_number(const char *name, const char *text, int least, int *out) {
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end || value < least || value > 1000000) {
        fprintf(stderr, "waveform: %s '%s': it must be a number of at least %d\n", name, text, least);
        return WRONG_ANSWERED;
    }
    *out = (int)value;
    return 0;
}

static int check(const options *o) {
    if (o->steps % o->stages != 0 || o->stages % o->workers != 0) {
        fprintf(stderr,
                "waveform: %d time steps must be a multiple of the %d stages, which must be one of the %d workers\n",
                o->steps, o->stages, o->workers);
        return WRONG_ANSWERED;
    }
    if (o->checkpoints > 0 && o->steps / o->stages % o->checkpoints != 0) {
        fprintf(stderr, "waveform: a stage has %d time steps, and %d checkpoints do not divide them\n",
                o->steps / o->stages, o->checkpoints);
        return WRONG_ANSWERED;
    }
    return 0;
}

int options_read(int count, char **arguments, options *o) {
    *o = (options){.size = 96,
                   .steps = 480,
                   .stages = 24,
                   .workers = 2,
                   .accumulate = 4,
                   .threads = 2,
                   .rule = "stagger",
                   .placement = "replica",
                   .lbfgs = true,
                   .iterations = 20};
    const struct {
        const char *name;
        int *number, least;
        const char **text;
        bool *flag;
    } table[] = {
        {"--size", &o->size, 32, NULL, NULL},          {"--steps", &o->steps, 1, NULL, NULL},
        {"--stages", &o->stages, 1, NULL, NULL},       {"--checkpoints", &o->checkpoints, 0, NULL, NULL},
        {"--workers", &o->workers, 1, NULL, NULL},     {"--accumulate", &o->accumulate, 1, NULL, NULL},
        {"--threads", &o->threads, 1, NULL, NULL},     {"--iterations", &o->iterations, 0, NULL, NULL},
        {"--repeat", &o->repeat, 1, NULL, NULL},       {"--rule", NULL, 0, &o->rule, NULL},
        {"--placement", NULL, 0, &o->placement, NULL}, {"--out", NULL, 0, &o->out, NULL},
        {"--plan", NULL, 0, &o->plan, NULL},           {"--check", NULL, 0, NULL, &o->check},
        {"--taylor", NULL, 0, NULL, &o->taylor},
    };
    const char *method = "lbfgs";
    for (int i = 1; i < count; i++) {
        const char *name = arguments[i], *value = i + 1 < count ? arguments[i + 1] : NULL;
        size_t t = 0;
        int answer = 0;
        while (t < sizeof table / sizeof *table && strcmp(table[t].name, name) != 0) {
            t++;
        }
        bool known = t < sizeof table / sizeof *table, is_method = strcmp(name, "--method") == 0;
        if (strcmp(name, "--help") == 0) {
            fputs(help, stdout);
            return HELP_ANSWERED;
        }
        if ((!known && !is_method) || (!value && !(known && table[t].flag))) {
            fprintf(stderr, "waveform: %s '%s'; --help lists the options\n",
                    known || is_method ? "there is no value for" : "unknown option", name);
            return WRONG_ANSWERED;
        }
        if (is_method) {
            method = value;
        } else if (table[t].flag) {
            *table[t].flag = true;
            continue;
        } else if (table[t].text) {
            *table[t].text = value;
        } else {
            answer = read_number(name, value, table[t].least, table[t].number);
        }
        if (answer != 0) {
            return answer;
        }
        i++;
    }
    o->lbfgs = strcmp(method, "lbfgs") == 0;
    if (!o->lbfgs && strcmp(method, "descent") != 0) {
        fprintf(stderr, "waveform: method '%s': it must be lbfgs or descent\n", method);
        return WRONG_ANSWERED;
    }
    return check(o);
}
