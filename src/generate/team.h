/* A team of threads that shares work in parts, many times per millisecond. */
#ifndef CAR_GENERATE_TEAM_H
#define CAR_GENERATE_TEAM_H

#include "base/base.h"

typedef struct car_team car_team;
typedef void (*car_team_work)(void *user, int piece);

/* With one thread there are no helpers, and the caller does everything. */
car_status car_team_create(car_context *context, int threads, car_team **out);
void car_team_destroy(car_team *team);
int car_team_threads(const car_team *team);
/* Calls `work` once for each part 0 .. count - 1, on whichever thread is free. Returns when all are done. */
void car_team_run(car_team *team, int count, car_team_work work, void *user);

#endif
