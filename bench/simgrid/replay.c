/* Replays a plan on SimGrid's SMPI: tasks that wait for each other, as schedule.py writes them from the output of
 * `carousel plan --dump --edges`. Nothing here knows about plans.
 *
 * A device is up to three ranks on one host. Rank d, the carrier, has the list: it posts receives, sends, and tells
 * the others what may begin. Rank DEVICES + d computes, rank 2*DEVICES + d all-reduces, each in the list's order.
 * Messages between them take no time.
 *
 *   DIRECTORY/d.txt, one task per line:   KIND SLOT AHEAD WHO TAG AMOUNT COUNT OTHER...
 *
 *   c    computes AMOUNT flops; if WHO is not negative, records the time as the end of step WHO
 *   s    sends AMOUNT bytes to device WHO
 *   q    the same, but at most WAYS of these are in flight at once, those with the smallest AHEAD first: for these
 * AHEAD is
 *        the slot in which the other end posts the receive
 *   r    receives them; posted when the first unfinished task is at most AHEAD slots before SLOT
 *   a    all-reduces AMOUNT bytes with all other devices
 *   u    takes no time
 *   w    computes AMOUNT flops before everything else; not a task
 *
 * A task begins when the COUNT others that it lists, counted from 0, are finished. At the end it prints "mark STEP
 * SECONDS" for each recorded step. Usage: smpirun ... replay DIRECTORY DEVICES BYTES, with the bytes of the largest
 * message. */
#include <mpi.h>
#include <smpi/smpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_MARKS = 64, WAYS = 2, GO = 1, DONE = 2 }; /* tags between the ranks of a device; others are larger */

typedef struct task {
    char kind;
    int slot, ahead, who, tag;
    double amount;
    int blockers, *dependents, dependent_count;
    bool posted, arrived, over;
} task;

typedef struct state {
    int device, devices;
    task *tasks;
    int count, capacity, first, most_ahead;
    int *ready, ready_count;
    MPI_Request *waits;          /* requests of the tasks in `waiting` */
    int *held, held_count, ways; /* tasks of kind q that wait for their turn, and how many are in flight */
    int *waiting, wait_count;
    double delay; /* flops */
} state;

/* For all messages of all ranks, which are threads of one process: their contents do not matter. */
static double *buffer;

static void fail(const char *what, const char *path) {
    fprintf(stderr, "replay: %s %s\n", what, path);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *grown(void *array, int count, int *capacity, size_t size) {
    if (count < *capacity) {
        return array;
    }
    *capacity = *capacity ? 2 * *capacity : 1024;
    return realloc(array, (size_t)*capacity * size);
}

/* ---- the list -------------------------------------------------------------------------------- */

static void add_dependent(task *earlier, int number) {
    int n = earlier->dependent_count++;
    if ((n & (n - 1)) == 0) { /* full at every power of two */
        earlier->dependents = realloc(earlier->dependents, (size_t)(n ? 2 * n : 1) * sizeof(int));
    }
    earlier->dependents[n] = number;
}

static void skip_line(FILE *file) {
    for (int c = 0; c != '\n' && c != EOF;) {
        c = fgetc(file);
    }
}

/* All tasks, or those of one kind, without who waits for whom. */
static void read_tasks(state *s, const char *path, char only) {
    FILE *file = fopen(path, "r");
    task t = {0};
    int count = 0, *edges = NULL, edge_count = 0, edge_capacity = 0; /* pairs: a task, and one that it waits for */
    if (!file) {
        fail("cannot read", path);
    }
    while (fscanf(file, " %c %d %d %d %d %lf %d", &t.kind, &t.slot, &t.ahead, &t.who, &t.tag, &t.amount, &count) == 7) {
        if (t.kind == 'w') {
            s->delay = t.amount;
            continue;
        }
        if (only) {
            skip_line(file);
            count = 0;
            if (t.kind != only) {
                continue;
            }
        }
        s->tasks = grown(s->tasks, s->count, &s->capacity, sizeof t);
        s->tasks[s->count] = t;
        s->tasks[s->count].blockers = count;
        for (int e = 0; e < count; e++, edge_count += 2) {
            edges = grown(edges, edge_count + 1, &edge_capacity, sizeof *edges);
            edges[edge_count] = s->count;
            if (fscanf(file, "%d", &edges[edge_count + 1]) != 1) {
                fail("does not understand", path);
            }
        }
        if (t.kind == 'r' && t.ahead > s->most_ahead) {
            s->most_ahead = t.ahead;
        }
        s->count++;
    }
    if (!feof(file)) {
        fail("does not understand", path);
    }
    fclose(file);
    for (int e = 0; e < edge_count; e += 2) {
        if (edges[e + 1] < 0 || edges[e + 1] >= s->count) {
            fail("waits for what is not there in", path);
        }
        add_dependent(&s->tasks[edges[e + 1]], edges[e]);
    }
    free(edges);
}

/* ---- the carrier ----------------------------------------------------------------------------- */

/* Messages are counted in doubles, because a number of bytes might not fit an int. */
static int elements(double bytes) {
    return (int)((bytes + 7) / 8);
}

/* A place for the request of a task. Sends have one, too, although nobody waits for them: SimGrid searches all requests of
 * a rank that have not been waited for each time one of them ends. */
static MPI_Request *add_request(state *s, int number) {
    s->waiting[s->wait_count] = number;
    return &s->waits[s->wait_count++];
}

static void wait_for(state *s, int number, int rank, int tag, double bytes) {
    MPI_Irecv(buffer, elements(bytes), MPI_DOUBLE, rank, tag, MPI_COMM_WORLD, add_request(s, number));
}

/* The order of tasks of kind q. Of equal ones, the smaller number was ready first. */
static bool goes_before(const state *s, int a, int b) {
    return s->tasks[a].ahead < s->tasks[b].ahead || (s->tasks[a].ahead == s->tasks[b].ahead && a < b);
}

static bool goes_first(const state *s, int number) {
    for (int w = 0; w < s->wait_count; w++) {
        const task *t = &s->tasks[s->waiting[w]];
        if (t->kind == 'q' && t->ahead <= s->tasks[number].ahead) {
            return false;
        }
    }
    return true;
}

static void release(state *s) {
    while (s->held_count > 0) {
        int best = 0;
        for (int h = 1; h < s->held_count; h++) {
            best = goes_before(s, s->held[h], s->held[best]) ? h : best;
        }
        int number = s->held[best];
        const task *t = &s->tasks[number];
        if (s->ways >= WAYS && !goes_first(s, number)) {
            return;
        }
        s->held[best] = s->held[--s->held_count];
        s->ways++;
        MPI_Issend(buffer, elements(t->amount), MPI_DOUBLE, t->who, t->tag, MPI_COMM_WORLD, add_request(s, number));
    }
}

static void end_task(state *s, int number) {
    task *t = &s->tasks[number];
    t->over = true;
    for (int d = 0; d < t->dependent_count; d++) {
        if (--s->tasks[t->dependents[d]].blockers == 0) {
            s->ready[s->ready_count++] = t->dependents[d];
        }
    }
    while (s->first < s->count && s->tasks[s->first].over) {
        s->first++;
    }
}

static void begin_task(state *s, int number) {
    const task *t = &s->tasks[number];
    if (t->kind == 'c' || t->kind == 'a') {
        int beside = s->device + (t->kind == 'c' ? 1 : 2) * s->devices;
        MPI_Send(buffer, 1, MPI_DOUBLE, beside, GO, MPI_COMM_WORLD);
        wait_for(s, number, beside, DONE, 8);
        return;
    }
    if (t->kind == 's') {
        MPI_Isend(buffer, elements(t->amount), MPI_DOUBLE, t->who, t->tag, MPI_COMM_WORLD, add_request(s, number));
    } else if (t->kind == 'q') {
        s->held[s->held_count++] = number;
    }
    if (t->kind != 'r' || t->arrived) {
        end_task(s, number);
    }
}

static void post(state *s) {
    int now = s->first < s->count ? s->tasks[s->first].slot : 0;
    for (int n = s->first; n < s->count && s->tasks[n].slot <= now + s->most_ahead; n++) {
        task *t = &s->tasks[n];
        if (t->kind == 'r' && !t->posted && t->slot <= now + t->ahead) {
            t->posted = true;
            wait_for(s, n, t->who, t->tag, t->amount);
        }
    }
}

/* Waits until a request is finished, and returns its task. */
static int wait_any(state *s) {
    int came = MPI_UNDEFINED;
    MPI_Waitany(s->wait_count, s->waits, &came, MPI_STATUS_IGNORE);
    if (came == MPI_UNDEFINED) {
        fail("waits for nothing on", "a device");
    }
    int number = s->waiting[came];
    s->waits[came] = s->waits[--s->wait_count];
    s->waiting[came] = s->waiting[s->wait_count];
    s->ways -= s->tasks[number].kind == 'q';
    return number;
}

static void carry(state *s) {
    size_t count = (size_t)s->count + 1;
    s->ready = calloc(count, sizeof *s->ready);
    s->waits = calloc(count, sizeof *s->waits);
    s->waiting = calloc(count, sizeof *s->waiting);
    s->held = calloc(count, sizeof *s->held);
    for (int n = 0; n < s->count; n++) {
        if (s->tasks[n].blockers == 0) {
            s->ready[s->ready_count++] = n;
        }
    }
    while (s->first < s->count) {
        while (s->ready_count > 0) {
            begin_task(s, s->ready[--s->ready_count]);
        }
        post(s);
        release(s);
        if (s->ready_count > 0 || s->first == s->count) {
            continue;
        }
        int number = wait_any(s);
        if (s->tasks[number].kind == 'q' || s->tasks[number].kind == 's') {
            continue; /* it already counted as finished when it was handed in */
        }
        s->tasks[number].arrived = true;
        if (s->tasks[number].blockers == 0) {
            end_task(s, number);
        }
    }
    while (s->held_count > 0) { /* those of the last tasks */
        wait_any(s);
        release(s);
    }
    MPI_Waitall(s->wait_count, s->waits, MPI_STATUSES_IGNORE);
}

/* ---- the helpers ----------------------------------------------------------------------------- */

/* A ring: parts go round twice, first to be added up, then to be distributed. (SMPI's own ring would copy data that
 * nobody reads.) */
static void all_reduce(MPI_Comm reducers, double bytes) {
    int ranks, rank;
    MPI_Comm_size(reducers, &ranks);
    MPI_Comm_rank(reducers, &rank);
    int count = elements(bytes / ranks), next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    for (int round = 0; round < 2 * (ranks - 1); round++) {
        MPI_Sendrecv(buffer, count, MPI_DOUBLE, next, 0, buffer, count, MPI_DOUBLE, previous, 0, reducers,
                     MPI_STATUS_IGNORE);
    }
}

/* Runs the list's tasks of one kind, each when the carrier says so. */
static void serve(state *s, char kind, MPI_Comm reducers, double *marks) {
    double begin = MPI_Wtime();
    if (kind == 'c' && s->delay > 0) {
        smpi_execute_flops(s->delay);
    }
    for (int n = 0; n < s->count; n++) {
        const task *t = &s->tasks[n];
        if (t->kind != kind) {
            continue;
        }
        MPI_Recv(buffer, 1, MPI_DOUBLE, s->device, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (kind == 'c' && t->amount > 0) {
            smpi_execute_flops(t->amount);
        } else if (kind == 'a') {
            all_reduce(reducers, t->amount);
        }
        if (kind == 'c' && t->who >= 0 && t->who < MOST_MARKS) {
            marks[t->who] = MPI_Wtime() - begin;
        }
        MPI_Send(buffer, 1, MPI_DOUBLE, s->device, DONE, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    state s = {0};
    char path[4096];
    double marks[MOST_MARKS] = {0};
    int rank;
    char serves; /* the kind of tasks that this rank does; 0: it is a carrier */
    MPI_Comm reducers;
    MPI_Init(&argc, &argv);
    if (argc != 4) {
        fail("usage:", "replay DIRECTORY DEVICES BYTES");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    s.devices = atoi(argv[2]);
    s.device = rank % s.devices;
    snprintf(path, sizeof path, "%s/%d.txt", argv[1], s.device);
    serves = "\0ca"[rank / s.devices];
    read_tasks(&s, path, serves);
    MPI_Comm_split(MPI_COMM_WORLD, rank / s.devices, rank, &reducers);
    if (rank == 0) {
        buffer = SMPI_SHARED_MALLOC((size_t)atof(argv[3]) + 4096);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (serves) {
        serve(&s, serves, reducers, marks);
    } else {
        carry(&s);
    }
    MPI_Barrier(MPI_COMM_WORLD); /* the last messages must still find their rank */
    for (int step = 0; step < MOST_MARKS; step++) {
        if (marks[step] > 0) {
            printf("mark %d %.9f\n", step, marks[step]);
        }
    }
    if (rank == 0) {
        SMPI_SHARED_FREE(buffer);
    }
    for (int n = 0; n < s.count; n++) {
        free(s.tasks[n].dependents);
    }
    free(s.tasks);
    free(s.ready);
    free(s.waits);
    free(s.waiting);
    free(s.held);
    MPI_Finalize();
    return 0;
}
