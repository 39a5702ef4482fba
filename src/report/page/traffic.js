// Bytes sent in each slot of a cycle, as planned and as measured.

const barsHeight = 200;
const barsLeft = 76;

function barTop(runs) {
    return Math.max(...runs.flatMap((run) => [...(run.record.slots.plan || []), ...(run.record.slots.measured || [])]));
}

function drawBars(slots, top, width) {
    const unit = byteUnit(top);
    const count = Math.max((slots.plan || []).length, (slots.measured || []).length);
    const wide = (width - barsLeft - 16) / count;
    const y = (value) => 12 + (barsHeight - 12) * (1 - value / (top * 1.05));
    const bar = (kind, name) => (value, slot) => svg("rect", {
        class: kind, x: barsLeft + slot * wide + (kind === "plan" ? wide * 0.06 : wide * 0.2), y: y(value),
        width: wide * (kind === "plan" ? 0.88 : 0.6), height: Math.max(y(0) - y(value), 0),
    }, svg("title", {}, `slot ${slot}: ${bytes(value)} ${name}`));
    const every = Math.ceil(count / Math.max(Math.floor((width - barsLeft) / 28), 1));
    const labels = [...Array(count).keys()].filter((slot) => slot % every === 0)
        .map((slot) => svg("text", { x: barsLeft + (slot + 0.5) * wide, y: barsHeight + 17, "text-anchor": "middle" }, String(slot)));
    const tickValues = ticksOf(0, top * 1.05, 4);
    const tickStep = tickValues.length > 1 ? tickValues[1] : 1;
    const ticks = tickValues.map((value) => [
        svg("line", { class: "guide", x1: barsLeft, x2: width - 16, y1: y(value), y2: y(value) }),
        svg("text", { x: barsLeft - 8, y: y(value) + 4, "text-anchor": "end" }, tickNumber(value / unit.size, tickStep / unit.size)),
    ]).flat();
    return svg("svg", { width, height: barsHeight + 42, viewBox: `0 0 ${width} ${barsHeight + 42}`, role: "img" }, ticks,
        (slots.plan || []).map(bar("plan", "planned")), (slots.measured || []).map(bar("measured", "measured")), labels,
        svg("text", { x: barsLeft + (width - barsLeft - 16) / 2, y: barsHeight + 36, "text-anchor": "middle" }, "slot of the cycle"),
        svg("text", { transform: `translate(16 ${barsHeight / 2 + 6}) rotate(-90)`, "text-anchor": "middle" }, `sent, ${unit.name}`));
}

function trafficFigure(run, top) {
    const { slots } = run.record;
    const plan = slots.plan || [];
    const most = Math.max(...plan, 0);
    const mean = plan.length ? plan.reduce((sum, value) => sum + value, 0) / plan.length : 0;
    const note = plan.length && mean > 0 ? `The plan's busiest slot sends ${ratio(most / mean)} times the mean of ${bytes(mean)}.`
        + `${slots.measured ? " Measured: what left in each such share of a step's time." : ""}` : null;
    const { figure, body } = chartFigure("traffic", {
        title: run.name, description: `Bytes sent in each slot of the cycle. ${note || ""}`,
        legend: el("div", { class: "legend" }, el("span", {}, el("span", { class: "swatch outline" }), "planned"),
            slots.measured ? el("span", {}, el("span", { class: "swatch measured" }), "measured") : null), note,
    });
    figure.dataset.run = run.name;
    const place = el("div", { class: "plot" });
    body.append(place);
    keepDrawn(body, (width) => place.replaceChildren(drawBars(slots, top, width)));
    setExtents(figure, { min: 0, max: Math.max(plan.length, (slots.measured || []).length) - 1 },
        extentOf([...plan, ...(slots.measured || [])]));
    return figure;
}

const sendsSomething = (run) => Boolean(run.record)
    && [...(run.record.slots.plan || []), ...(run.record.slots.measured || [])].some((value) => value > 0);

function trafficFigures(runs) {
    const sending = runs.filter(sendsSomething);
    const top = sending.length ? barTop(sending) : 0;
    return sending.map((run) => trafficFigure(run, top));
}

// A sentence that lists the runs that sent nothing.
function silentRuns(runs) {
    const silent = runs.filter((run) => run.record && !sendsSomething(run));
    if (!silent.length) {
        return null;
    }
    return el("p", { class: "hint" }, silent.map((run, n) => [n > 0 ? ", " : "", runName(run)]).flat(),
        ` sent nothing: ${silent.length === 1 ? "its" : "their"} workers share one memory.`);
}
