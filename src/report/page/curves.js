// Curves over the steps of whole runs: the loss and what else metrics.jsonl has, and the evaluations.

// ---- what can be shown ------------------------------------------------------------------------

// Speed between neighbouring points; `seconds` starts again from 0 where a run was resumed.
function speedsOf(run) {
    const { step, seconds } = run.metrics;
    const samples = run.workers * run.batch;
    return step.map((now, n) => {
        const time = n > 0 ? seconds[n] - seconds[n - 1] : 0;
        return time > 0 && isNumber(samples) ? ((now - step[n - 1]) * samples) / time : null;
    });
}

const curveKinds = {
    loss: { label: "loss", title: "Loss", get: (run) => run.metrics.loss },
    speed: { label: "samples/s", title: "Samples per second", get: speedsOf },
    lr: { label: "learning rate", title: "Learning rate", get: (run) => run.metrics.lr, smooth: false },
    norm: { label: "gradient norm", title: "Norm of the gradient", get: (run) => run.metrics.gradient_norm },
};

// Mean of the last `width` points that have a value.
function smoothed(values, width) {
    const kept = [];
    let sum = 0;
    return values.map((value) => {
        if (isNumber(value)) {
            kept.push(value);
            sum += value;
            if (kept.length > width) {
                sum -= kept.shift();
            }
        }
        return isNumber(value) ? sum / kept.length : null;
    });
}

// Only if time increases steadily; a resumed run has no such axis.
function hasSeconds(run) {
    const { seconds } = run.metrics;
    return seconds.every((value, n) => isNumber(value) && (n === 0 || value > seconds[n - 1]));
}

// ---- the loss and its neighbours --------------------------------------------------------------

const withAlpha = (colour, alpha) => `${colour}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;

function metricSpec(runs, state) {
    const kind = curveKinds[state.kind];
    const width = kind.smooth === false ? 1 : Math.round(state.smoothing);
    const series = [];
    const tables = runs.map((run) => {
        const x = state.axis === "seconds" ? run.metrics.seconds : run.metrics.step;
        const raw = kind.get(run);
        const lines = width > 1 ? [raw, smoothed(raw, width)] : [raw];
        lines.forEach((_, n) => series.push({
            run, label: run.name, show: !state.hidden.has(run), width: n === lines.length - 1 ? 2 : 1, dash: runDash(run),
            main: n === lines.length - 1, stroke: () => (n === lines.length - 1 ? runColour(run) : withAlpha(runColour(run), 0.3)),
        }));
        return [x, ...lines];
    });
    const data = uPlot.join(tables);
    return {
        series, data, height: 300, extent: state.axis === "seconds" ? null : stepRange(runs),
        x: state.axis === "seconds" ? { label: "seconds" } : { label: "step", whole: true },
        y: { label: kind.label, log: state.log, ...(state.log ? { format: short } : {}) },
        tip: (index, plot) => [
            el("div", { class: "tip-head" }, state.axis === "seconds" ? `${short(data[0][index])} s` : `step ${short(data[0][index])}`),
            ...series.flatMap((one, n) => (one.main && plot.series[n + 1].show
                ? [tipLine(runColour(one.run), one.run.name, short(valueBefore(data[n + 1], index)))] : [])),
        ],
    };
}

// The steps of a run are those in the file, although a point may represent several.
function stepRange(runs) {
    return extentOf(runs.flatMap((run) => [run.metrics.first_step, run.metrics.last_step]));
}

function lossFigure(runs) {
    const steps = stepRange(runs);
    const longest = Math.max(...runs.map((run) => run.metrics.step.length));
    const state = { kind: "loss", axis: "step", log: false, smoothing: clamp(longest / 40, 1, 50), hidden: new Set() };
    const view = new View(steps.min, steps.max);
    let chart = null;
    const update = (change) => {
        Object.assign(state, change);
        const range = state.axis === "step" ? steps : extentOf(runs.flatMap((run) => run.metrics.seconds));
        if (view.full.min !== range.min || view.full.max !== range.max) {
            view.full = range;
            view.reset();
        }
        chart.change(metricSpec(runs, state));
    };
    const kinds = Object.entries(curveKinds).filter(([, kind]) => runs.some((run) => extentOf(kind.get(run))));
    const tools = [
        choice("show", kinds.map(([name, kind]) => [name, kind.label]), "loss", (kind) => update({ kind })),
        runs.every(hasSeconds) ? choice("over", [["step", "steps"], ["seconds", "seconds"]], "step", (axis) => update({ axis })) : null,
        choice("scale", [[false, "linear"], [true, "log"]], false, (log) => update({ log })),
        zoomButtons(view),
    ];
    const legend = runLegend(runs, (run, on) => {
        state.hidden[on ? "delete" : "add"](run);
        update({});
    });
    const averaged = runs.some((run) => run.metrics.steps_in_a_point > 1);
    const bold = Math.round(state.smoothing);
    const note = [
        bold > 1 ? `Bold: the mean of the last ${bold} points; faint: the points themselves.` : "",
        averaged ? "Of runs with very many steps a point is the mean of neighbouring ones." : "",
        badSteps(runs),
    ].filter(Boolean).join(" ");
    const { figure, body } = chartFigure("loss", {
        title: "Training", description: "Loss of each run over its steps.", tools, legend, note,
    });
    chart = lineChart(figure, body, view, metricSpec(runs, state));
    return figure;
}

function badSteps(runs) {
    return runs.filter((run) => run.metrics.not_finite > 0)
        .map((run) => `${run.name}: the loss of ${run.metrics.not_finite} ${run.metrics.not_finite === 1 ? "step" : "steps"} is not finite.`).join(" ");
}

// ---- evaluations ------------------------------------------------------------------------------

// All evaluations; of older runs only the last one, from the summary.
function evaluationsOf(run) {
    if (run.evaluations && run.evaluations.length) {
        return run.evaluations;
    }
    const { summary } = run;
    if (summary && isNumber(summary.eval_loss)) {
        return [{ ...summary, step: summary.steps, loss: summary.eval_loss }];
    }
    return [];
}

const shareKind = (label) => ({ label, format: (v) => percent(v, 2), tick: (v, step) => tickNumber(100 * v, 100 * step) });
const evaluationKinds = {
    accuracy: shareKind("accuracy, %"),
    accuracy_top5: shareKind("top-5 accuracy, %"),
    next_token_accuracy: shareKind("next-token accuracy, %"),
    next_token_accuracy_top5: shareKind("next-token top-5 accuracy, %"),
    loss: { label: "loss", format: short, tick: tickNumber },
    perplexity: { label: "perplexity", format: short, tick: tickNumber },
};

function evaluationSpec(runs, state) {
    const kind = evaluationKinds[state.kind];
    const tables = runs.map((run) => {
        const rows = evaluationsOf(run);
        return [rows.map((row) => row.step), rows.map((row) => (isNumber(row[state.kind]) ? row[state.kind] : null))];
    });
    const data = uPlot.join(tables);
    const series = runs.map((run) => ({
        run, label: run.name, show: !state.hidden.has(run), width: 2, dash: runDash(run), stroke: () => runColour(run),
        points: { show: true, size: 7, fill: () => runColour(run), stroke: () => runColour(run) },
    }));
    return {
        series, data, height: 300, x: { label: "step", whole: true }, y: { label: kind.label, format: kind.tick },
        tip: (index) => [
            el("div", { class: "tip-head" }, `after step ${short(data[0][index])}`),
            ...runs.flatMap((run, n) => {
                const value = state.hidden.has(run) ? null : data[n + 1][index];
                return isNumber(value) ? [tipLine(runColour(run), run.name, kind.format(value))] : [];
            }),
        ],
    };
}

function evaluationFigure(runs) {
    const kinds = Object.entries(evaluationKinds)
        .filter(([name]) => runs.some((run) => evaluationsOf(run).some((row) => isNumber(row[name]))));
    const state = { kind: kinds[0][0], hidden: new Set() };
    const steps = extentOf(runs.flatMap((run) => evaluationsOf(run).map((row) => row.step)));
    const margin = Math.max((steps.max - steps.min) * 0.02, 0.5);
    const view = new View(steps.min - margin, steps.max + margin);
    let chart = null;
    const update = () => chart.change(evaluationSpec(runs, state));
    const tools = [
        choice("show", kinds.map(([name, kind]) => [name, kind.label.replace(", %", "")]), state.kind, (kind) => {
            state.kind = kind;
            update();
        }),
        zoomButtons(view),
    ];
    const legend = runLegend(runs, (run, on) => {
        state.hidden[on ? "delete" : "add"](run);
        update();
    });
    const { figure, body } = chartFigure("evaluation", {
        title: "Evaluation", description: "Accuracy or loss on samples that are not trained on, over the steps.", tools, legend,
        note: "On samples that training never sees.",
    });
    chart = lineChart(figure, body, view, evaluationSpec(runs, state));
    return figure;
}

function curveFigures(runs) {
    const trained = runs.filter((run) => run.metrics);
    const evaluated = runs.filter((run) => evaluationsOf(run).length);
    return [trained.length ? lossFigure(trained) : null, evaluated.length ? evaluationFigure(evaluated) : null].filter(Boolean);
}
