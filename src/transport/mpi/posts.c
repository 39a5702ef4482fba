/* Posts over MPI (see transport/posts.c). Each kind has its own tag. Only car_mpi_drain_posts and car_mpi_close_posts
 * wait. */
#include <string.h>

#include "transport/mpi/mpi_internal.h"

static const int tags[CAR_POST_KINDS] = {[CAR_POST_STATUS] = 2, [CAR_POST_BEAT] = 3, [CAR_POST_NOTE] = 16};

static void listen(car_mpi *mpi, int kind) {
    MPI_Irecv(mpi->in[kind], CAR_STATUS_BYTES, MPI_BYTE, MPI_ANY_SOURCE, tags[kind], mpi->control,
              &mpi->in_requests[kind]);
}

car_status car_mpi_create_posts(car_mpi *mpi) {
    size_t size = (size_t)mpi->base.size;
    car_status status = CAR_OK;
    CAR_TRY(car_context_allocate(mpi->base.context, size, sizeof *mpi->sent, &mpi->sent));
    CAR_TRY(car_context_allocate(mpi->base.context, size, sizeof *mpi->due, &mpi->due));
done:
    return status;
}

void car_mpi_open_posts(car_mpi *mpi) {
    for (int kind = 0; mpi->base.size > 1 && !mpi->listens && kind < CAR_POST_KINDS; kind++) {
        listen(mpi, kind);
    }
    mpi->listens = mpi->base.size > 1;
}

static bool hear(car_mpi *mpi, int kind) {
    int arrived = 0, bytes = 0;
    bool any = false;
    MPI_Status status;
    while (MPI_Test(&mpi->in_requests[kind], &arrived, &status) == MPI_SUCCESS && arrived) {
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        car_transport_take(&mpi->base, (car_post_kind)kind, status.MPI_SOURCE, mpi->in[kind], (size_t)bytes);
        mpi->heard++;
        listen(mpi, kind);
        any = true;
    }
    return any;
}

/* ---- sending --------------------------------------------------------------------------------- */

car_status car_mpi_post_to(car_transport *transport, car_post_kind kind, int to, const void *data, size_t bytes) {
    car_mpi *mpi = car_mpi_of(transport);
    car_mpi_post *new = NULL, **place = &mpi->posts;
    car_status status = car_context_allocate(transport->context, 1, sizeof *new, &new);
    if (status != CAR_OK) {
        return status;
    }
    *new = (car_mpi_post){.kind = kind, .to = to, .bytes = (int)bytes, .request = MPI_REQUEST_NULL};
    memcpy(new->data, data, bytes);
    pthread_mutex_lock(&mpi->lock);
    while (*place) {
        place = &(*place)->next;
    }
    *place = new;
    pthread_cond_signal(&mpi->changed);
    pthread_mutex_unlock(&mpi->lock);
    return CAR_OK;
}

/* True if the last status to a rank is still leaving. Then that rank does not listen, and the watchdogs will notice. */
static bool is_busy(const car_mpi *mpi, int to) {
    const car_mpi_post *post = mpi->leaving;
    while (post && (post->kind != CAR_POST_STATUS || post->to != to)) {
        post = post->next;
    }
    return post != NULL;
}

static void hand_over(car_mpi *mpi) {
    pthread_mutex_lock(&mpi->lock);
    car_mpi_post *post = mpi->posts;
    mpi->posts = NULL;
    pthread_mutex_unlock(&mpi->lock);
    while (post) {
        car_mpi_post *next = post->next;
        if (post->kind != CAR_POST_STATUS || !is_busy(mpi, post->to)) {
            MPI_Isend(post->data, post->bytes, MPI_BYTE, post->to, tags[post->kind], mpi->control, &post->request);
            mpi->base.traffic.statuses++;
            mpi->sent[post->to]++;
        }
        post->next = mpi->leaving;
        mpi->leaving = post;
        post = next;
    }
}

static void drop_sent(car_mpi *mpi) {
    for (car_mpi_post **place = &mpi->leaving; *place;) {
        car_mpi_post *post = *place;
        int sent = 0;
        if (MPI_Test(&post->request, &sent, MPI_STATUS_IGNORE) == MPI_SUCCESS && sent) {
            *place = post->next;
            car_context_release(mpi->base.context, post, 1, sizeof *post);
        } else {
            place = &post->next;
        }
    }
}

bool car_mpi_move_posts(car_mpi *mpi, bool in_loop) {
    bool noted = false;
    if (!mpi->base.events.watch) {
        return false;
    }
    if (mpi->listens) {
        hear(mpi, CAR_POST_STATUS);
        hear(mpi, CAR_POST_BEAT);
        noted = in_loop && hear(mpi, CAR_POST_NOTE);
        hand_over(mpi);
        drop_sent(mpi);
    }
    car_transport_tend(&mpi->base);
    return noted;
}

car_status car_mpi_drain_posts(car_mpi *mpi) {
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t expected = 0;
    car_status status = CAR_OK;
    car_transport_forget(&mpi->base); /* no callbacks, so nothing more is posted */
    if (car_mpi_has_given_up(mpi)) {
        return CAR_ERROR_IO;
    }
    /* Uses another communicator than the blocking calls: a rank that makes one of those instead must not be matched
     * with this. */
    int code = MPI_Ialltoall(mpi->sent, 1, MPI_INT, mpi->due, 1, MPI_INT, mpi->world, &request);
    CAR_TRY(car_mpi_await(mpi, code, &request, "MPI_Ialltoall"));
    for (int r = 0; r < mpi->base.size; r++) {
        expected += mpi->due[r];
    }
    while (mpi->listens && (mpi->heard < expected || mpi->leaving)) {
        for (int kind = 0; kind < CAR_POST_KINDS; kind++) {
            hear(mpi, kind);
        }
        drop_sent(mpi);
    }
done:
    return status;
}

void car_mpi_close_posts(car_mpi *mpi) {
    for (int kind = 0; kind < CAR_POST_KINDS; kind++) {
        if (mpi->in_requests[kind] != MPI_REQUEST_NULL) {
            MPI_Cancel(&mpi->in_requests[kind]);
            MPI_Wait(&mpi->in_requests[kind], MPI_STATUS_IGNORE);
        }
    }
    for (car_mpi_post *post = mpi->leaving; post; post = post->next) {
        if (post->request != MPI_REQUEST_NULL) {
            MPI_Request_free(&post->request); /* it is small, so it is in the library's buffers */
        }
    }
}

static void release(const car_mpi *mpi, car_mpi_post *post) {
    while (post) {
        car_mpi_post *next = post->next;
        car_context_release(mpi->base.context, post, 1, sizeof *post);
        post = next;
    }
}

void car_mpi_destroy_posts(car_mpi *mpi) {
    size_t size = (size_t)mpi->base.size;
    release(mpi, mpi->leaving);
    release(mpi, mpi->posts);
    car_context_release(mpi->base.context, mpi->sent, size, sizeof *mpi->sent);
    car_context_release(mpi->base.context, mpi->due, size, sizeof *mpi->due);
}
