/* Records what a program hands to MPI, and when. It is loaded before MPI's library (LD_PRELOAD) and needs no change
 * of the program. It writes a line for each message and each sum over all ranks of the training loop to the file
 * $CAROUSEL_SENDS.RANK:
 *
 *   SECONDS KIND BYTES TAG   by the monotonic clock, which all ranks of one machine share; KIND is s (a message), a
 * (a
 *                            sum over all ranks starts) or o (another collective); TAG is -1 except for messages
 *
 * The program announces these itself, through MPI's call for profilers: MPI_Pcontrol(1) and (0) at the start and end
 * of the loop, and MPI_Pcontrol(2, bytes, tag) for a message or, with tag -1, a sum over all ranks. */
#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct entry {
    double when;
    char kind;
    long long bytes;
    int tag;
} entry;

/* Only one thread at a time calls MPI, so no lock is needed. An interposed library has no context: globals are the
 * only place for state. */
static entry *entries;
static size_t count, capacity;
static bool looping;

static void note(char kind, long long bytes, int tag) {
    struct timespec now;
    if (!looping) {
        return;
    }
    if (count == capacity) {
        size_t more = capacity ? 2 * capacity : 4096;
        entry *grown = realloc(entries, more * sizeof *grown);
        if (!grown) {
            fprintf(stderr, "sends: no memory: the record is incomplete\n");
            return;
        }
        entries = grown;
        capacity = more;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    entries[count++] = (entry){(double)now.tv_sec + 1e-9 * (double)now.tv_nsec, kind, bytes, tag};
}

static long long size_of(int items, MPI_Datatype type) {
    int size = 0;
    PMPI_Type_size(type, &size);
    return (long long)items * size;
}

int MPI_Pcontrol(const int level, ...) {
    va_list arguments;
    va_start(arguments, level);
    if (level == 2) {
        long long bytes = va_arg(arguments, long long);
        int tag = va_arg(arguments, int);
        note(tag < 0 ? 'a' : 's', bytes, tag);
    } else {
        looping = level == 1;
    }
    va_end(arguments);
    return MPI_SUCCESS;
}

int MPI_Ireduce(const void *in, void *out, int items, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                MPI_Request *request) {
    note('o', size_of(items, type), -1);
    return PMPI_Ireduce(in, out, items, type, op, root, comm, request);
}

int MPI_Ibcast(void *data, int items, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    note('o', size_of(items, type), -1);
    return PMPI_Ibcast(data, items, type, root, comm, request);
}

int MPI_Finalize(void) {
    const char *prefix = getenv("CAROUSEL_SENDS");
    char path[4096];
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s.%d", prefix ? prefix : "sends", rank);
    FILE *file = prefix ? fopen(path, "w") : NULL;
    for (size_t e = 0; file && e < count; e++) {
        fprintf(file, "%.6f %c %lld %d\n", entries[e].when, entries[e].kind, entries[e].bytes, entries[e].tag);
    }
    if (file && fclose(file) != 0) {
        fprintf(stderr, "sends: %s could not be written\n", path);
    }
    free(entries);
    entries = NULL;
    count = capacity = 0;
    return PMPI_Finalize();
}
