// Puts the page together: a section for everything that the runs have data for.

function section(id, title, lead, ...content) {
    const shown = content.flat(2).filter(Boolean);
    if (!shown.length) {
        return null;
    }
    return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title),
        lead ? el("p", { class: "lead" }, lead) : null, shown);
}

// Side by side, up to three in a row where there is room.
function grid(figures, className = "grid") {
    return figures.length ? el("div", { class: className, style: `--columns: ${Math.min(figures.length, 3)}` }, figures) : null;
}

function makePage(report) {
    const { runs } = report;
    const main = document.getElementById("main");
    document.getElementById("title").textContent = report.title;
    document.getElementById("made-by").textContent = `Made by carousel report ${report.carousel}.`;
    const contents = document.getElementById("contents");
    const add = (id, title, lead, ...content) => {
        const made = section(id, title, lead, content);
        if (made) {
            main.append(made);
            contents.append(el("a", { href: `#${id}` }, title));
        }
    };
    add("runs", runs.length > 1 ? "Runs" : "Run", null, headlines(runs), notesOf(runs));
    add("memory", "Activation memory",
        "What micro-batches hold for their backward passes, worker on worker, over the steps that were recorded. "
        + "Time is shared with the schedule below: zooming one zooms the other.",
        grid(memoryFigures(runs)));
    add("schedule", "Schedule as executed",
        `Each box is a forward or backward pass (′) of one stage. ${keyHelp} Dragging marks a range to zoom to.`,
        grid(ganttFigures(runs)));
    add("learning", "Learning", null, grid(curveFigures(runs), "grid wide"));
    add("classes", "Classes", "Which classes were taken for which in the last evaluation.", grid(classFigures(runs), "grid wide"));
    add("traffic", "Bytes sent", "In each slot of one cycle, all ranks together.", grid(trafficFigures(runs)), silentRuns(runs));
    add("numbers", "Numbers", null, commonSettings(runs), summaryTable(runs));
    add("partition", "Partition", "Which part of the model each stage is.", partitionFigures(runs));
}

theme.start();
const report = readReport();
makePage(report);
live.start(report);
document.documentElement.dataset.ready = "true";
