"""Many workers on described clusters: the step time that `carousel plan --cluster` predicts, compared with targets and with
SimGrid's SMPI, which runs the same tables."""

import os

from draw import DASHES, figure
from workers import HERE, WorkerError
from render import page, table
from runs import plan, run_program
from simgrid import smpi
from simgrid.schedule import Disturbance, ReplayError
from store import say, shown_command

QUESTION = "Does the cycle keep up with dp when there are many workers, and does SimGrid agree on the time of a step?"
RULES = ("dp", "cdp-v1", "cdp-v2")
CLUSTERS = ("ethernet", "eight-a-node")
BEFORE = "before"
SLACK, SLOTS = "cdp-v2, slack", 8  # fresh weights have 16 slots to arrive
WHOLE = 10**15  # bytes of a piece: so large that no sum is cut
MOST_OVER_COMPUTE = 1.05
MOST_OVER_DP = {"replica": 1.0, "zero": 1.05}
MOST_APART = 0.05  # largest deviation of the plan from SMPI

# (cluster, model, samples per micro-batch, placement, numbers of workers): the figure's contents, in order.
CURVES = (
    ("ethernet", "gpt2", 16, "replica", (16, 64, 256, 1024)),
    ("eight-a-node", "gpt2", 8, "replica", (16, 64, 256, 1024)),
    ("eight-a-node", "gpt2-medium", 4, "zero", (16, 64, 256)),
)
# The same for numbers of workers with a target, which are measured first.
JUDGED = (
    ("ethernet", "gpt2", 16, "replica", (64, 256)),
    ("eight-a-node", "gpt2-medium", 4, "zero", (16, 64)),
    ("eight-a-node", "gpt3-175b", 1, "zero", (64,)),
    ("eight-a-node", "mt-nlg-530b", 1, "zero", (64,)),
    ("eight-a-node", "gpt2", 8, "replica", (1024,)),
    ("eight-a-node", "gpt3-6.7b", 1, "replica", (1024,)),
)
WHO = {"replica": ("dp", "cdp-v1", SLACK), "zero": RULES}
# What SMPI replays: a network that is fast compared with computing, and one that is slow. Not dp over zero.
REPLAYED = {"eight-a-node": ("gpt2-medium", 4), "ethernet": ("gpt2", 16)}
REPLAYED_WORKERS = (16, 64, 256)
# Also replayed, with options that the planner does not choose: a case where most of a step is waiting for messages, and
# as many workers as fit here.
ALSO_REPLAYED = (
    ("ethernet", "gpt2", 16, "zero", 64, ("cdp-v1", "cdp-v2"), {"zero-ahead": 2}),
    ("eight-a-node", "gpt2", 8, "replica", 1024, ("cdp-v1",), {}),
)
# The same over replica, with task times that vary.
DISTURBED_WORKERS, DISTURBED_STEPS = (16, 64), 12
DISTURBANCES = {"undisturbed": {}, "times of tasks ±20 %": {"jitter": 0.2}, "a device pauses for 1 s": {"pause": 1.0, "step": 5}}
# All plans, for results/scale-plans.md.
MODELS = {"gpt2": 8, "gpt3-6.7b": 1, "gpt3-175b": 1, "mt-nlg-530b": 1}
LISTED_WORKERS = (64, 256)
LISTED_PLACEMENTS = ("replica", "zero", "pipeline")
KEPT = ("devices", "weights_device_bytes", "gradients_device_bytes", "optimizer_device_bytes",
        "activations_device_peak_bytes", "activations_peak_bytes", "bytes_sent_device", "burst")  # fmt: skip
TIMED = ("compute_s", "step_s", "exposed_s", "memory_device_bytes", "fits")


def cluster_file(name):
    return os.path.join(HERE, "simgrid", f"{name}.json")


# ---- measuring --------------------------------------------------------------------------------------------


def rounded(value):
    """Rounds to six digits, more than a prediction is worth."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def settings_of(cluster, model, batch, placement, workers, who):
    """The options of a plan. `who` is a rule, with or without slack. If it ends in BEFORE, sums are not cut into pieces and
    zero has one copy of a version, as in earlier plans."""
    rule = who.removesuffix(f" {BEFORE}")
    settings = {"model": model, "batch": batch, "workers": workers, "placement": placement,
                "rule": "cdp-v2" if rule == SLACK else rule, "cluster": cluster_file(cluster)}  # fmt: skip
    if rule == SLACK:
        settings["freshness-slack"] = SLOTS
    if who.endswith(BEFORE):
        settings["piece-bytes"] = WHOLE
        settings.update({"zero-copies": 1} if placement == "zero" else {})
    return settings


def key_of(cluster, model, placement, workers, who):
    return "-".join([cluster, model, placement, str(workers), *who.replace(",", "").split()])


def timed(settings):
    answer = plan(settings)
    kept = ("step_s", "compute_s", "step_without_network_s", "exposed_s", "memory_device_bytes")
    return {**{key: rounded(answer["timing"][key]) for key in kept}, "piece_bytes": answer["piece_bytes"]}


def curve_cases(long):
    """(cluster, model, batch, placement, workers, who), those with a target first."""
    for cluster, model, batch, placement, numbers in JUDGED:
        for workers in numbers:
            if long or workers <= 64:
                for who in WHO[placement]:
                    yield cluster, model, batch, placement, workers, who
    for cluster, model, batch, placement, numbers in CURVES if long else ():
        for workers in numbers:
            for who in (*WHO[placement], f"cdp-v1 {BEFORE}", f"cdp-v2 {BEFORE}"):
                yield cluster, model, batch, placement, workers, who


def printed_table(settings, asked, steps):
    # Without a cluster, repeat what was chosen for it.
    chosen = {"piece-bytes": asked["piece_bytes"], **({"zero-ahead": asked["zero_ahead"]} if asked["zero_ahead"] else {})}
    dumped = {key: value for key, value in settings.items() if key != "cluster"}
    return run_program("plan", {**dumped, **chosen, "dump": True, "edges": True, "steps": steps})


def replay(settings, program):
    asked = plan(settings)
    try:
        found = smpi.replay(printed_table(settings, asked, asked["timing"]["steps"]), asked, program)
    except ReplayError as error:
        raise WorkerError(str(error)) from error
    timing = asked["timing"]
    return {"predicted_s": timing["step_s"], "compute_s": timing["compute_s"], "smpi_s": found["step_s"],
            "ratio": rounded(found["step_s"] / timing["step_s"]), "ranks": found["ranks"],
            "messages": found["messages"], "simgrid": smpi.version()}  # fmt: skip


def disturbed(numbers):
    """(cluster, workers, who)."""
    return [(cluster, workers, who) for cluster in CLUSTERS for workers in sorted(numbers) for who in WHO["replica"]]


def disturbed_key(cluster, workers, who):
    return "disturbed-" + key_of(cluster, REPLAYED[cluster][0], "replica", workers, who)


def disturb(settings, program):
    """Seconds of a step by SMPI, undisturbed and disturbed."""
    asked, found = plan(settings), {}
    printed = printed_table(settings, asked, DISTURBED_STEPS)
    for name, how in DISTURBANCES.items():
        try:
            found[name] = smpi.replay(printed, asked, program, None, Disturbance(**how), DISTURBED_STEPS)["step_s"]
        except ReplayError as error:
            raise WorkerError(str(error)) from error
    return {"steps": found, "compute_s": asked["timing"]["compute_s"], "simgrid": smpi.version()}


def replays(numbers, placements):
    """(cluster, workers, placement, rule)."""
    for workers in numbers:
        for placement in placements:
            for cluster in CLUSTERS:
                for rule in RULES:
                    if (placement, rule) != ("zero", "dp"):
                        yield cluster, workers, placement, rule


def listed(model, workers):
    """Plans of all rules and placements for a model and a number of workers."""
    found = []
    for placement in LISTED_PLACEMENTS:
        for rule in RULES:
            settings = settings_of("eight-a-node", model, MODELS[model], placement, workers, rule)
            answer = plan({**settings, "optimizer": "adamw"})
            row = {"rule": rule, "placement": placement}
            row.update({key: rounded(answer["predictions"][key]) for key in KEPT})
            row.update({key: rounded(answer["timing"][key]) for key in TIMED})
            found.append(row)
    return {"plans": found}


def shown(settings):
    return shown_command("plan", {**settings, "cluster": f"bench/simgrid/{os.path.basename(settings['cluster'])}"})


def measure_curves(store, options):
    for case in curve_cases(options.long):
        cluster, model, _, placement, workers, who = case
        key, settings = key_of(cluster, model, placement, workers, who), settings_of(*case)
        if options.only in key:
            store.once(key, shown(settings), lambda s=settings: timed(s))


def also_key(cluster, model, placement, workers, rule, more):
    return f"smpi-{key_of(cluster, model, placement, workers, rule)}" + "".join(f"-{k}-{v}" for k, v in more.items())


def measure_also(store, options):
    program = smpi.compile_replay(store.work) if not smpi.missing() else None
    for cluster, model, batch, placement, workers, rules, more in ALSO_REPLAYED if program else ():
        for rule in rules:
            key = also_key(cluster, model, placement, workers, rule, more)
            settings = {**settings_of(cluster, model, batch, placement, workers, rule), **more}
            if options.only in key:
                store.once(key, shown(settings), lambda s=settings: replay(s, program))


def measure_replays(store, options, numbers, placements):
    missing = smpi.missing()
    if missing:
        say(f"* SimGrid is MISSING ({', '.join(missing)}): no tables are replayed. Debian: libsimgrid-dev.")
        return
    program = smpi.compile_replay(store.work)
    for cluster, workers, placement, rule in replays(numbers, placements):
        key = f"smpi-{cluster}-{placement}-{rule}-{workers}"
        settings = settings_of(cluster, *REPLAYED[cluster], placement, workers, rule)
        if options.only in key:
            store.once(key, shown(settings), lambda s=settings: replay(s, program))
    for cluster, workers, who in disturbed(set(numbers) & set(DISTURBED_WORKERS) if "replica" in placements else ()):
        key, settings = disturbed_key(cluster, workers, who), settings_of(cluster, *REPLAYED[cluster], "replica", workers, who)
        if options.only in key:
            store.once(key, shown(settings), lambda s=settings: disturb(s, program))


def measure_listed(store, options):
    for workers in LISTED_WORKERS:
        for model in MODELS:
            key = f"plans-{model}-{workers}"
            settings = {"model": model, "batch": MODELS[model], "workers": workers, "optimizer": "adamw",
                        "cluster": cluster_file("eight-a-node")}  # fmt: skip
            if options.only in key:
                store.once(key, shown(settings) + " --rule ... --placement ...",
                           lambda m=model, n=workers: listed(m, n))  # fmt: skip


def measure(store, options):
    measure_curves(store, options)
    if not options.long:
        measure_replays(store, options, REPLAYED_WORKERS[:1], ("replica",))
        return
    measure_replays(store, options, REPLAYED_WORKERS[:-1], ("replica", "zero"))
    measure_listed(store, options)
    measure_replays(store, options, REPLAYED_WORKERS[-1:], ("replica", "zero"))
    measure_also(store, options)


# ---- showing ----------------------------------------------------------------------------------------------


def size(value):
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            return f"{value:.3g} {unit}"
        value /= 1000
    return ""


def seconds(value):
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


def over_compute(run):
    return run["step_s"] / run["compute_s"]


def verdict(value, most):
    return "PASS" if value <= most else "MISS"


def judged_rows(raw):
    for cluster, model, _, placement, numbers in JUDGED:
        for workers in numbers:
            found = {who: raw["runs"].get(key_of(cluster, model, placement, workers, who)) for who in WHO[placement]}
            for who, run in found.items():
                if not run or not found["dp"] or who == "dp":
                    continue
                dp, mine = over_compute(found["dp"]), over_compute(run)
                absolute = (placement, who) == ("replica", "cdp-v1")
                factor = MOST_OVER_DP[placement]
                most = MOST_OVER_COMPUTE if absolute else factor * dp
                target = f"≤ {most:.3f}" + ("" if absolute else " (dp's)" if factor == 1 else f" ({factor} × dp's)")
                name = f"cdp-v2, slack {SLOTS}" if who == SLACK else who
                yield [placement, model, cluster, workers, name, f"{mine:.3f}", f"{dp:.3f}", target, verdict(mine, most)]


def smpi_row(cluster, model, placement, workers, found):
    """Of {rule: run}."""
    there = [run for run in found.values() if run]
    apart = max(abs(run["ratio"] - 1) for run in there)
    cells = [f"{run['predicted_s'] / run['compute_s']:.3f}, {run['smpi_s'] / run['compute_s']:.3f}" if run else "–"
             for run in found.values()]  # fmt: skip
    return [cluster, model, placement, workers, *cells, f"{100 * apart:.1f} %", verdict(apart, MOST_APART)]


def smpi_rows(raw):
    """A row for each cluster, placement and number of workers."""
    runs = raw["runs"]
    for cluster in CLUSTERS:
        for placement in ("replica", "zero"):
            for workers in REPLAYED_WORKERS:
                found = {rule: runs.get(f"smpi-{cluster}-{placement}-{rule}-{workers}") for rule in RULES}
                if any(found.values()):
                    yield smpi_row(cluster, REPLAYED[cluster][0], placement, workers, found)
    for cluster, model, _, placement, workers, _, more in ALSO_REPLAYED:
        found = {rule: runs.get(also_key(cluster, model, placement, workers, rule, more)) for rule in RULES}
        if any(found.values()):
            shown_placement = placement + "".join(f", L = {ahead}" for name, ahead in more.items() if name == "zero-ahead")
            yield smpi_row(cluster, model, shown_placement, workers, found)


def growths(run):
    """Seconds that each disturbance adds to a step."""
    return [run["steps"][how] - run["steps"]["undisturbed"] for how in list(DISTURBANCES)[1:]]


def disturbed_verdict(run, dp):
    return verdict(max(mine - most for mine, most in zip(growths(run), growths(dp))), 0) if dp and dp is not run else ""


def disturbed_rows(raw):
    for cluster, workers, who in disturbed(DISTURBED_WORKERS):
        run, dp = (raw["runs"].get(disturbed_key(cluster, workers, rule)) for rule in (who, "dp"))
        if run:
            name = f"cdp-v2, slack {SLOTS}" if who == SLACK else who
            yield [cluster, REPLAYED[cluster][0], workers, name, seconds(run["steps"]["undisturbed"]),
                   *(f"{1000 * more:.1f} ms" for more in growths(run)), disturbed_verdict(run, dp)]  # fmt: skip


def plan_rows(raw, workers):
    for model in MODELS:
        for row in raw["runs"].get(f"plans-{model}-{workers}", {}).get("plans", ()):
            states = [size(row[f"{what}_device_bytes"]) for what in ("weights", "gradients", "optimizer")]
            yield [model, row["placement"], row["rule"], row["devices"], *states,
                   size(row["activations_device_peak_bytes"]), size(row["activations_peak_bytes"]),
                   f"{size(row['memory_device_bytes'])}{'' if row['fits'] else ' !'}", size(row["bytes_sent_device"]),
                   f"{row['burst']:.1f}", seconds(row["step_s"]), f"{over_compute(row):.2f}",
                   f"{100 * row['exposed_s'] / row['step_s']:.0f} %"]  # fmt: skip


def tables(raw):
    found = {}
    if rows := list(judged_rows(raw)):
        found["targets"] = table(["placement", "model", "cluster", "N", "rule", "step over compute", "dp's", "target", ""],
                                 rows)  # fmt: skip
    if rows := list(smpi_rows(raw)):
        found["smpi"] = table(["cluster", "model", "placement", "N", *(f"{rule}: plan, SMPI" for rule in RULES),
                               "apart at most", "within 5 %"], rows)  # fmt: skip
    if rows := list(disturbed_rows(raw)):
        longer = [f"{how}: longer by" for how in list(DISTURBANCES)[1:]]
        found["disturbed"] = table(["cluster", "model", "N", "rule", "step", *longer, "at most dp's"], rows)
    return found


def listing(raw):
    """All plans, as a separate page."""
    header = ["model", "placement", "rule", "devices", "weights", "sums", "optimizer", "activations", "of all", "memory",
              "sent", "burst", "step", "over compute", "exposed"]  # fmt: skip
    about = ("fp32, AdamW, nothing recomputed. Memory is of the device that needs most, a ! says that it does not fit; *of all* is "
             "the peak of activations summed over devices; *sent* by the busiest device in a step; *burst* the busiest slot's "
             "bytes over the mean; *over compute* the step over what one worker computes.")  # fmt: skip
    found = [(f"{workers} workers", table(header, rows)) for workers in LISTED_WORKERS if (rows := list(plan_rows(raw, workers)))]
    return page(raw, "Plans of large models on eight-a-node", about, *found)


def files(raw):
    return {"scale-plans.md": listing(raw)} if any(key.startswith("plans-") for key in raw["runs"]) else {}


def panel(raw, cluster, model, placement, numbers):
    """Step time over computing time against workers, for dp and the cycle, before and after."""
    marks = []
    drawn = [("dp", 5, ""), *((who, n, "") for n, who in enumerate(WHO[placement][1:])),
             *((f"{rule} {BEFORE}", n, DASHES[1]) for n, rule in enumerate(RULES[1:]))]  # fmt: skip
    for who, colour, dash in drawn:
        points = [(place, over_compute(run)) for place, workers in enumerate(numbers)
                  if (run := raw["runs"].get(key_of(cluster, model, placement, workers, who)))]  # fmt: skip
        if points:
            name = who.replace(", slack", f" (replica: slack {SLOTS})").replace(f" {BEFORE}", f", {BEFORE}")
            marks.append({"kind": "line", "points": points, "name": name, "colour": colour, "dash": dash, "width": 2})
    return {"title": f"{placement}, {model}, {cluster}", "x": "workers", "y": "step over compute", "marks": marks,
            "x_range": (0, len(numbers) - 1), "x_ticks": list(range(len(numbers))), "x_names": list(map(str, numbers)),
            "log": True}  # fmt: skip


def figures(raw):
    panels = [panel(raw, cluster, model, placement, numbers) for cluster, model, _, placement, numbers in CURVES]
    panels = [p for p in panels if p["marks"]]
    if panels:
        panels[0]["legend"] = "left"
    title = "Predicted step over what one worker computes, dp beside the cycle, before and after"
    return {"scale.svg": figure(panels, columns=3, width=1260, height=360, title=title)} if panels else {}
