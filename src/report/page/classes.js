// Which classes were mistaken for which in the last evaluation: a matrix if there are few classes, else a list of the worst.

const mostColumns = 24;
const worstShown = 20;

// The file can come from anywhere, so only valid content is shown.
function classesOf(run) {
    const list = run.confusion && Array.isArray(run.confusion.per_class) ? run.confusion.per_class : [];
    return list.map((one, index) => {
        const pairs = Array.isArray(one.predicted) ? one.predicted : [];
        const answers = new Map(pairs.filter((pair) => Array.isArray(pair) && isNumber(pair[0]) && isNumber(pair[1])));
        const samples = [...answers.values()].reduce((sum, count) => sum + count, 0);
        return { index, name: String(one.name), answers, samples, right: answers.get(index) || 0 };
    });
}

const shareRight = (one) => (one.samples > 0 ? one.right / one.samples : null);

// Right answers and wrong ones have colours of their own; the more of a class's samples, the stronger.
function shadeOf(one, answer) {
    const share = one.samples > 0 ? (one.answers.get(answer) || 0) / one.samples : 0;
    const colour = answer === one.index ? "var(--accent)" : "var(--traffic)";
    return `background: color-mix(in srgb, ${colour} ${(70 * share).toFixed(0)}%, transparent)`;
}

function confusionMatrix(classes) {
    const head = el("tr", {}, el("th", { scope: "col" }, "class"), classes.map((one) => el("th", { scope: "col" }, one.name)),
        el("th", { scope: "col" }, "accuracy"));
    const rows = classes.map((one) => el("tr", {}, el("th", { scope: "row" }, one.name),
        classes.map((other) => el("td", {
            class: "number", style: shadeOf(one, other.index), title: `${one.name} taken for ${other.name}`,
        }, String(one.answers.get(other.index) || 0))),
        el("td", { class: "number" }, percent(shareRight(one)))));
    return el("table", {}, el("thead", {}, head), el("tbody", {}, rows));
}

function worstClasses(classes) {
    const counted = classes.filter((one) => one.samples > 0).sort((a, b) => shareRight(a) - shareRight(b)).slice(0, worstShown);
    const wrong = (one) => [...one.answers].filter(([index]) => index !== one.index).sort((a, b) => b[1] - a[1])[0];
    const rows = counted.map((one) => {
        const most = wrong(one);
        const taken = most && classes[most[0]] ? `${classes[most[0]].name} (${most[1]})` : "–";
        return el("tr", {}, el("th", { scope: "row" }, one.name), el("td", { class: "number" }, percent(shareRight(one))),
            el("td", { class: "number" }, String(one.samples)), el("td", {}, taken));
    });
    const head = ["class", "accuracy", "samples", "most often taken for"].map((name) => el("th", { scope: "col" }, name));
    return el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
}

function classFigure(run) {
    const classes = classesOf(run);
    const samples = classes.reduce((sum, one) => sum + one.samples, 0);
    const right = classes.reduce((sum, one) => sum + one.right, 0);
    const few = classes.length <= mostColumns;
    const { figure, body } = chartFigure("classes", {
        title: run.name, description: `Accuracy of ${classes.length} classes over ${samples} samples.`,
        note: `${right} of ${samples} samples right after step ${run.confusion.step}.`
            + `${few ? " Rows are classes, columns answers." : ` The ${worstShown} classes with the lowest accuracy.`}`,
    });
    figure.dataset.run = run.name;
    figure.dataset.right = right;
    figure.dataset.samples = samples;
    body.append(el("div", { class: "table-scroll" }, few ? confusionMatrix(classes) : worstClasses(classes)));
    return figure;
}

const classFigures = (runs) => runs.filter((run) => classesOf(run).length > 0).map(classFigure);
