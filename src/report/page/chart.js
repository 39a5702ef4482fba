// A chart of lines: uPlot in a figure, with the page's colours, keys, a box that tells what is under the pointer, and
// the extents of its data as attributes (for tests).

const printWidth = 680; // pixels of a page of paper between its margins
const chartFont = '12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif';

// The frame of all charts: title, tools, the chart itself, and what it shows in words.
function chartFigure(name, { title, description, tools = [], legend = null, note = null }) {
    const body = el("div", { class: "chart-body" });
    const figure = el("figure", { class: "chart", "data-chart": name, "aria-label": `${title}. ${description}` },
        el("div", { class: "chart-head" }, el("h3", {}, title), el("div", { class: "chart-tools" }, tools)), body, legend,
        note ? el("figcaption", {}, note) : null);
    return { figure, body };
}

function setExtents(figure, x, y) {
    const values = { xMin: x && x.min, xMax: x && x.max, yMin: y && y.min, yMax: y && y.max };
    for (const [name, value] of Object.entries(values)) {
        if (isNumber(value)) {
            figure.dataset[name] = value;
        }
    }
}

function showView(figure, view) {
    const update = () => {
        figure.dataset.viewMin = view.min;
        figure.dataset.viewMax = view.max;
    };
    view.onChange(update);
    update();
}

// Calls draw(width) once the chart is in the page, and again when its width changes or the colours do.
function keepDrawn(body, draw) {
    let width = 0;
    const redraw = () => {
        const wanted = theme.isPrinting() ? printWidth : body.clientWidth;
        if (wanted > 0) {
            width = wanted;
            draw(wanted);
        }
    };
    // Not at once: drawing may change the page's height, which must not happen while the observer reports.
    new ResizeObserver(() => requestAnimationFrame(() => {
        if (!theme.isPrinting() && body.clientWidth !== width) {
            redraw();
        }
    })).observe(body);
    theme.onChange(redraw);
}

// ---- the box under the pointer ----------------------------------------------------------------

function tipBox(body) {
    const box = el("div", { class: "tip", hidden: true });
    body.append(box);
    return {
        hide: () => {
            box.hidden = true;
        },
        // Beside the pointer, inside the chart.
        show: (x, y, ...content) => {
            box.replaceChildren(...content);
            box.hidden = false;
            const room = body.clientWidth - box.offsetWidth;
            box.style.left = `${clamp(x + 14 > room ? x - box.offsetWidth - 14 : x + 14, 0, Math.max(room, 0))}px`;
            box.style.top = `${Math.max(y - box.offsetHeight - 8, 0)}px`;
        },
    };
}

const tipLine = (colour, name, value) => {
    const mark = el("span", { class: "swatch" });
    mark.style.background = colour;
    return el("div", { class: "tip-line" }, mark, el("span", {}, name), el("b", {}, value));
};

// ---- uPlot ------------------------------------------------------------------------------------

const wholeSteps = [1, 2, 5].flatMap((digit) => [...Array(9).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);

// One axis in the page's colours. `whole`: it counts something.
function axisOf({ label, format = tickNumber, whole, size }) {
    return {
        label, labelFont: chartFont, font: chartFont, labelSize: 20, size,
        stroke: () => theme.colour("faint"),
        grid: { stroke: () => theme.colour("guide"), width: 1 },
        ticks: { stroke: () => theme.colour("guide"), width: 1, size: 4 },
        values: (_, values) => values.map((value) => (value === null ? null : format(value, Math.abs(values[1] - values[0]) || 1))),
        ...(whole ? { incrs: wholeSteps } : {}),
    };
}

// The series' newest value at or before a place in the data.
function valueBefore(values, index) {
    for (let at = index; at >= 0; at--) {
        if (isNumber(values[at])) {
            return values[at];
        }
    }
    return null;
}

function plotOptions(spec, view, tip, width) {
    const shown = spec.series.map((series) => ({ points: { show: false }, spanGaps: true, ...series }));
    return {
        width, height: theme.isPrinting() ? spec.height * 0.62 : spec.height, padding: [12, 16, 0, 0], legend: { show: false },
        scales: {
            x: { time: false, min: view.min, max: view.max },
            y: { distr: spec.y.log ? 3 : 1, ...(spec.y.range ? { range: spec.y.range } : {}) },
        },
        axes: [axisOf({ ...spec.x, size: 34 }), axisOf({ ...spec.y, size: 56 })],
        series: [{}, ...shown],
        cursor: {
            y: false, points: { show: false }, drag: { x: true, y: false, setScale: false },
            bind: { dblclick: () => () => view.reset() },
        },
        hooks: {
            draw: spec.draw ? [spec.draw] : [],
            setSelect: [(plot) => {
                if (plot.select.width > 3) {
                    view.set(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
                }
                plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            }],
            setCursor: [(plot) => {
                const { idx, left, top } = plot.cursor;
                if (idx === null || idx === undefined || left < 0) {
                    tip.hide();
                    return;
                }
                const lines = spec.tip(idx, plot);
                tip.show(left + plot.bbox.left / devicePixelRatio, top, ...lines);
            }],
        },
    };
}

// A chart that can be given another spec: {series, data, x, y, height, draw, tip}, and `extent` if the data's own is wider.
function lineChart(figure, body, view, spec) {
    const place = el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": `${figure.getAttribute("aria-label")} ${keyHelp}` });
    body.append(place);
    const tip = tipBox(body);
    let plot = null;
    let current = spec;
    const make = (width) => {
        if (plot) {
            plot.destroy();
        }
        plot = new uPlot(plotOptions(current, view, tip, width), current.data, place);
        const [x, ...ys] = current.data;
        setExtents(figure, current.extent || extentOf(x), extentOf(ys.flat()));
    };
    keepDrawn(body, make);
    view.onChange(() => plot && plot.setScale("x", { min: view.min, max: view.max }));
    showView(figure, view);
    bindKeys(place, view);
    bindWheel(place, view, (event) => plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x"));
    place.addEventListener("mouseleave", tip.hide);
    return {
        change: (next) => {
            current = next;
            make(body.clientWidth);
        },
    };
}

// Buttons that show and hide runs.
function runLegend(runs, toggle) {
    return el("div", { class: "legend" }, runs.map((run) => {
        const button = el("button", { type: "button", "aria-pressed": "true", title: `Show or hide ${run.name}` }, runName(run));
        button.addEventListener("click", () => {
            const on = button.getAttribute("aria-pressed") !== "true";
            button.setAttribute("aria-pressed", String(on));
            toggle(run, on);
        });
        return button;
    }));
}
