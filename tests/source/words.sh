#!/usr/bin/env bash
# Words and phrases that were given up, in comments, messages and documents, each with what to write instead. A phrase is
# found in one line, in any case.
cd "$(dirname "$0")/../.." || exit 1

found=0
while IFS='|' read -r phrase instead; do
    lines=$(grep -rniF --include='*.c' --include='*.h' --include='*.md' -e "$phrase" src cli include docs README.md)
    if [ -n "$lines" ]; then
        printf 'instead of "%s" write %s:\n%s\n' "$phrase" "$instead" "$lines" >&2
        found=1
    fi
done <<'END'
what it comes to|the result, the total or the sum
hears of|is told, watches or receives
stands once|is written in one place
says once|is defined in one place
is the business of|is left to, or is up to
come of themselves|need no special case, or follow
b < stages ? stages|car_bundle_of_stage
car_cut_|car_snapshot_: a cut is the boundary between two stages
grad_slot|grad_buffer: a slot is the unit of the clock
graph_slot|graph_grad_buffer
CAR_PHASE|CAR_SUBSLOT: a phase is how far a worker is
task->worker|task->micro_batch, or car_plan_worker of it
task.worker|task.micro_batch, or car_plan_worker of it
pace_window|pace_lead: a window is what tasks are generated for
script_note|script_fact: a note is a small message
piece_end|stretch_end: a piece is a part of a sum
plus a window|plus a lead
plus the window|plus the lead
END
exit $found
