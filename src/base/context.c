/* The context: allocator, logger, and the message of the first failure, of all threads or of one thread with a
 * scope. */
#include "carousel/context.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { LINE_CAPACITY = 1024, BLOCK_ALIGNMENT = 64 };

typedef struct registered {
    const char *family, *name;
    const void *thing;
    struct registered *next;
} registered;

struct car_context {
    car_context_config config;
    pthread_mutex_t lock;    /* guards everything below */
    car_error_scope *scopes; /* of threads that keep their failures separate */
    registered *registered;  /* a list, in the order of registration */
    char error[CAR_ERROR_BYTES];
};

static void *default_allocate(void *user, size_t bytes) {
    (void)user;
    void *block = NULL;
    return posix_memalign(&block, BLOCK_ALIGNMENT, bytes) == 0 ? block : NULL;
}

static void default_release(void *user, void *block, size_t bytes) {
    (void)user;
    (void)bytes;
    free(block);
}

const char *car_status_text(car_status status) {
    switch (status) {
#define STATUS_CASE(code, text) \
    case code:                  \
        return text;
        CAR_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

car_context_config car_context_config_default(void) {
    return (car_context_config){
        .allocator = {.allocate = default_allocate, .release = default_release},
        .log_level = CAR_LOG_INFO,
    };
}

car_status car_context_create(const car_context_config *config, car_context **out) {
    CAR_REQUIRE(NULL, out);
    *out = NULL;
    car_context_config chosen = config ? *config : car_context_config_default();
    if (!chosen.allocator.allocate || !chosen.allocator.release) {
        chosen.allocator = car_context_config_default().allocator;
    }
    car_context *context = chosen.allocator.allocate(chosen.allocator.user, sizeof *context);
    if (!context) {
        return CAR_ERROR_MEMORY;
    }
    memset(context, 0, sizeof *context);
    context->config = chosen;
    if (pthread_mutex_init(&context->lock, NULL) != 0) {
        chosen.allocator.release(chosen.allocator.user, context, sizeof *context);
        return CAR_ERROR_MEMORY;
    }
    *out = context;
    return CAR_OK;
}

void car_context_destroy(car_context *context) {
    if (!context) {
        return;
    }
    while (context->registered) {
        registered *first = context->registered;
        context->registered = first->next;
        car_context_release(context, first, 1, sizeof *first);
    }
    pthread_mutex_destroy(&context->lock);
    car_allocator allocator = context->config.allocator;
    allocator.release(allocator.user, context, sizeof *context);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* The buffer for this thread's failures. Call with the lock held. */
static char *find_error(car_context *context) {
    for (car_error_scope *scope = context->scopes; scope; scope = scope->next) {
        if (pthread_equal(scope->thread, pthread_self())) {
            return scope->error;
        }
    }
    return context->error;
}

const char *car_context_error(const car_context *context) {
    if (!context) {
        return "";
    }
    car_context *own = (car_context *)context; /* writes only its lock */
    pthread_mutex_lock(&own->lock);
    const char *error = find_error(own);
    pthread_mutex_unlock(&own->lock);
    return error;
}

void car_context_clear_error(car_context *context) {
    if (!context) {
        return;
    }
    pthread_mutex_lock(&context->lock);
    find_error(context)[0] = '\0';
    pthread_mutex_unlock(&context->lock);
}

void car_context_open_scope(car_context *context, car_error_scope *scope) {
    scope->thread = pthread_self();
    scope->error[0] = '\0';
    pthread_mutex_lock(&context->lock);
    scope->next = context->scopes;
    context->scopes = scope;
    pthread_mutex_unlock(&context->lock);
}

void car_context_close_scope(car_context *context, car_error_scope *scope) {
    pthread_mutex_lock(&context->lock);
    car_error_scope **place = &context->scopes;
    while (*place != scope) {
        place = &(*place)->next;
    }
    *place = scope->next;
    pthread_mutex_unlock(&context->lock);
}

void car_context_publish_error(car_context *context) {
    pthread_mutex_lock(&context->lock);
    const char *own = find_error(context);
    if (own != context->error && context->error[0] == '\0') {
        memcpy(context->error, own, sizeof context->error);
    }
    pthread_mutex_unlock(&context->lock);
}

car_status car_context_fail(car_context *context, car_status status, const char *format, ...) {
    if (!context) {
        return status;
    }
    pthread_mutex_lock(&context->lock);
    /* When one cause makes many threads fail, the first message is the one that explains it. */
    char *error = find_error(context);
    if (error[0] == '\0') {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, CAR_ERROR_BYTES, format, arguments);
        va_end(arguments);
    }
    pthread_mutex_unlock(&context->lock);
    return status;
}

car_status car_callback_fail(car_context *context, const char *format, ...) {
    char message[CAR_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return car_context_fail(context, CAR_ERROR_CALLBACK, "%s", message);
}

void car_context_log(car_context *context, car_log_level level, const char *format, ...) {
    if (!context || !context->config.log || level > context->config.log_level) {
        return;
    }
    char line[LINE_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    context->config.log(context->config.log_user, level, line);
}

/* ---- memory for bookkeeping ------------------------------------------------------------------ */

car_status car_context_allocate(car_context *context, size_t count, size_t size, void *out_pointer) {
    void *block = NULL;
    size_t bytes = 0;
    memcpy(out_pointer, &block, sizeof block);
    if (count == 0 || size == 0) {
        return CAR_OK;
    }
    if (!__builtin_mul_overflow(count, size, &bytes)) {
        block = context->config.allocator.allocate(context->config.allocator.user, bytes);
    }
    if (!block) {
        return car_context_fail(context, CAR_ERROR_MEMORY, "out of memory: could not get %zu x %zu bytes", count, size);
    }
    memset(block, 0, bytes);
    memcpy(out_pointer, &block, sizeof block);
    return CAR_OK;
}

void car_context_release(car_context *context, void *block, size_t count, size_t size) {
    if (block) {
        context->config.allocator.release(context->config.allocator.user, block, count * size);
    }
}

car_status car_context_copy_text(car_context *context, const char *text, char **out) {
    size_t bytes = strlen(text) + 1;
    car_status status = car_context_allocate(context, bytes, 1, out);
    if (status == CAR_OK) {
        memcpy(*out, text, bytes);
    }
    return status;
}

void car_context_release_text(car_context *context, char *text) {
    if (text) {
        car_context_release(context, text, strlen(text) + 1, 1);
    }
}

car_status car_context_grow(car_context *context, void *array_pointer, int *capacity, int needed, size_t size) {
    if (needed <= *capacity) {
        return CAR_OK;
    }
    int larger = *capacity ? *capacity : 16;
    while (larger < needed) {
        larger *= 2;
    }
    void *old = NULL;
    void *block = NULL;
    memcpy(&old, array_pointer, sizeof old);
    car_status status = car_context_allocate(context, (size_t)larger, size, &block);
    if (status != CAR_OK) {
        return status;
    }
    if (old) {
        memcpy(block, old, (size_t)*capacity * size);
        car_context_release(context, old, (size_t)*capacity, size);
    }
    memcpy(array_pointer, &block, sizeof block);
    *capacity = larger;
    return CAR_OK;
}

/* ---- registered names ----------------------------------------------------------------------------- */

/* Call with the lock held. */
static registered *find_registered(const car_context *context, const char *family, const char *name) {
    registered *r = context->registered;
    while (r && (strcmp(r->family, family) != 0 || strcmp(r->name, name) != 0)) {
        r = r->next;
    }
    return r;
}

car_status car_context_register(car_context *context, const char *family, const char *name, const void *thing) {
    registered *new = NULL;
    car_status status = car_context_allocate(context, 1, sizeof *new, &new);
    if (status != CAR_OK) {
        return status;
    }
    *new = (registered){.family = family, .name = name, .thing = thing};
    pthread_mutex_lock(&context->lock);
    bool taken = find_registered(context, family, name) != NULL;
    registered **end = &context->registered;
    while (*end) {
        end = &(*end)->next;
    }
    *end = taken ? NULL : new;
    pthread_mutex_unlock(&context->lock);
    if (taken) {
        car_context_release(context, new, 1, sizeof *new);
        return car_context_fail(context, CAR_ERROR_ARGUMENT, "an %s named '%s' is already registered", family, name);
    }
    return CAR_OK;
}

const void *car_context_find_registered(car_context *context, const char *family, const char *name) {
    pthread_mutex_lock(&context->lock);
    const registered *r = find_registered(context, family, name);
    const void *thing = r ? r->thing : NULL;
    pthread_mutex_unlock(&context->lock);
    return thing;
}

const char *car_context_registered_name(car_context *context, const char *family, int index) {
    const char *name = NULL;
    pthread_mutex_lock(&context->lock);
    for (const registered *r = context->registered; r && !name; r = r->next) {
        if (strcmp(r->family, family) == 0 && index-- == 0) {
            name = r->name;
        }
    }
    pthread_mutex_unlock(&context->lock);
    return name;
}
