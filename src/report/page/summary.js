// The runs in words and as a table.

// ---- in words ---------------------------------------------------------------------------------

function describeRun(run) {
    const parts = [run.rule, run.placement].filter(Boolean);
    const sizes = [
        isNumber(run.workers) ? `${run.workers} workers` : null,
        isNumber(run.batch) ? `of ${run.batch} samples` : null,
    ].filter(Boolean).join(" ");
    const stages = isNumber(run.stages) ? `${run.stages} stages` : null;
    return [run.model, parts.join(", "), sizes, stages].filter(Boolean).join(" · ");
}

const times = (a, b) => (isNumber(a) && isNumber(b) && b > 0 ? a / b : null);

// What a reader would ask first, in one sentence per run.
function sentenceOf(run) {
    const { memory, baseline } = run;
    const held = [];
    if (isNumber(memory.peak)) {
        held.push(`held at most ${bytes(memory.peak)} of activations, ${memory.peakOf}`);
    }
    if (isNumber(memory.rankPeak)) {
        held.push(`${isNumber(memory.peak) ? "" : "held "}at most ${bytes(memory.rankPeak)} on a rank`);
    }
    const against = baseline ? times(memory.peak, baseline.memory.peak) : null;
    if (isNumber(against)) {
        held.push(`${ratio(against)} of what ${baseline.name} held`);
    } else if (!run.isDp && isNumber(memory.ratio)) {
        held.push(`${ratio(memory.ratio)} of data parallelism's peak by the plan`);
    }
    const plan = [];
    if (!run.isDp && isNumber(memory.predictedRatio)) {
        plan.push(`predicted ${ratio(memory.predictedRatio)}`);
    }
    if (!run.isDp && isNumber(memory.limitRatio)) {
        plan.push(`limit ${ratio(memory.limitRatio)}`);
    }
    const speed = run.summary && isNumber(run.summary.samples_per_s) ? [`ran at ${short(run.summary.samples_per_s)} samples/s`] : [];
    const faster = baseline && run.summary && baseline.summary ? times(run.summary.samples_per_s, baseline.summary.samples_per_s) : null;
    if (isNumber(faster)) {
        speed.push(`${ratio(faster)} × ${baseline.name}`);
    }
    const text = [held.join(", ") + (plan.length ? ` (${plan.join(", ")})` : ""), speed.join(", "), accuracyOf(run)];
    return text.filter(Boolean).join("; ");
}

function accuracyOf(run) {
    const name = ["accuracy", "next_token_accuracy"].find((key) => run.summary && isNumber(run.summary[key]));
    if (!name) {
        return null;
    }
    const other = run.baseline && run.baseline.summary && run.baseline.summary[name];
    const what = name === "accuracy" ? "" : " next-token accuracy";
    return `reached ${percent(run.summary[name])}${what}${isNumber(other) ? ` beside ${percent(other)}` : ""}`;
}

function headlines(runs) {
    return el("ul", { class: "headlines" }, runs.map((run) => {
        const sentence = sentenceOf(run);
        return el("li", {}, runName(run), el("span", { class: "kind" }, describeRun(run)),
            el("p", {}, sentence ? `${sentence[0].toUpperCase()}${sentence.slice(1)}.` : "It has no summary."));
    }));
}

// ---- as a table -------------------------------------------------------------------------------

const of = (name) => (run) => (run.summary ? run.summary[name] : undefined);
const within = (group, name) => (run) => (run.summary && run.summary[group] ? run.summary[group][name] : undefined);
const perStep = (get) => (run) => {
    const value = get(run);
    const steps = run.summary ? run.summary.steps - (run.summary.resumed_after || 0) : 0;
    return isNumber(value) && steps > 0 ? value / steps : undefined;
};
const text = (name) => (run) => run[name];
const plain = (value) => (isNumber(value) ? String(value) : value);

// Share of the threads' time in which they had nothing to do.
function waitingShare(run) {
    const executor = run.summary && run.summary.executor;
    const whole = executor ? executor.tasks_s + executor.waiting_s + executor.choosing_s : 0;
    return whole > 0 ? executor.waiting_s / whole : undefined;
}

// Rows: the name, the source, the format, and whether a bar and the best are shown ("low" or "high" is best).
const tableGroups = [
    ["Setting", [
        ["model", text("model"), plain], ["data", text("data"), plain], ["rule", text("rule"), plain],
        ["placement", text("placement"), plain], ["workers N", text("workers"), plain], ["stages S", text("stages"), plain],
        ["samples a worker", text("batch"), plain], ["optimizer", text("optimizer"), plain], ["seed", text("seed"), plain],
        ["steps made", of("steps"), plain],
    ]],
    ["Speed", [
        ["samples/s", of("samples_per_s"), short, "high"], ["step, median", of("step_ms_median"), (v) => `${short(v)} ms`, "low"],
        ["threads waited", waitingShare, percent],
    ]],
    ["Memory; over ranks of the largest rank, if not said otherwise", [
        ["activations, peak of all workers together", (run) => run.memory.peak, bytes, "low"],
        ["activations, largest rank's peak", (run) => run.memory.rankPeak, bytes],
        ["activations, sum of all ranks' peaks", (run) => run.memory.rankSum, bytes],
        ["over dp's by the plan", (run) => run.memory.ratio, ratio],
        ["over dp's run here", (run) => (run.baseline ? times(run.memory.peak, run.baseline.memory.peak) : undefined), ratio],
        ["predicted by the plan", (run) => run.memory.predictedRatio, ratio],
        ["limit of any schedule", (run) => run.memory.limitRatio, ratio],
        ["limit without recomputation, activations", (run) => run.memory.limitWithout, bytes],
        ["activations, mean", within("memory", "activations_mean_bytes"), bytes],
        ["weights", within("memory", "weights_bytes"), bytes], ["gradients", within("memory", "gradients_bytes"), bytes],
        ["optimizer", within("memory", "optimizer_bytes"), bytes], ["resident, peak", within("memory", "rss_peak_bytes"), bytes, "low"],
    ]],
    ["Communication", [
        ["sent a step", perStep(within("comm", "bytes_sent")), bytes], ["messages a step", perStep(within("comm", "messages")), short],
        ["most in a slot", within("comm", "max_messages_per_slot"), plain],
        ["collectives a step", perStep(within("comm", "collectives")), short],
        ["exposed a step", within("comm", "exposed_ms_per_step"), (v) => `${short(v)} ms`],
    ]],
    ["Learning", [
        ["loss, first", of("loss_first"), short], ["loss, last", of("loss_last"), short],
        ["accuracy", of("accuracy"), (v) => percent(v, 2), "high"], ["top-5", of("accuracy_top5"), (v) => percent(v, 2)],
        ["next-token accuracy", of("next_token_accuracy"), (v) => percent(v, 2), "high"],
        ["next-token top-5", of("next_token_accuracy_top5"), (v) => percent(v, 2)],
        ["perplexity", of("perplexity"), short, "low"],
        ["loss, evaluated", of("eval_loss"), short],
    ]],
    ["Machine", [
        ["processor", within("machine", "cpu"), plain], ["cores", within("machine", "cores"), plain],
        ["threads", within("machine", "threads"), plain], ["transport", of("transport"), plain],
    ]],
];

function bestOf(values, best) {
    const known = values.filter(isNumber);
    if (!best || known.length !== values.length || known.length < 2 || Math.min(...known) === Math.max(...known)) {
        return null;
    }
    return best === "low" ? Math.min(...known) : Math.max(...known);
}

function tableCell(value, format, best, most) {
    if (value === undefined || value === null) {
        return el("td", { class: "none" }, "–");
    }
    const cell = el("td", { class: isNumber(value) ? "number" : null }, String(format(value)));
    if (isNumber(most) && most > 0 && isNumber(value)) {
        cell.append(el("span", { class: "bar", style: `width: ${(100 * value) / most}%`, "aria-hidden": "true" }));
    }
    if (isNumber(best) && value === best) {
        cell.classList.add("best");
        cell.title = "the best of these runs";
    }
    return cell;
}

// Settings that all runs share are listed once, above the table.
const commonGroups = ["Setting", "Machine"];

function isCommon(runs, group, get) {
    const first = get(runs[0]);
    return runs.length > 1 && commonGroups.includes(group) && first !== undefined && runs.every((run) => get(run) === first);
}

function commonSettings(runs) {
    const common = tableGroups.flatMap(([group, rows]) => rows.filter(([, get]) => isCommon(runs, group, get)));
    return common.length ? el("p", { class: "common" }, "In all runs: ",
        common.flatMap(([label, get, format], n) => [n > 0 ? ", " : "", `${label} `, el("b", {}, String(format(get(runs[0]))))]), ".") : null;
}

function tableRow(runs, group, [label, get, format, best]) {
    const values = runs.map(get);
    const empty = (value) => value === undefined || value === null || (group === "Communication" && value === 0);
    if (values.every(empty) || isCommon(runs, group, get)) {
        return null;
    }
    const alike = runs.every((run) => isComparable(run, runs[0])); // else there is no best
    const most = best && runs.length > 1 ? Math.max(...values.filter(isNumber)) : null;
    return el("tr", {}, el("th", { scope: "row" }, label),
        values.map((value) => tableCell(value, format, alike ? bestOf(values, best) : null, most)));
}

function summaryTable(runs) {
    const head = el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), runs.map((run) => el("th", { scope: "col" }, runName(run)))));
    const groups = tableGroups.map(([name, rows]) => {
        const made = rows.map((row) => tableRow(runs, name, row)).filter(Boolean);
        const title = el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: runs.length + 1 }, name));
        return made.length ? el("tbody", {}, title, made) : null;
    });
    const region = { tabindex: "0", role: "region", "aria-label": "Summaries of the runs" };
    const table = (...content) => el("table", { class: "summaries", "data-runs": runs.length }, content);
    // One run: groups side by side.
    return runs.length === 1
        ? el("div", { class: "groups", ...region }, groups.filter(Boolean).map((group) => el("div", { class: "table-scroll" }, table(group))))
        : el("div", { class: "table-scroll", ...region }, table(head, groups));
}

// What was missing, and in which runs.
function notesOf(runs) {
    const lines = [...new Set(runs.flatMap((run) => run.notes))];
    if (!lines.length) {
        return null;
    }
    return el("div", { class: "notice", id: "notes" }, el("b", {}, "Left out"), el("ul", {}, lines.map((line) => el("li", {},
        runs.filter((run) => run.notes.includes(line)).map((run) => [runName(run), " "]), `${line}.`))));
}
