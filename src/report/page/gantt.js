// The executed schedule of a run as an interactive chart.

// The box under a point; rows are in order of time.
function boxAt(row, time) {
    let low = 0;
    let high = row.boxes.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (row.boxes[middle].task[Task.start] <= time) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    // A long task may have begun before some that have ended already.
    for (let at = low - 1; at >= Math.max(low - 8, 0); at--) {
        if (row.boxes[at].task[Task.end] >= time) {
            return row.boxes[at];
        }
    }
    const next = row.boxes[low];
    return next && next.task[Task.start] - next.waited <= time ? { waitingFor: next } : null;
}

function boxTip(record, box) {
    const waits = Boolean(box.waitingFor);
    const { task, waited } = box.waitingFor || box;
    const kind = record.kinds[task[Task.kind]];
    const version = task[Task.version];
    const facts = [
        ["worker", task[Task.worker]], ["stage", task[Task.stage]], ["step", task[Task.step]],
        ["weights", version < 0 ? null : `version ${version}${isStale(task) ? ", one update old" : ""}`],
        ["on", record.lanes[task[Task.lane]]],
        ["from", `${duration(task[Task.start])} for ${duration(task[Task.end] - task[Task.start])}`],
        ["waited before", waited > 0 ? duration(waited) : null],
    ].filter(([, value]) => value !== null && value !== -1);
    return [
        el("div", { class: "tip-head" }, waits ? `waits ${duration(waited)} for: ${kind}` : kind),
        ...facts.map(([name, value]) => el("div", { class: "tip-line" }, el("span", {}, name), el("b", {}, String(value)))),
    ];
}

// Dragging marks a range and zooms to it; with Shift it moves what is shown.
function bindDrag(canvas, view, scaleOf, mark) {
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
        if (event.button === 0) {
            canvas.setPointerCapture(event.pointerId);
            drag = { x: event.offsetX, moves: event.shiftKey, min: view.min, max: view.max };
        }
    });
    canvas.addEventListener("pointermove", (event) => {
        if (!drag) {
            return;
        }
        if (drag.moves) {
            const scale = scaleOf();
            const time = ((event.offsetX - drag.x) / (scale.right - ganttLeft)) * (drag.max - drag.min);
            view.set(drag.min - time, drag.max - time);
        } else {
            mark(Math.min(drag.x, event.offsetX), Math.abs(event.offsetX - drag.x));
        }
    });
    const end = (event) => {
        if (drag && !drag.moves && event.type === "pointerup" && Math.abs(event.offsetX - drag.x) > 4) {
            const scale = scaleOf();
            const [a, b] = [drag.x, event.offsetX].map(scale.time).sort((p, q) => p - q);
            view.set(a, b);
        }
        mark(0, 0);
        drag = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("dblclick", () => view.reset());
    return () => Boolean(drag);
}

function stageLegend(record) {
    const few = record.stages <= 8;
    const shown = few ? [...Array(record.stages).keys()] : [0, Math.floor(record.stages / 2), record.stages - 1];
    const boxes = shown.map((stage) => el("span", {},
        swatch(() => css(pale(stageColour(stage, record.stages), 0.55))), swatch(() => css(stageColour(stage, record.stages))),
        few ? `${stage}` : `stage ${stage}`));
    const has = (kind) => record.tasks.some((task) => record.kinds[task[Task.kind]] === kind);
    return el("div", { class: "legend" }, few ? el("span", {}, "stages, forward and backward (′):") : null, boxes,
        record.tasks.some(isStale) ? el("span", {}, el("span", { class: "swatch stale" }), "weights one update old") : null,
        el("span", {}, el("span", { class: "swatch waiting" }), "waiting"),
        has("update") ? el("span", {}, swatch(() => theme.colour("update")), "update") : null,
        record.messages.length || ["send", "receive", "reduce", "broadcast", "collective"].some(has)
            ? el("span", {}, swatch(() => theme.colour("traffic")), "communication") : null);
}

// A rank's thread that carries messages computes nothing.
const computes = (lane) => !/messages$/.test(lane);

// The share of the lanes' time that they spent on tasks.
function busyShare(record) {
    const whole = (record.times.max - record.times.min) * record.lanes.filter(computes).length;
    const busy = record.tasks.filter((task) => computes(record.lanes[task[Task.lane]]))
        .reduce((sum, task) => sum + task[Task.end] - task[Task.start], 0);
    return whole > 0 ? busy / whole : 0;
}

function ganttFigure(run) {
    const { record } = run;
    const { view } = record;
    const laneWord = /^rank/.test(record.lanes[0] || "") ? "ranks" : "threads";
    // Workers show the cycle; where each has a rank of its own, ranks show it with their updates.
    const own = laneWord === "ranks" && record.lanes.filter(computes).length === record.workers;
    const state = { rows: own ? "lanes" : "workers", colour: "stage", messages: record.messages.length > 0 };
    const rowsOf = { workers: rowsByWorker(record), lanes: rowsByLane(record) };
    const picture = () => ({
        record, view, state, rows: rowsOf[state.rows], height: rowHeightFor(rowsOf[state.rows].length), scale: ganttScale(view, width),
    });
    let width = 0;
    let waiting = false;
    const canvas = el("canvas", { tabindex: "0", role: "img" });
    const selection = el("div", { class: "selection", hidden: true });
    const draw = () => {
        figure.dataset.rows = rowsOf[state.rows].length;
        drawGantt(canvas, width, picture());
    };
    const drawSoon = () => {
        if (!waiting) {
            waiting = true;
            requestAnimationFrame(() => {
                waiting = false;
                draw();
            });
        }
    };
    const set = (name) => (value) => {
        state[name] = value;
        draw();
    };
    const note = `Steps ${record.firstStep} to ${record.endStep - 1}, ${record.tasks.length} tasks; ${laneWord} were busy `
        + `${percent(busyShare(record), 0)} of the time.`;
    const { figure, body } = chartFigure("schedule", {
        title: run.name, description: `What each worker did when. ${note}`,
        tools: [
            choice("rows", [["workers", "workers"], ["lanes", laneWord]], state.rows, set("rows")),
            choice("colour", [["stage", "stage"], ["worker", "worker"], ["version", "version"]], state.colour, set("colour")),
            record.messages.length ? choice("messages", [[true, "on"], [false, "off"]], true, set("messages")) : null,
            zoomButtons(view),
        ],
        legend: stageLegend(record), note,
    });
    figure.dataset.run = run.name;
    canvas.setAttribute("aria-label", `${figure.getAttribute("aria-label")} ${keyHelp} Dragging marks a range to zoom to, with Shift it moves.`);
    body.append(canvas, selection);
    bindGantt({ canvas, body, selection, view, picture, record });
    setExtents(figure, record.times, null);
    showView(figure, view);
    keepDrawn(body, (wide) => {
        width = wide;
        draw();
    });
    view.onChange(drawSoon);
    return figure;
}

function bindGantt({ canvas, body, selection, view, picture, record }) {
    const tip = tipBox(body);
    const dragging = bindDrag(canvas, view, () => picture().scale, (left, wide) => {
        selection.hidden = wide === 0;
        selection.style.left = `${left}px`;
        selection.style.width = `${wide}px`;
    });
    canvas.addEventListener("pointermove", (event) => {
        const { rows, height, scale } = picture();
        const row = rows[Math.floor((event.offsetY - ganttTop) / height)];
        const box = row && event.offsetX >= ganttLeft && !dragging() ? boxAt(row, scale.time(event.offsetX)) : null;
        if (box) {
            tip.show(event.offsetX, event.offsetY, ...boxTip(record, box));
        } else {
            tip.hide();
        }
    });
    canvas.addEventListener("pointerleave", tip.hide);
    bindKeys(canvas, view);
    bindWheel(canvas, view, (event) => picture().scale.time(event.offsetX));
}

function ganttFigures(runs) {
    return runs.filter((run) => run.record && run.record.tasks.length && run.record.view).map(ganttFigure);
}
