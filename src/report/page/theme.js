// Light and dark, and what is drawn in: colours of runs, stages and workers that stay apart for every kind of colour
// vision and in grey. Lines and text are colours of the style sheet; canvases ask for them here.

const theme = (() => {
    const names = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
    const order = Object.keys(names);
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const listeners = [];
    let chosen = "auto";
    let printing = false;
    let cache = new Map();

    // Pages from files may not have a storage.
    const remember = (value) => {
        try {
            window.localStorage.setItem("carousel-theme", value);
        } catch {
            // then the choice lasts as long as the page
        }
    };
    const recall = () => {
        try {
            return window.localStorage.getItem("carousel-theme");
        } catch {
            return null;
        }
    };

    const isDark = () => !printing && (chosen === "dark" || (chosen === "auto" && system.matches));

    const apply = () => {
        document.documentElement.dataset.theme = isDark() ? "dark" : "light";
        document.documentElement.toggleAttribute("data-printing", printing);
        cache = new Map();
        const button = document.getElementById("theme");
        button.textContent = names[chosen];
        listeners.forEach((listener) => listener());
    };

    const start = () => {
        chosen = order.includes(recall()) ? recall() : "auto";
        document.getElementById("theme").addEventListener("click", () => {
            chosen = order[(order.indexOf(chosen) + 1) % order.length];
            remember(chosen);
            apply();
        });
        system.addEventListener("change", apply);
        const print = (value) => () => {
            printing = value;
            apply();
        };
        window.addEventListener("beforeprint", print(true));
        window.addEventListener("afterprint", print(false));
        apply();
    };

    // A colour of the style sheet.
    const colour = (name) => {
        if (!cache.has(name)) {
            cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
        }
        return cache.get(name);
    };

    return { start, colour, isDark, isPrinting: () => printing, onChange: (listener) => listeners.push(listener) };
})();

// ---- scales -----------------------------------------------------------------------------------

const scales = {
    // Those of `carousel plan --svg`; lighter at their dark end on a dark page.
    stage: {
        light: ["472d7b", "3b528b", "2c728e", "21918c", "27ad81", "5ec962"],
        dark: ["8f74d6", "6f8fe0", "4aa8d0", "38bdb2", "55cf97", "a5e37c"],
    },
    worker: { light: ["b35806", "e08214", "fdb863", "fee0b6"], dark: ["a04a04", "d07818", "f0ac5a", "fbdcb0"] },
};
const versionColours = {
    light: ["0072b2", "e69f00", "009e73", "cc79a7"],
    dark: ["4aa3df", "f0b429", "35c79a", "e09cc4"],
};
const runColours = 8; // --run-0 to --run-7 of the style sheet
const runDashes = [[], [9, 4], [3, 3], [12, 3, 3, 3]];

const parts = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));

function mix(a, b, share) {
    return a.map((part, channel) => Math.round(part + share * (b[channel] - part)));
}

const css = (rgb) => `rgb(${rgb.join(",")})`;

// As colour components; `at` from 0 to 1.
function along(name, at) {
    const scale = scales[name][theme.isDark() ? "dark" : "light"];
    const place = clamp(at, 0, 1) * (scale.length - 1);
    const below = Math.min(Math.floor(place), scale.length - 2);
    return mix(parts(scale[below]), parts(scale[below + 1]), place - below);
}

const placeOf = (index, count) => (count > 1 ? index / (count - 1) : 0);
const stageColour = (stage, stages) => along("stage", placeOf(stage, stages));
const workerColour = (worker, workers) => along("worker", placeOf(worker, workers));
const versionColour = (version) => parts(versionColours[theme.isDark() ? "dark" : "light"][((version % 4) + 4) % 4]);

// Towards the page's own colour.
function pale(rgb, share) {
    const paper = theme.colour("panel");
    return mix(rgb, paper.startsWith("#") ? parts(paper.slice(1)) : [255, 255, 255], share);
}

// A readable text colour on it.
function inkOn(rgb) {
    const light = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2];
    return light > 140 ? "#1f2933" : "#ffffff";
}

const runColour = (run) => theme.colour(`run-${run.index % runColours}`);
// Runs beyond the eighth reuse the first ones' colours with other dashes.
const runDash = (run) => runDashes[Math.floor(run.index / runColours) % runDashes.length];

// A swatch in front of a name; its colour follows the theme.
function swatch(colourOf, className = "") {
    const made = el("span", { class: `swatch ${className}`, "aria-hidden": "true" });
    const paint = () => {
        made.style.background = colourOf();
    };
    theme.onChange(paint);
    paint();
    return made;
}

const runName = (run) => el("span", { class: "run-name" }, swatch(() => runColour(run)), run.name);
