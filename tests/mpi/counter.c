/* A counter of what a program sends over MPI, to be put in front of the library with LD_PRELOAD.
 *
 * Every call is handed on to the real function by MPI's profiling interface. Between MPI_Pcontrol(1) and
 * MPI_Pcontrol(0), which the program says around its training loop, messages are counted for each communicator, peer
 * and tag, and collectives by name. MPI_Finalize writes the table to $CAR_COUNT_DIR/rank-N. */
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 4096, MOST_NAMES = 16 };

typedef struct row {
    char comm[32];
    int peer, tag;
    long long messages, bytes;
} row;

static struct {
    int inside, rows, names;
    row row[MOST_ROWS];
    struct {
        char name[32];
        long long count;
    } collective[MOST_NAMES];
} counted;

int MPI_Pcontrol(const int level, ...) {
    counted.inside = level;
    return MPI_SUCCESS;
}

static void name_of(MPI_Comm comm, char *text) {
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0;
    PMPI_Comm_get_name(comm, name, &length);
    const char *last = strrchr(name, ' '); /* "carousel data" */
    snprintf(text, 32, "%.31s", last ? last + 1 : name);
}

static void count_send(MPI_Comm comm, int peer, int tag, long long bytes) {
    char name[32];
    int r = 0;
    if (!counted.inside) {
        return;
    }
    name_of(comm, name);
    while (r < counted.rows &&
           (strcmp(counted.row[r].comm, name) != 0 || counted.row[r].peer != peer || counted.row[r].tag != tag)) {
        r++;
    }
    if (r == MOST_ROWS) {
        fprintf(stderr, "counter: too many kinds of messages\n");
        abort();
    }
    if (r == counted.rows) {
        row *new = &counted.row[counted.rows++];
        strcpy(new->comm, name);
        new->peer = peer;
        new->tag = tag;
    }
    counted.row[r].messages++;
    counted.row[r].bytes += bytes;
}

static void count_collective(const char *name) {
    int n = 0;
    if (!counted.inside) {
        return;
    }
    while (n < counted.names && strcmp(counted.collective[n].name, name) != 0) {
        n++;
    }
    if (n < MOST_NAMES) {
        counted.names = n == counted.names ? n + 1 : counted.names;
        strcpy(counted.collective[n].name, name);
        counted.collective[n].count++;
    }
}

static long long bytes_of(int count, MPI_Datatype type) {
    int size = 0;
    PMPI_Type_size(type, &size);
    return (long long)count * size;
}

int MPI_Finalize(void) {
    char path[4096];
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s/rank-%d", getenv("CAR_COUNT_DIR") ? getenv("CAR_COUNT_DIR") : ".", rank);
    FILE *file = fopen(path, "w");
    for (int r = 0; file && r < counted.rows; r++) {
        const row *c = &counted.row[r];
        fprintf(file, "send %s %d %d %lld %lld\n", c->comm, c->peer, c->tag, c->messages, c->bytes);
    }
    for (int n = 0; file && n < counted.names; n++) {
        fprintf(file, "collective %s %lld\n", counted.collective[n].name, counted.collective[n].count);
    }
    if (!file || fprintf(file, "end\n") < 0 || fclose(file) != 0) {
        fprintf(stderr, "counter: could not write %s\n", path);
    }
    return PMPI_Finalize();
}

/* ---- messages -------------------------------------------------------------------------------- */

#define SEND(name)                                                                                     \
    int MPI_##name(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) { \
        count_send(comm, peer, tag, bytes_of(count, type));                                            \
        return PMPI_##name(data, count, type, peer, tag, comm);                                        \
    }
#define ISEND(name)                                                                                  \
    int MPI_##name(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, \
                   MPI_Request *request) {                                                           \
        count_send(comm, peer, tag, bytes_of(count, type));                                          \
        return PMPI_##name(data, count, type, peer, tag, comm, request);                             \
    }
SEND(Send)
SEND(Ssend)
SEND(Rsend)
SEND(Bsend)
ISEND(Isend)
ISEND(Issend)
ISEND(Irsend)

/* ---- collectives ----------------------------------------------------------------------------- */

int MPI_Barrier(MPI_Comm comm) {
    count_collective("barrier");
    return PMPI_Barrier(comm);
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request) {
    count_collective("ibarrier");
    return PMPI_Ibarrier(comm, request);
}
int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    count_collective("bcast");
    return PMPI_Bcast(data, count, type, root, comm);
}
int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    count_collective("ibcast");
    return PMPI_Ibcast(data, count, type, root, comm, request);
}
int MPI_Reduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    count_collective("reduce");
    return PMPI_Reduce(in, out, count, type, op, root, comm);
}
int MPI_Ireduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                MPI_Request *request) {
    count_collective("ireduce");
    return PMPI_Ireduce(in, out, count, type, op, root, comm, request);
}
int MPI_Allreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    count_collective("allreduce");
    return PMPI_Allreduce(in, out, count, type, op, comm);
}
int MPI_Iallreduce(const void *in, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    count_collective("iallreduce");
    return PMPI_Iallreduce(in, out, count, type, op, comm, request);
}
int MPI_Allgather(const void *in, int count, MPI_Datatype type, void *out, int out_count, MPI_Datatype out_type,
                  MPI_Comm comm) {
    count_collective("allgather");
    return PMPI_Allgather(in, count, type, out, out_count, out_type, comm);
}
