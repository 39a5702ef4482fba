/* Writes down what a program hands to its transport over MPI, and when: loaded before MPI's library (LD_PRELOAD), around
 * the unchanged program. A line for each message and each sum over all ranks of the training loop:
 *
 *   SECONDS KIND BYTES TAG   by the monotonic clock, which all ranks of one machine share; KIND is s (a message), a (a
 *                            sum over all begins: its size) or o (another collective); TAG is -1 but for messages
 *
 * in the file $CAROUSEL_SENDS.RANK. The program says so itself, through the call that MPI has for profilers:
 * MPI_Pcontrol(1) and (0) where the loop begins and ends, MPI_Pcontrol(2, bytes, tag) when it hands in a message, or with
 * tag -1 a sum over all. */
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

/* One thread at a time calls MPI, so no lock. A bench's own file: here globals are the only way to keep anything. */
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
