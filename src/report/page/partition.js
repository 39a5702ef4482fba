// How the model was cut into stages: shares of work, weights and activations, and the operations at the ends.

const shareNames = [["flops", "FLOPs"], ["parameter_bytes", "weights"], ["activation_bytes", "activations"]];

const shareTotal = (partition, name) => partition.reduce((sum, stage) => sum + (stage[name] || 0), 0);

function drawShares(partition, width) {
    const left = 84;
    const high = 26;
    const wide = width - left - 16;
    const rows = shareNames.filter(([name]) => shareTotal(partition, name) > 0);
    const bars = rows.map(([name, label], row) => {
        const total = shareTotal(partition, name);
        let at = left;
        const boxes = partition.map((stage, j) => {
            const share = (stage[name] || 0) / total;
            const colour = stageColour(j, partition.length);
            const x = at;
            at += share * wide;
            const value = name === "flops" ? `${short(stage[name])} FLOPs` : bytes(stage[name]);
            return svg("g", {}, svg("title", {}, `stage ${j}: ${value}, ${percent(share)} of ${label}`),
                svg("rect", { x, y: row * (high + 8), width: Math.max(share * wide - 1, 0), height: high, fill: css(colour) }),
                share * wide > 20 ? svg("text", { x: x + (share * wide) / 2, y: row * (high + 8) + 17, "text-anchor": "middle", style: `fill: ${inkOn(colour)}` }, String(j)) : null);
        });
        return [svg("text", { x: left - 8, y: row * (high + 8) + 17, "text-anchor": "end" }, label), boxes];
    });
    const height = Math.max(rows.length * (high + 8), 1);
    return svg("svg", { class: "shares", width, height, viewBox: `0 0 ${width} ${height}`, role: "img" }, bars.flat(2));
}

function stageTable(partition) {
    const totals = Object.fromEntries(shareNames.map(([name]) => [name, shareTotal(partition, name)]));
    const share = (stage, name) => (totals[name] > 0 ? percent((stage[name] || 0) / totals[name]) : "–");
    const head = ["stage", "operations", "from", "to", "FLOPs", "weights", "activations"];
    const rows = partition.map((stage, j) => el("tr", {},
        el("th", { scope: "row" }, swatch(() => css(stageColour(j, partition.length))), String(isNumber(stage.stage) ? stage.stage : j)),
        el("td", { class: "number" }, isNumber(stage.operations) ? String(stage.operations) : "–"),
        el("td", {}, el("code", {}, stage.first || "–")), el("td", {}, el("code", {}, stage.last || "–")),
        el("td", { class: "number" }, share(stage, "flops")),
        el("td", { class: "number" }, bytes(stage.parameter_bytes)), el("td", { class: "number" }, bytes(stage.activation_bytes))));
    const table = el("table", {}, el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, rows));
    const scroll = el("div", { class: "table-scroll" }, table);
    return partition.length > 16 ? el("details", {}, el("summary", {}, `All ${partition.length} stages`), scroll) : scroll;
}

function partitionFigure(partition, runs) {
    const { figure, body } = chartFigure("partition", {
        title: runs.map((run) => run.name).join(", "), description: `The model in ${partition.length} stages.`,
    });
    figure.dataset.stages = partition.length;
    const place = el("div", { class: "plot" });
    body.append(place);
    keepDrawn(body, (width) => place.replaceChildren(drawShares(partition, width)));
    figure.append(stageTable(partition));
    return figure;
}

// Runs with the same partition share a figure.
function partitionFigures(runs) {
    const groups = new Map();
    for (const run of runs.filter((one) => one.record && one.record.partition.length)) {
        const key = JSON.stringify(run.record.partition);
        groups.set(key, [...(groups.get(key) || []), run]);
    }
    return [...groups.values()].map((group) => partitionFigure(group[0].record.partition, group));
}
