/* Counts what a program does with MPI, without a change to the program: a library for LD_PRELOAD.
 *
 * MPI promises that every function can be had under a second name, PMPI_..., so that a library may stand in for the
 * first. This one does for all calls by which Carousel sends, or takes part in a collective, and writes down each one;
 * traffic.py makes sure that the program calls no others. In MPI_Finalize every rank writes COUNTER_DIR/rank.R:
 *
 *     in the loop (0 or 1), seconds, call, communicator, peer, tag, bytes
 *
 * The loop is what is between MPI_Pcontrol(1) and MPI_Pcontrol(0). Calls come from one thread at a time, as
 * MPI_THREAD_SERIALIZED asks of the program. */
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOBODY = -1 };

static FILE *file;
static double start;
static int in_loop;

static void open_file(void) {
    const char *directory = getenv("COUNTER_DIR");
    char path[4096];
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s/rank.%d", directory ? directory : ".", rank);
    file = fopen(path, "w");
    if (!file) {
        perror(path);
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    start = PMPI_Wtime();
}

static void note(const char *call, MPI_Comm comm, int peer, int tag, int count, MPI_Datatype type) {
    char name[MPI_MAX_OBJECT_NAME] = "";
    int length = 0, size = 0;
    if (comm != MPI_COMM_NULL) {
        PMPI_Comm_get_name(comm, name, &length);
    }
    for (char *c = name; *c; c++) {
        *c = *c == ' ' ? '_' : *c;
    }
    if (count > 0) {
        PMPI_Type_size(type, &size);
    }
    fprintf(file, "%d %.6f %s %s %d %d %lld\n", in_loop, PMPI_Wtime() - start, call, name[0] ? name : "-", peer, tag,
            (long long)count * size);
}

/* ---- where it begins and ends ------------------------------------------------------------------- */

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    int code = PMPI_Init_thread(argc, argv, required, provided);
    if (code == MPI_SUCCESS) {
        open_file();
    }
    return code;
}

int MPI_Pcontrol(const int level, ...) {
    in_loop = level;
    return MPI_SUCCESS;
}

/* The file's last line, by which a reader knows that it is whole. */
int MPI_Finalize(void) {
    fprintf(file, "end\n");
    if (fclose(file) != 0) {
        perror("the counter's file");
        PMPI_Abort(MPI_COMM_WORLD, 1);
    }
    return PMPI_Finalize();
}

/* ---- messages ----------------------------------------------------------------------------------- */

int MPI_Send(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm) {
    note("Send", comm, peer, tag, count, type);
    return PMPI_Send(data, count, type, peer, tag, comm);
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request) {
    note("Isend", comm, peer, tag, count, type);
    return PMPI_Isend(data, count, type, peer, tag, comm, request);
}

int MPI_Issend(const void *data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request *request) {
    note("Issend", comm, peer, tag, count, type);
    return PMPI_Issend(data, count, type, peer, tag, comm, request);
}

/* ---- collectives -------------------------------------------------------------------------------- */

int MPI_Ibarrier(MPI_Comm comm, MPI_Request *request) {
    note("Ibarrier", comm, NOBODY, NOBODY, 0, MPI_BYTE);
    return PMPI_Ibarrier(comm, request);
}

int MPI_Bcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm) {
    note("Bcast", comm, root, NOBODY, count, type);
    return PMPI_Bcast(data, count, type, root, comm);
}

int MPI_Ibcast(void *data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request *request) {
    note("Ibcast", comm, root, NOBODY, count, type);
    return PMPI_Ibcast(data, count, type, root, comm, request);
}

int MPI_Ireduce(const void *data, void *out, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
                MPI_Request *request) {
    note("Ireduce", comm, root, NOBODY, count, type);
    return PMPI_Ireduce(data, out, count, type, op, root, comm, request);
}

int MPI_Iallreduce(const void *data, void *out, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request *request) {
    note("Iallreduce", comm, NOBODY, NOBODY, count, type);
    return PMPI_Iallreduce(data, out, count, type, op, comm, request);
}

int MPI_Iallgather(const void *data, int count, MPI_Datatype type, void *out, int out_count, MPI_Datatype out_type,
                   MPI_Comm comm, MPI_Request *request) {
    note("Iallgather", comm, NOBODY, NOBODY, count, type);
    return PMPI_Iallgather(data, count, type, out, out_count, out_type, comm, request);
}

int MPI_Ialltoall(const void *data, int count, MPI_Datatype type, void *out, int out_count, MPI_Datatype out_type,
                  MPI_Comm comm, MPI_Request *request) {
    note("Ialltoall", comm, NOBODY, NOBODY, count, type);
    return PMPI_Ialltoall(data, count, type, out, out_count, out_type, comm, request);
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *out) {
    note("Comm_dup", comm, NOBODY, NOBODY, 0, MPI_BYTE);
    return PMPI_Comm_dup(comm, out);
}

int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm *out) {
    note("Comm_split", comm, NOBODY, NOBODY, 0, MPI_BYTE);
    return PMPI_Comm_split(comm, color, key, out);
}

int MPI_Comm_split_type(MPI_Comm comm, int kind, int key, MPI_Info info, MPI_Comm *out) {
    note("Comm_split_type", comm, NOBODY, NOBODY, 0, MPI_BYTE);
    return PMPI_Comm_split_type(comm, kind, key, info, out);
}

int MPI_Comm_free(MPI_Comm *comm) {
    note("Comm_free", *comm, NOBODY, NOBODY, 0, MPI_BYTE);
    return PMPI_Comm_free(comm);
}
