// Activation bytes over time: the workers of a run stacked, their sum, and the plan's prediction.

// Comparable runs share one scale.
function memoryTop(run, runs) {
    const beside = runs.filter((other) => other.record && other.record.memory && isComparable(run, other));
    return 1.1 * Math.max(...beside.map((other) => Math.max(other.record.memory.peak, other.memory.dp || 0,
        other.memory.limitWithout || 0)));
}

const memoryLevels = [
    { name: "peak of data parallelism", get: (run) => run.memory.dp, dash: [8, 4], above: true },
    { name: "predicted peak", get: (run) => (run.isDp ? null : run.memory.predicted), dash: [4, 3], above: true },
    { name: "limit of any schedule", get: (run) => run.memory.limit, dash: [2, 3], above: false },
    { name: "limit without recomputation", get: (run) => run.memory.limitWithout, dash: [2, 3], above: true },
];

// Horizontal lines with their names at the right end.
function drawLevels(run) {
    return (plot) => {
        const { ctx, bbox } = plot;
        const dots = devicePixelRatio;
        ctx.save();
        ctx.font = `${11 * dots}px system-ui, sans-serif`;
        ctx.textAlign = "right";
        for (const level of memoryLevels) {
            const value = level.get(run);
            if (!isNumber(value) || value <= 0) {
                continue;
            }
            const y = Math.round(plot.valToPos(value, "y", true));
            ctx.strokeStyle = theme.colour("ink");
            ctx.lineWidth = 1.25 * dots;
            ctx.setLineDash(level.dash.map((length) => length * dots));
            ctx.beginPath();
            ctx.moveTo(bbox.left, y);
            ctx.lineTo(bbox.left + bbox.width, y);
            ctx.stroke();
            labelLevel(ctx, `${level.name} ${bytes(value)}`, bbox.left + bbox.width - 5 * dots, y + (level.above ? -6 : 15) * dots, dots);
        }
        ctx.restore();
    };
}

// With a background in the page's colour, because it is drawn over the areas.
function labelLevel(ctx, text, x, y, dots) {
    const width = ctx.measureText(text).width;
    ctx.fillStyle = theme.colour("panel");
    ctx.globalAlpha = 0.82;
    ctx.fillRect(x - width - 3 * dots, y - 10.5 * dots, width + 6 * dots, 14 * dots);
    ctx.globalAlpha = 1;
    ctx.fillStyle = theme.colour("ink");
    ctx.fillText(text, x, y);
}

function memorySpec(run, top) {
    const { memory, workers } = run.record;
    const unit = byteUnit(top);
    const stepped = uPlot.paths.stepped({ align: 1 });
    // The highest stack first: each is painted over by the next lower one.
    const piles = memory.sums.map((sums, worker) => ({ sums, worker })).reverse();
    const series = piles.map(({ worker }) => ({
        label: `worker ${worker}`, paths: stepped, width: 0.5, stroke: () => theme.colour("panel"),
        fill: () => css(workerColour(worker, workers)),
    }));
    series.push({ label: "all workers", paths: stepped, width: 1.75, stroke: () => theme.colour("ink") });
    return {
        series, data: [memory.moments, ...piles.map((pile) => pile.sums), memory.total], height: 280,
        x: { format: duration },
        y: { label: `activations, ${unit.name}`, format: (value, step) => tickNumber(value / unit.size, step / unit.size), range: [0, top] },
        draw: drawLevels(run),
        tip: (index) => [
            el("div", { class: "tip-head" }, `${duration(memory.moments[index])}: ${bytes(memory.total[index])}`),
            ...memory.sums.map((sums, worker) => tipLine(css(workerColour(worker, workers)), `worker ${worker}`,
                bytes(sums[index] - (worker > 0 ? memory.sums[worker - 1][index] : 0)))).reverse().slice(0, 16),
        ],
    };
}

function workerLegend(workers) {
    const many = workers > 10;
    const shown = many ? [0, workers - 1] : [...Array(workers).keys()];
    return el("div", { class: "legend" }, shown.map((worker) => el("span", {},
        swatch(() => css(workerColour(worker, workers))), `worker ${worker}`)),
    el("span", {}, el("span", { class: "swatch line" }), "all together"));
}

function memoryFigure(run, runs) {
    const { memory, view } = run.record;
    const share = isNumber(run.memory.dp) && run.memory.dp > 0 ? memory.peak / run.memory.dp : null;
    const note = `Peak in these steps ${bytes(memory.peak)}`
        + `${isNumber(share) ? `, ${ratio(share)} of data parallelism's` : ""}`
        + `${isNumber(run.memory.limitRatio) ? `; no schedule without ${isNumber(run.memory.limitWithout) ? "more recomputing" : "recomputing"} or idling stays below ${ratio(run.memory.limitRatio)}` : ""}.`;
    const { figure, body } = chartFigure("memory", {
        title: run.name, description: `Activation bytes of ${run.record.workers} workers over time. ${note}`,
        tools: [zoomButtons(view)], legend: workerLegend(run.record.workers), note,
    });
    figure.dataset.run = run.name;
    lineChart(figure, body, view, memorySpec(run, memoryTop(run, runs)));
    return figure;
}

function memoryFigures(runs) {
    return runs.filter((run) => run.record && run.record.memory).map((run) => memoryFigure(run, runs));
}
