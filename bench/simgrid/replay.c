/* Replays a plan on SimGrid's SMPI: every rank reads what it does, one thing to a line, and does it in that order.
 *
 *   c FLOPS              computes
 *   s RANK TAG BYTES     sends, without waiting
 *   r RANK TAG BYTES     waits for a message; it was posted some receives before
 *   a BYTES              all-reduces with the other ranks that have such lines
 *   t STEP               notes the time
 *   j                    begins a job: the lines up to the next j. Jobs wait beside each other, and each goes on when
 *                        its own messages have come. A rank without such lines does all in order
 *
 * schedule.py writes DIRECTORY/RANK.txt from the table that `carousel plan --dump` prints; nothing here knows about
 * plans. At the end each rank prints "mark STEP SECONDS" for what it noted. Usage: smpirun ... replay DIRECTORY BYTES,
 * with the bytes of the largest message. */
#include <mpi.h>
#include <smpi/smpi.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    AHEAD = 64,      /* receives that are posted before they are waited for, as ranks of the engine do; and jobs */
    UNDER_WAY = 512, /* sends whose requests are kept */
    MOST_MARKS = 64
};

typedef struct line {
    char what;
    int rank, tag;
    double amount;
    MPI_Request request; /* of a receive that is posted */
} line;

typedef struct rank_state {
    line *lines;
    int count, posted, pending; /* posted: lines up to here; pending: receives among them that were not waited for */
    MPI_Request sends[UNDER_WAY];
    int sent;
    double *buffer; /* of all messages, in and out: nobody looks at their content */
    MPI_Comm reducers;
    int marks, mark_steps[MOST_MARKS];
    double mark_times[MOST_MARKS];
} rank_state;

static void fail(const char *what, const char *path) {
    fprintf(stderr, "replay: %s %s\n", what, path);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void read_lines(rank_state *s, const char *path) {
    FILE *file = fopen(path, "r");
    int capacity = 0;
    line l = {0};
    if (!file) {
        fail("cannot read", path);
    }
    while (fscanf(file, " %c", &l.what) == 1) {
        l.request = MPI_REQUEST_NULL;
        l.rank = l.tag = 0;
        int fields = 1;
        if (l.what == 's' || l.what == 'r') {
            fields = fscanf(file, "%d %d %lf", &l.rank, &l.tag, &l.amount) - 2;
        } else if (l.what != 'j') {
            fields = fscanf(file, "%lf", &l.amount);
        }
        if (fields != 1) {
            fail("does not understand", path);
        }
        if (s->count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            s->lines = realloc(s->lines, (size_t)capacity * sizeof *s->lines);
        }
        s->lines[s->count++] = l;
    }
    fclose(file);
}

/* Messages are counted in doubles: a count of bytes would not fit an int. */
static int elements(double bytes) {
    return (int)((bytes + 7) / 8);
}

static void post(rank_state *s, line *l) {
    MPI_Irecv(s->buffer, elements(l->amount), MPI_DOUBLE, l->rank, l->tag, MPI_COMM_WORLD, &l->request);
}

static void post_ahead(rank_state *s) {
    for (; s->posted < s->count && s->pending < AHEAD; s->posted++) {
        line *l = &s->lines[s->posted];
        if (l->what == 'r') {
            post(s, l);
            s->pending++;
        }
    }
}

static void send(rank_state *s, const line *l) {
    MPI_Request *request = &s->sends[s->sent++ % UNDER_WAY];
    if (s->sent > UNDER_WAY) {
        MPI_Wait(request, MPI_STATUS_IGNORE); /* the oldest; it has arrived long ago */
    }
    MPI_Isend(s->buffer, elements(l->amount), MPI_DOUBLE, l->rank, l->tag, MPI_COMM_WORLD, request);
}

/* As a ring: parts of it go round twice, first to be added up, then to be known to all. (SMPI's own ring would copy
 * what nobody looks at.) */
static void all_reduce(rank_state *s, const line *l) {
    int ranks, rank;
    MPI_Comm_size(s->reducers, &ranks);
    MPI_Comm_rank(s->reducers, &rank);
    int count = elements(l->amount / ranks), next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int round = 0; round < 2 * (ranks - 1); round++) {
        MPI_Sendrecv(s->buffer, count, MPI_DOUBLE, next, 0, s->buffer, count, MPI_DOUBLE, previous, 0, s->reducers,
                     MPI_STATUS_IGNORE);
    }
}

/* A line that waits for nobody. */
static void do_line(rank_state *s, const line *l) {
    switch (l->what) {
    case 'c':
        smpi_execute_flops(l->amount);
        break;
    case 's':
        send(s, l);
        break;
    case 'a':
        all_reduce(s, l);
        break;
    case 't':
        if (s->marks < MOST_MARKS) {
            s->mark_steps[s->marks] = (int)l->amount;
            s->mark_times[s->marks++] = MPI_Wtime();
        }
        break;
    default:
        fail("does not know what this is in", "a line");
    }
}

static void run_in_order(rank_state *s) {
    for (int i = 0; i < s->count; i++) {
        line *l = &s->lines[i];
        post_ahead(s);
        if (l->what == 'r') {
            MPI_Wait(&l->request, MPI_STATUS_IGNORE);
            s->pending--;
        } else {
            do_line(s, l);
        }
    }
}

/* Up to the receive that the job now waits for, or its end; returns the request, if any. */
static MPI_Request go_on(rank_state *s, int *at) {
    for (; *at < s->count && s->lines[*at].what != 'j'; ++*at) {
        if (s->lines[*at].what == 'r') {
            return s->lines[*at].request;
        }
        do_line(s, &s->lines[*at]);
    }
    return MPI_REQUEST_NULL;
}

/* All of its receives are posted at once. Returns where the next job begins. */
static int post_job(rank_state *s, int begin) {
    int i = begin;
    for (; i < s->count && s->lines[i].what != 'j'; i++) {
        line *l = &s->lines[i];
        if (l->what == 'r') {
            post(s, l);
        }
    }
    return i;
}

static void run_jobs(rank_state *s) {
    MPI_Request waits[AHEAD];
    int at[AHEAD], jobs = 0, next = 0;
    while (next < s->count || jobs > 0) {
        while (next < s->count && jobs < AHEAD) {
            at[jobs] = next + 1;
            next = post_job(s, next + 1);
            waits[jobs] = go_on(s, &at[jobs]);
            jobs += waits[jobs] != MPI_REQUEST_NULL;
        }
        int came = MPI_UNDEFINED;
        MPI_Waitany(jobs, waits, &came, MPI_STATUS_IGNORE);
        if (came == MPI_UNDEFINED) {
            continue; /* none waits */
        }
        at[came]++;
        waits[came] = go_on(s, &at[came]);
        if (waits[came] == MPI_REQUEST_NULL) {
            jobs--;
            at[came] = at[jobs];
            waits[came] = waits[jobs];
        }
    }
}

int main(int argc, char **argv) {
    rank_state state = {0};
    char path[4096];
    int rank, reduces = 0;
    MPI_Init(&argc, &argv);
    if (argc != 3) {
        fail("usage:", "replay DIRECTORY BYTES");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s/%d.txt", argv[1], rank);
    read_lines(&state, path);
    for (int i = 0; i < state.count; i++) {
        reduces |= state.lines[i].what == 'a';
    }
    MPI_Comm_split(MPI_COMM_WORLD, reduces, rank, &state.reducers);
    state.buffer = SMPI_SHARED_MALLOC((size_t)atof(argv[2]) + 4096);
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    if (state.count > 0 && state.lines[0].what == 'j') {
        run_jobs(&state);
    } else {
        run_in_order(&state);
    }
    MPI_Waitall(state.sent < UNDER_WAY ? state.sent : UNDER_WAY, state.sends, MPI_STATUSES_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD); /* what is sent at the end must find its rank */
    for (int m = 0; m < state.marks; m++) {
        printf("mark %d %.9f\n", state.mark_steps[m], state.mark_times[m] - begin);
    }
    SMPI_SHARED_FREE(state.buffer);
    free(state.lines);
    MPI_Finalize();
    return 0;
}
