/* Records of some steps of a run, and each rank's memory, traffic and waiting. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "run/internal.h"

/* ---- records ------------------------------------------------------------------------------------- */

car_status car_member_open_recorder(car_member *member) {
    const car_run *run = member->run;
    const car_recorder_config config = {
        .threads = run->training.threads, .messages = car_run_has_ranks(run), .categories = run->options.record_memory};
    return run->options.record ? car_recorder_create(run->context, member->arena, &config, &member->recorder) : CAR_OK;
}

typedef struct stretch {
    int64_t first, end;
} stretch;

static car_status record_member(car_member *member, void *user) {
    const stretch *steps = user;
    if (!member->recorder) {
        return CAR_OK;
    }
    car_recorder_set_steps(member->recorder, steps->first, steps->end);
    return car_run_has_ranks(member->run) ? car_recorder_align(member->recorder, member->transport) : CAR_OK;
}

car_status car_run_record(car_run *run, int64_t first, int64_t end) {
    CAR_ENTER(run, run->context);
    return car_run_together(run, record_member, &(stretch){first, end});
}

static car_status gather_records(car_member *member, void *user) {
    (void)user;
    bool several = member->recorder && car_run_has_ranks(member->run);
    return several ? car_recorder_gather(member->recorder, member->transport) : CAR_OK;
}

car_status car_run_gather_record(car_run *run, car_recorder **out) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, out);
    car_status status = car_run_together(run, gather_records, NULL);
    *out = status == CAR_OK && car_run_is_first(run) ? run->members[0].recorder : NULL;
    if (*out) {
        car_recorder_limit_steps(*out, car_run_steps(run));
    }
    return status;
}

/* ---- accounts ------------------------------------------------------------------------------------ */

double car_run_resident(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2) {
        resident = 0;
    }
    if (file) {
        fclose(file);
    }
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

void car_member_note_peaks(car_member *member) {
    bool noted = car_member_is_first(member) && member->peaks[CAR_MEMORY_WEIGHTS] > 0;
    for (int c = 0; c < CAR_MEMORY_CATEGORIES && !noted; c++) {
        member->peaks[c] = (double)car_arena_peak(member->arena, (car_memory)c);
    }
}

static car_rank_account account_of(const car_member *member) {
    struct rusage usage;
    bool noted = member->peaks[CAR_MEMORY_WEIGHTS] > 0;
    car_rank_account a = {.activations_mean = car_arena_mean(member->arena, CAR_MEMORY_ACTIVATIONS),
                          .extent = (double)car_arena_extent(member->arena),
                          .rss_end = car_run_resident(),
                          .data_waited = member->feeder ? car_feeder_waited(member->feeder) : 0,
                          .traffic = car_rank_get_traffic(member->rank),
                          .waiting = car_rank_time(member->rank).waiting,
                          .tasks = car_rank_time(member->rank).tasks};
    for (int c = 0; c < CAR_MEMORY_CATEGORIES; c++) {
        a.memory[c] = noted ? member->peaks[c] : (double)car_arena_peak(member->arena, (car_memory)c);
    }
    getrusage(RUSAGE_SELF, &usage);
    a.rss = (double)usage.ru_maxrss * 1024;
    return a;
}

static car_status account_member(car_member *member, void *user) {
    car_run *run = member->run;
    car_rank_account own = account_of(member);
    (void)user;
    if (run->launched) {
        return car_transport_all_gather(member->transport, &own, sizeof own, run->accounts);
    }
    run->accounts[car_transport_rank(member->transport)] = own;
    return CAR_OK;
}

car_status car_run_account(car_run *run, const car_rank_account **out) {
    CAR_ENTER(run, run->context);
    CAR_REQUIRE(run->context, out);
    car_status status = CAR_OK;
    *out = NULL;
    if (!run->accounts) {
        run->account_count = car_run_ranks(run);
        CAR_TRY(car_context_allocate(run->context, (size_t)run->account_count, sizeof *run->accounts, &run->accounts));
    }
    CAR_TRY(car_run_together(run, account_member, NULL));
    *out = run->accounts;
done:
    return status;
}
