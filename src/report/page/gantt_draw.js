// Drawing the executed schedule. A row is a worker or a lane (a thread, a rank); a box is a task: its colour the stage
// (or the worker, or the version of the weights), pale forward and full backward, with a stripe below where it used
// weights one update old; hatching is waiting.

const ganttLeft = 76; // as wide as the axis of the charts above, so that times stand below one another
const ganttRight = 16;
const ganttTop = 20;
const ganttBottom = 26;

const rowHeightFor = (rows) => clamp(Math.round(320 / rows), 12, 38);
const ganttHeight = (rows) => ganttTop + rows * rowHeightFor(rows) + ganttBottom;

// Converts time to pixels and back for the shown part of a record.
function ganttScale(view, width) {
    const wide = Math.max(width - ganttLeft - ganttRight, 1);
    return {
        x: (time) => ganttLeft + ((time - view.min) / (view.max - view.min)) * wide,
        time: (x) => view.min + ((x - ganttLeft) / wide) * (view.max - view.min),
        right: ganttLeft + wide,
    };
}

// ---- rows -------------------------------------------------------------------------------------

// Tasks by row, each with the waiting before it: of a lane as it was recorded, of a worker the time since its last task.
function rowsByLane(record) {
    const rows = record.lanes.map((name, lane) => ({ name, rank: rankOfLane(name, lane), boxes: [] }));
    for (const task of record.tasks) {
        rows[task[Task.lane]].boxes.push({ task, waited: Math.max(task[Task.waited], 0) });
    }
    return rows;
}

function rowsByWorker(record) {
    const rows = [];
    for (let worker = 0; worker < record.workers; worker++) {
        rows.push({ name: `worker ${worker}`, rank: worker, boxes: [] });
    }
    const others = { name: "no worker", rank: -1, boxes: [] };
    for (const task of [...record.tasks].sort((a, b) => a[Task.start] - b[Task.start])) {
        const row = rows[task[Task.worker]] || others;
        const known = row !== others && row.boxes.length > 0;
        const before = known ? row.boxes[row.boxes.length - 1].task[Task.end] : task[Task.start];
        row.boxes.push({ task, waited: Math.max(task[Task.start] - before, 0) });
    }
    return others.boxes.length ? [...rows, others] : rows;
}

function rankOfLane(name, lane) {
    const found = /rank (\d+)/.exec(name);
    return found ? Number(found[1]) : lane;
}

// ---- colours ----------------------------------------------------------------------------------

const isStale = (task) => task[Task.version] >= 0 && task[Task.version] < task[Task.step];

function boxColour(record, task, by) {
    const kind = record.kinds[task[Task.kind]];
    if (kind !== "forward" && kind !== "backward") {
        return parts(theme.colour(kind === "update" ? "update" : "traffic").slice(1));
    }
    const full = by === "worker" ? workerColour(task[Task.worker], record.workers)
        : by === "version" ? versionColour(task[Task.version]) : stageColour(task[Task.stage], record.stages);
    return kind === "forward" ? pale(full, 0.55) : full;
}

// "3′ w1 v5", or as much of it as there is room for.
function boxLabel(ctx, record, task, byWorker, room) {
    const kind = record.kinds[task[Task.kind]];
    if (kind !== "forward" && kind !== "backward") {
        return room > 44 ? kind : "";
    }
    const stage = `${task[Task.stage]}${kind === "backward" ? "′" : ""}`;
    const more = [byWorker ? null : `w${task[Task.worker]}`, task[Task.version] >= 0 ? `v${task[Task.version]}` : null].filter(Boolean);
    for (let count = more.length; count >= 0; count--) {
        const label = [stage, ...more.slice(0, count)].join(" ");
        if (ctx.measureText(label).width < room - 4) {
            return label;
        }
    }
    return "";
}

// ---- the picture ------------------------------------------------------------------------------

let hatching = null; // made once for each theme
theme.onChange(() => {
    hatching = null;
});

function hatchPattern(ctx) {
    if (!hatching) {
        const tile = el("canvas", { width: 12, height: 12 });
        const paint = tile.getContext("2d");
        paint.strokeStyle = theme.colour("waiting");
        paint.lineWidth = 2;
        for (const shift of [-12, 0, 12]) {
            paint.moveTo(shift, 12);
            paint.lineTo(shift + 12, 0);
        }
        paint.stroke();
        hatching = ctx.createPattern(tile, "repeat");
        hatching.setTransform(new DOMMatrix().scale(0.5));
    }
    return hatching;
}

function drawRow(ctx, picture, row, index) {
    const { record, scale, state, view, height } = picture;
    const top = ganttTop + index * height;
    ctx.fillStyle = theme.colour("faint");
    ctx.textAlign = "right";
    ctx.fillText(row.name, ganttLeft - 8, top + height / 2 + 4, ganttLeft - 12);
    ctx.textAlign = "center";
    for (const { task, waited } of row.boxes) {
        if (task[Task.end] < view.min || task[Task.start] - waited > view.max) {
            continue;
        }
        const left = clamp(scale.x(task[Task.start]), ganttLeft, scale.right);
        const right = clamp(scale.x(task[Task.end]), ganttLeft, scale.right);
        const waitLeft = Math.max(scale.x(task[Task.start] - waited), ganttLeft);
        if (left - waitLeft > 1.5) {
            ctx.fillStyle = hatchPattern(ctx);
            ctx.fillRect(waitLeft, top + height * 0.25, left - waitLeft, height * 0.5);
        }
        drawBox(ctx, picture, task, left, top + 1, Math.max(right - left, 0.75), height - 2, state);
    }
}

function drawBox(ctx, { record }, task, left, top, width, height, state) {
    const colour = boxColour(record, task, state.colour);
    const gap = width > 4 ? 0.5 : 0;
    ctx.fillStyle = css(colour);
    ctx.fillRect(left + gap, top, width - 2 * gap, height);
    if (isStale(task) && width > 2) {
        ctx.fillStyle = theme.colour("stale");
        ctx.fillRect(left + gap, top + height - 3, width - 2 * gap, 3);
    }
    const label = width > 8 && height > 11 ? boxLabel(ctx, record, task, state.rows === "workers", width) : "";
    if (label) {
        ctx.fillStyle = inkOn(colour);
        ctx.fillText(label, left + width / 2, top + height / 2 + 3.5);
    }
}

function drawTimes(ctx, { view, scale, rows, height, record }) {
    const bottom = ganttTop + rows.length * height;
    ctx.textAlign = "center";
    for (const time of ticksOf(view.min, view.max, (scale.right - ganttLeft) / 90)) {
        const x = scale.x(time);
        ctx.strokeStyle = theme.colour("guide");
        line(ctx, x, bottom, x, bottom + 5, []);
        ctx.fillStyle = theme.colour("faint");
        ctx.fillText(duration(time), clamp(x, ganttLeft + 14, scale.right - 10), bottom + 18);
    }
    let free = ganttLeft;
    for (const { step, start } of record.steps) {
        const x = scale.x(start);
        if (x < ganttLeft - 0.5 || x > scale.right) {
            continue;
        }
        ctx.strokeStyle = theme.colour("faint");
        line(ctx, x, ganttTop - 4, x, bottom, [3, 3]);
        const label = `step ${step}`;
        const width = ctx.measureText(label).width;
        if (x >= free && x + width < scale.right) {
            ctx.fillStyle = theme.colour("faint");
            ctx.textAlign = "left";
            ctx.fillText(label, x + 2, ganttTop - 7);
            free = x + width + 10;
        }
    }
}

function line(ctx, x1, y1, x2, y2, dash) {
    ctx.lineWidth = 1;
    ctx.setLineDash(dash);
    ctx.beginPath();
    ctx.moveTo(x1, y1);
    ctx.lineTo(x2, y2);
    ctx.stroke();
    ctx.setLineDash([]);
}

// From when a message was sent to when it was there.
function drawMessages(ctx, { record, rows, scale, view, height }) {
    const rowOf = (rank) => rows.findIndex((row) => row.rank === rank);
    ctx.strokeStyle = theme.colour("traffic");
    ctx.fillStyle = theme.colour("traffic");
    const shown = record.messages.filter((message) => message[Message.sent] <= view.max && message[Message.arrived] >= view.min);
    ctx.save();
    ctx.globalAlpha = clamp(60 / Math.max(shown.length, 1), 0.35, 0.9);
    ctx.beginPath();
    ctx.rect(ganttLeft, 0, scale.right - ganttLeft, ganttTop + rows.length * height);
    ctx.clip();
    for (const message of shown) {
        const arrived = message[Message.arrived];
        const from = rowOf(message[Message.from]);
        const to = rowOf(message[Message.to]);
        if (from < 0 || to < 0) {
            continue;
        }
        const y = (row) => ganttTop + (row + 0.5) * height;
        line(ctx, scale.x(message[Message.sent]), y(from), scale.x(arrived), y(to), []);
        ctx.beginPath();
        ctx.arc(scale.x(arrived), y(to), 2.2, 0, 7);
        ctx.fill();
    }
    ctx.restore();
}

function drawGantt(canvas, width, picture) {
    const dots = devicePixelRatio;
    const high = ganttHeight(picture.rows.length);
    canvas.width = Math.round(width * dots);
    canvas.height = Math.round(high * dots);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${high}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(dots, dots);
    ctx.font = "11px system-ui, sans-serif";
    picture.rows.forEach((row, index) => drawRow(ctx, picture, row, index));
    drawTimes(ctx, picture);
    if (picture.state.messages) {
        drawMessages(ctx, picture);
    }
}
