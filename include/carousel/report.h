/* Reports: what is known of plans and runs, as figures and pages. */
#ifndef CAROUSEL_REPORT_H
#define CAROUSEL_REPORT_H

#include "carousel/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A figure as SVG: data parallelism on the left, the plan's cyclic rule on the right; above, who computes what in
 * which slot; below, the activation bytes of every worker and their sum over the same two steps, from the partition's
 * curve with workers aligned (dp) and evenly spaced (the cycle). `title` is what the figure says it is of.
 *
 * CAR_ERROR_ARGUMENT if the rule is not cyclic, or if there are more than 32 workers or 128 stages, which nobody
 * could read. To be released with car_plan_release_text. */
car_status car_report_plan_svg(const car_plan *plan, const char *title, char **out);

#ifdef __cplusplus
}
#endif
#endif
