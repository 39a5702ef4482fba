// Run in a report by page.py: looks at the page and uses it as a reader would, and tells what it saw. Nothing is judged
// here.
(async () => {
    const seen = { extents: [] };
    const figures = (name) => [...document.querySelectorAll(`figure[data-chart="${name}"]`)];
    const frame = () => new Promise((resolve) => {
        requestAnimationFrame(() => setTimeout(resolve, 20));
    });
    const settle = async () => {
        for (let n = 0; n < 5; n++) {
            await frame();
        }
    };
    const viewOf = (figure) => ({ min: Number(figure.dataset.viewMin), max: Number(figure.dataset.viewMax) });
    // A number that another picture would not have.
    const inkOf = (canvas) => [...canvas.toDataURL()].reduce((hash, letter) => (hash * 31 + letter.charCodeAt(0)) % 1000000007, 0);
    const pointer = (canvas, type, x, y, more = {}) => {
        const box = canvas.getBoundingClientRect();
        canvas.dispatchEvent(new PointerEvent(type, {
            bubbles: true, cancelable: true, button: 0, pointerId: 1, clientX: box.left + x, clientY: box.top + y, ...more,
        }));
    };
    // Events that no hand made have no pointer to capture.
    Element.prototype.setPointerCapture = () => {};

    await settle();
    seen.ready = document.documentElement.dataset.ready;
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
        seen.extents.push({ ...figure.dataset });
    }
    seen.title = document.title;
    seen.heading = document.getElementById("title").textContent;
    seen.sections = [...document.querySelectorAll("main section")].map((section) => section.id);
    seen.numbers = document.querySelector("#numbers").textContent;
    seen.notes = document.getElementById("notes") ? document.getElementById("notes").textContent : "";
    seen.headlines = [...document.querySelectorAll(".headlines p")].map((line) => line.textContent);
    seen.resources = performance.getEntriesByType("resource").length;
    seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    seen.unnamed = [...document.querySelectorAll("button, canvas, figure")]
        .filter((one) => !one.textContent.trim() && !one.closest("[aria-label]")).length;

    const gantt = figures("schedule").find((figure) => figure.dataset.run === "cdp-v2");
    const memory = figures("memory").find((figure) => figure.dataset.run === "cdp-v2");
    if (gantt) {
        const canvas = gantt.querySelector("canvas");
        const wheel = (deltaY, x) => {
            const box = canvas.getBoundingClientRect();
            canvas.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true, deltaY, clientX: box.left + x, clientY: box.top + 40 }));
        };
        const width = canvas.clientWidth;
        const step = async (name, action) => {
            await action();
            await settle();
            seen[name] = { gantt: viewOf(gantt), memory: viewOf(memory), ink: inkOf(canvas), all: gantt.querySelector(".zoom button:last-child").disabled };
        };
        const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
        await step("atFirst", () => {});
        await step("wheelWithoutFocus", () => wheel(-100, width / 2));
        await step("wheel", () => {
            canvas.focus();
            wheel(-100, width / 2);
        });
        await step("arrow", () => key("ArrowRight"));
        await step("reset", () => key("0"));
        await step("plus", () => key("+"));
        await step("doubleClick", () => canvas.dispatchEvent(new MouseEvent("dblclick", { bubbles: true })));
        await step("drag", () => {
            pointer(canvas, "pointerdown", width * 0.4, 60);
            pointer(canvas, "pointermove", width * 0.5, 60);
            pointer(canvas, "pointerup", width * 0.6, 60);
        });
        await step("button", () => gantt.querySelector(".zoom button:last-child").click());
        seen.plotWidth = width;
        await step("byLanes", () => [...gantt.querySelectorAll(".choice button")].find((button) => button.textContent === "threads").click());
        seen.laneRows = Number(gantt.dataset.rows);
        await step("byVersion", () => [...gantt.querySelectorAll(".choice button")].find((button) => button.textContent === "version").click());
        for (let x = 90; x < width && !seen.tip; x += 3) {
            pointer(canvas, "pointermove", x, 40);
            const tip = gantt.querySelector(".tip");
            seen.tip = tip.hidden ? "" : tip.textContent;
        }
        // The memory chart zooms by a range that is drawn over it, and takes the schedule along.
        const over = memory.querySelector(".u-over");
        const box = over.getBoundingClientRect();
        const mouse = (target, type, share) => target.dispatchEvent(new MouseEvent(type, {
            bubbles: true, cancelable: true, button: 0, movementX: 1, clientX: box.left + share * box.width, clientY: box.top + 50,
        }));
        await step("select", async () => {
            mouse(over, "mousedown", 0.25);
            mouse(over, "mousemove", 0.5);
            await frame();
            mouse(document, "mouseup", 0.5);
        });
    }
    seen.themes = [];
    for (let n = 0; n < 3; n++) {
        document.getElementById("theme").click();
        await settle();
        seen.themes.push([document.getElementById("theme").textContent, document.documentElement.dataset.theme,
            getComputedStyle(document.body).backgroundColor]);
    }
    window.dispatchEvent(new Event("beforeprint"));
    await settle();
    seen.printed = [document.documentElement.dataset.theme, gantt ? gantt.querySelector("canvas").clientWidth : 0];
    window.dispatchEvent(new Event("afterprint"));
    await settle();
    return seen;
})();
