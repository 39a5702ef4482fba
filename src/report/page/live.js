// A page of runs in progress reloads itself from time to time. It pauses while the reader zooms or has paused it, and
// stays where it was scrolled to.

const live = (() => {
    const place = "carousel-live";
    let paused = false;

    // Pages from files may not have a storage; then each load begins at the top.
    const remember = () => {
        try {
            window.sessionStorage.setItem(place, JSON.stringify({ href: window.location.href, y: window.scrollY }));
        } catch {
            // it scrolls back to the top
        }
    };
    const recall = () => {
        try {
            const kept = JSON.parse(window.sessionStorage.getItem(place) || "null");
            window.sessionStorage.removeItem(place);
            return kept && kept.href === window.location.href ? kept.y : null;
        } catch {
            return null;
        }
    };

    const start = (report) => {
        const y = recall();
        if (isNumber(y)) {
            window.scrollTo(0, y);
        }
        if (!isNumber(report.reload_seconds)) {
            return;
        }
        const button = el("button", { type: "button", id: "live", title: "Pause or go on loading what the runs write" });
        document.querySelector(".tools").prepend(button);
        const holds = () => paused || View.zoomed();
        const show = () => {
            button.textContent = paused ? "Live: paused" : View.zoomed() ? "Live: waits, zoomed" : "Live";
            button.setAttribute("aria-pressed", String(!paused));
        };
        button.addEventListener("click", () => {
            paused = !paused;
            show();
        });
        show();
        window.setInterval(() => {
            show();
            if (!holds()) {
                remember();
                window.location.reload();
            }
        }, 1000 * report.reload_seconds);
    };

    return { start };
})();
