// Helpers that all parts of the page use: elements, numbers as text, and a range of an axis that several charts can share.

// el("p", { class: "note" }, "text", child): an element. Attributes that are null or false are left out.
function el(tag, attributes, ...children) {
    return fillElement(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
    return fillElement(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fillElement(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value !== null && value !== undefined && value !== false) {
            element.setAttribute(name, value === true ? "" : value);
        }
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
}

// A row of buttons of which one is selected; choose(value) is called when the selection changes.
function choice(label, options, chosen, choose) {
    const buttons = options.map(([value, text]) => {
        const button = el("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
        button.addEventListener("click", () => {
            for (const other of buttons) {
                other.setAttribute("aria-pressed", String(other === button));
            }
            choose(value);
        });
        return button;
    });
    return el("span", { class: "choice", role: "group", "aria-label": label }, el("span", { class: "label" }, label), buttons);
}

// ---- numbers ----------------------------------------------------------------------------------

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const clamp = (value, least, most) => Math.min(Math.max(value, least), most);

// Three significant digits, without an exponent where that reads better.
function short(value) {
    if (!isNumber(value)) {
        return "–";
    }
    const size = Math.abs(value);
    if (size === 0) {
        return "0";
    }
    if (size >= 1e6 || size < 1e-4) {
        return value.toExponential(2).replace("e+", "e");
    }
    return size >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

const byteUnits = ["B", "kB", "MB", "GB", "TB", "PB"];

// The unit in which `most` bytes are a number below 1000.
function byteUnit(most) {
    let power = 0;
    while (power < byteUnits.length - 1 && Math.abs(most) >= 1000 ** (power + 1)) {
        power++;
    }
    return { name: byteUnits[power], size: 1000 ** power };
}

function bytes(value) {
    if (!isNumber(value)) {
        return "–";
    }
    const unit = byteUnit(value);
    return `${short(value / unit.size)} ${unit.name}`;
}

const percent = (share, digits = 1) => (isNumber(share) ? `${(100 * share).toFixed(digits)} %` : "–");
const ratio = (value) => (isNumber(value) ? value.toFixed(2) : "–");

// As many decimals as needed to tell neighbouring labels of an axis apart.
function tickNumber(value, step) {
    const size = Math.max(Math.abs(value), step);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) {
        return value === 0 ? "0" : value.toExponential(Math.max(Math.ceil(Math.log10(size / step)), 0)).replace("e+", "e");
    }
    let digits = 0;
    while (digits < 8 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits) {
        digits++;
    }
    return value.toFixed(digits);
}

function duration(microseconds) {
    if (!isNumber(microseconds)) {
        return "–";
    }
    if (microseconds === 0) {
        return "0";
    }
    if (Math.abs(microseconds) < 1000) {
        return `${short(microseconds)} µs`;
    }
    return Math.abs(microseconds) < 1e6 ? `${short(microseconds / 1e3)} ms` : `${short(microseconds / 1e6)} s`;
}

// The values of an axis at which it has labels: 1, 2 or 5 times a power of ten, about `count` of them.
function ticksOf(min, max, count) {
    const rough = (max - min) / Math.max(count, 1);
    if (!(rough > 0)) {
        return [min];
    }
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough * 0.999);
    const ticks = [];
    for (let n = Math.ceil(min / step - 1e-9); n * step <= max + 1e-9 * step; n++) {
        ticks.push(n * step);
    }
    return ticks;
}

function extentOf(values) {
    let min = Infinity;
    let max = -Infinity;
    for (const value of values) {
        if (isNumber(value)) {
            min = Math.min(min, value);
            max = Math.max(max, value);
        }
    }
    return min <= max ? { min, max } : null;
}

// ---- ranges -----------------------------------------------------------------------------------

// The part of an axis that is shown. Charts that share one zoom together.
class View {
    constructor(min, max) {
        this.full = { min, max: max > min ? max : min + 1 };
        this.min = this.full.min;
        this.max = this.full.max;
        this.listeners = [];
        View.all.push(this);
    }

    // True if the reader has zoomed into any chart.
    static zoomed() {
        return View.all.some((view) => !view.isWhole);
    }

    onChange(listener) {
        this.listeners.push(listener);
    }

    get isWhole() {
        return this.min === this.full.min && this.max === this.full.max;
    }

    set(min, max) {
        const whole = this.full.max - this.full.min;
        const wide = clamp(max - min, whole * 1e-5, whole);
        const from = clamp(min, this.full.min, this.full.max - wide);
        const to = wide === whole ? this.full.max : from + wide;
        if (from !== this.min || to !== this.max) {
            this.min = from;
            this.max = to;
            this.listeners.forEach((listener) => listener());
        }
    }

    reset() {
        this.set(this.full.min, this.full.max);
    }

    // Zooms and keeps `centre` in place.
    zoom(factor, centre = (this.min + this.max) / 2) {
        this.set(centre - (centre - this.min) * factor, centre + (this.max - centre) * factor);
    }

    // Moves by a share of what is shown.
    pan(share) {
        const move = share * (this.max - this.min);
        this.set(clamp(this.min + move, this.full.min, this.full.max - (this.max - this.min)),
            clamp(this.max + move, this.full.min + (this.max - this.min), this.full.max));
    }
}

View.all = [];

const keyHelp = "Click it, then: wheel or + and − zoom, arrow keys move, 0 or a double click shows all.";

// Keys for the chart that has the focus.
function bindKeys(element, view) {
    const actions = {
        "+": () => view.zoom(0.7), "=": () => view.zoom(0.7), "-": () => view.zoom(1 / 0.7), "_": () => view.zoom(1 / 0.7),
        ArrowLeft: () => view.pan(-0.2), ArrowRight: () => view.pan(0.2),
        Home: () => view.pan(-1e9), End: () => view.pan(1e9), 0: () => view.reset(), Escape: () => view.reset(),
    };
    element.addEventListener("keydown", (event) => {
        const action = event.ctrlKey || event.metaKey || event.altKey ? null : actions[event.key];
        if (action) {
            action();
            event.preventDefault();
        }
    });
}

// The wheel zooms once the chart has the focus, or with Ctrl; else it scrolls the page, as everywhere.
function bindWheel(element, view, valueAt) {
    element.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !element.contains(document.activeElement)) {
            return;
        }
        event.preventDefault();
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
            view.pan(event.deltaX / 600);
        } else {
            view.zoom(Math.exp(clamp(event.deltaY, -100, 100) * 0.004), valueAt(event));
        }
    }, { passive: false });
}

// The same as buttons.
function zoomButtons(view) {
    const button = (text, title, action) => {
        const made = el("button", { type: "button", title, "aria-label": title }, text);
        made.addEventListener("click", action);
        return made;
    };
    const all = button("all", "Show all", () => view.reset());
    const update = () => {
        all.disabled = view.isWhole;
    };
    view.onChange(update);
    update();
    return el("span", { class: "zoom" }, button("−", "Zoom out", () => view.zoom(1 / 0.7)),
        button("+", "Zoom in", () => view.zoom(0.7)), all);
}
