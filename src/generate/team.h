/* Threads that share the pieces of a piece of work, many times a millisecond. */
#ifndef CAR_GENERATE_TEAM_H
#define CAR_GENERATE_TEAM_H

#include "base/base.h"

typedef struct car_team car_team;
typedef void (*car_team_work)(void *user, int piece);

/* With one thread there are no helpers, and the caller does all. */
car_status car_team_create(car_context *context, int threads, car_team **out);
void car_team_destroy(car_team *team);
int car_team_threads(const car_team *team);
/* Calls `work` for pieces 0 to count - 1, each once, by whoever is free; returns when all are done. */
void car_team_run(car_team *team, int count, car_team_work work, void *user);

#endif
