// The runs in the form that the other parts use: settings, results, and the record of a few steps.

// Indices in a task and in a message of timeline.json.
const Task = { start: 0, end: 1, lane: 2, kind: 3, worker: 4, stage: 5, step: 6, version: 7, waited: 8 };
const Message = { sent: 0, arrived: 1, from: 2, to: 3, kind: 4, bytes: 5, slot: 6 };

function readReport() {
    const report = JSON.parse(document.getElementById("report-data").textContent);
    report.runs = report.runs.map(prepareRun);
    for (const run of report.runs) {
        run.baseline = baselineOf(run, report.runs);
    }
    return report;
}

function prepareRun(raw, index) {
    renameAccuracy(raw);
    const sources = [raw.summary, raw.timeline, raw.config].filter(Boolean);
    // The first source that has it: the summary, the record, the configuration.
    const get = (name) => sources.map((source) => source[name]).find((value) => value !== undefined && value !== null);
    const run = { ...raw, index, get, notes: raw.notes || [] };
    for (const name of ["model", "data", "rule", "placement", "workers", "stages", "batch", "threads", "optimizer", "seed", "steps"]) {
        run[name] = get(name);
    }
    run.record = raw.timeline ? prepareRecord(raw.timeline) : null;
    run.memory = memoryOf(run);
    run.isDp = run.rule === "dp";
    return run;
}

// Older runs of language models call their next-token accuracy accuracy.
function renameAccuracy(raw) {
    const { summary } = raw;
    if (!summary || !isNumber(summary.accuracy) || !/^gpt2/.test(summary.model)) {
        return;
    }
    for (const tail of ["", "_top5"]) {
        summary[`next_token_accuracy${tail}`] = summary[`accuracy${tail}`];
        delete summary[`accuracy${tail}`];
    }
}

// Peaks of activations, all workers together: measured over the whole run, else over the record; what the plan says of
// them. Over ranks the summary knows each rank's peak, which need not be at one time.
function memoryOf(run) {
    const recorded = (run.timeline && run.timeline.memory) || {};
    const summary = (run.summary && run.summary.memory) || {};
    const ranks = ((run.summary && run.summary.ranks) || []).map((rank) => rank.activations_peak_bytes).filter(isNumber);
    const overRanks = Boolean(run.summary && run.summary.ranks);
    const whole = overRanks ? null : summary.activations_peak_bytes;
    const peak = isNumber(whole) ? whole : recorded.measured_peak_bytes;
    const over = (value) => (isNumber(value) && recorded.dp_peak_bytes > 0 ? value / recorded.dp_peak_bytes : null);
    return {
        peak, peakOf: overRanks ? "all ranks together, in the recorded steps" : "all workers together",
        rankPeak: ranks.length ? Math.max(...ranks) : null, rankSum: ranks.length ? ranks.reduce((a, b) => a + b) : null,
        dp: recorded.dp_peak_bytes, limit: recorded.limit_bytes,
        limitWithout: recorded.limit_without_recomputation_bytes, predicted: recorded.predicted_peak_bytes,
        ratio: over(peak), limitRatio: over(recorded.limit_bytes), predictedRatio: over(recorded.predicted_peak_bytes),
    };
}

// The dp run that this one can be compared with: same model, workers and batch.
function baselineOf(run, runs) {
    if (run.isDp) {
        return null;
    }
    const same = runs.filter((other) => other.isDp && isComparable(run, other));
    return same.find((other) => other.placement === run.placement) || same[0] || null;
}

function isComparable(run, other) {
    return ["model", "workers", "batch"].every((name) => run[name] === other[name]);
}

// ---- the record of a few steps ----------------------------------------------------------------

function prepareRecord(timeline) {
    const tasks = timeline.tasks || [];
    const series = (timeline.memory && timeline.memory.workers) || [];
    const times = extentOf([
        ...tasks.flatMap((task) => [task[Task.start], task[Task.end]]),
        ...series.flatMap((points) => (points.length ? [points[0][0], points[points.length - 1][0]] : [])),
    ]);
    return {
        tasks, times, lanes: timeline.lanes, kinds: timeline.kinds, workers: timeline.workers, stages: timeline.stages,
        messages: timeline.messages || [], memory: stackMemory(series), slots: timeline.bytes_per_slot || {},
        partition: timeline.partition || [], firstStep: timeline.first_step, endStep: timeline.end_step,
        view: times ? new View(times.min, times.max) : null,
        steps: stepStarts(tasks, timeline.kinds),
    };
}

// When each step began: with the first worker's forward pass of the first stage. Of some steps only the end is recorded.
function stepStarts(tasks, kinds) {
    return tasks.filter((task) => kinds[task[Task.kind]] === "forward" && task[Task.stage] === 0 && task[Task.worker] === 0)
        .map((task) => ({ step: task[Task.step], start: task[Task.start] })).sort((a, b) => a.start - b.start);
}

// The workers' bytes whenever any of them changed, stacked: sums[i] is over workers 0 to i.
function stackMemory(series) {
    const moments = [...new Set(series.flatMap((points) => points.map((point) => point[0])))].sort((a, b) => a - b);
    if (!moments.length) {
        return null;
    }
    const below = new Float64Array(moments.length);
    const sums = series.map((points) => {
        let next = 0;
        let live = points.length ? points[0][1] : 0; // before its first point it held what it has there
        return moments.map((moment, m) => {
            while (next < points.length && points[next][0] <= moment) {
                live = points[next++][1];
            }
            below[m] += live;
            return below[m];
        });
    });
    return { moments, sums, total: sums[sums.length - 1], peak: Math.max(...extentValues(sums[sums.length - 1])) };
}

function extentValues(values) {
    const extent = extentOf(values);
    return extent ? [extent.min, extent.max] : [0];
}
