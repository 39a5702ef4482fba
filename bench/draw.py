"""Draws charts as SVG: panels with lines, bands and stacked areas. Used by curves.py and the figures of results.

A panel is a dictionary: title, x and y (labels), marks (a list), and if wanted x_range, y_range, x_ticks with x_names, log (a
logarithmic y, without bars), legend (True, or "left").
A mark is a dictionary too:

    {"kind": "line", "points": [(x, y), ...], "name": ..., "colour": n, "dash": text, "width": pixels, "dots": whether}
    {"kind": "band", "points": [(x, low, high), ...], "colour": n, "fade": opacity, "name": ...}
    {"kind": "level", "at": y, "name": ..., "colour": n, "dash": text}     a line across the panel
    {"kind": "bars", "points": [(x, y), ...], "colour": n, "name": ..., "span": width in units of x}

Bands of constant fade on top of each other are stacked areas.
"""

import html
import math

# Colours that are safe for colour-blind readers, on white and in print; dashes help where colours do not.
COLOURS = ("#1f6fb4", "#d1570a", "#2a8a3e", "#7b4fb3", "#b3264b", "#5c6670", "#0f8b8d", "#a67c00")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "", "7 4", "2 3", "9 3 2 3")
INK, SOFT, GRID = "#1a1a1a", "#444444", "#dddddd"
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 34, 44


def colour_of(mark):
    colour = mark.get("colour", 0)
    return colour if isinstance(colour, str) else COLOURS[colour % len(COLOURS)]


def nice_step(extent):
    """The distance between ticks, 1, 2 or 5 times a power of ten, for four to nine ticks."""
    step = 10.0 ** math.floor(math.log10(extent / 8)) if extent > 0 else 1.0
    for factor in (1, 2, 5, 10):
        if extent / (step * factor) <= 8:
            return step * factor
    return step * 10


def ticks(low, high):
    step = nice_step(high - low)
    first = math.ceil(low / step - 1e-9)
    return [round(n * step, 12) for n in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low, high):
    """1, 2 and 5 times the powers of ten."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [factor * 10.0**n for n in range(first, last + 1) for factor in (1, 2, 5)]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def number(value):
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 10000 else f"{value:g}"


def extents(panel):
    xs, ys = [], []
    for mark in panel["marks"]:
        if mark["kind"] == "level":
            ys.append(mark["at"])
            continue
        ys += [0] if mark["kind"] == "bars" else []
        for point in mark["points"]:
            xs.append(point[0])
            ys.extend(point[1:])
    low_x, high_x = panel.get("x_range") or (min(xs), max(xs))
    low_y, high_y = panel.get("y_range") or (min(ys), max(ys) + 0.04 * (max(ys) - min(ys)))
    return low_x, high_x if high_x > low_x else low_x + 1, low_y, high_y if high_y > low_y else low_y + 1


def draw_mark(mark, x, y, left, right):
    colour = colour_of(mark)
    if mark["kind"] == "level":
        return (f'<path d="M{left} {y(mark["at"]):.1f}H{right}" stroke="{colour}" stroke-width="1.4" '
                f'stroke-dasharray="{mark.get("dash", "")}"/>')  # fmt: skip
    if mark["kind"] == "band":
        up = " ".join(f"{x(p[0]):.1f},{y(p[2]):.1f}" for p in mark["points"])
        down = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in reversed(mark["points"]))
        return f'<polygon points="{up} {down}" fill="{colour}" fill-opacity="{mark.get("fade", 0.18)}"/>'
    if mark["kind"] == "bars":
        half, base = mark.get("span", 0.8) / 2, y(0)
        path = "".join(f"M{x(p[0] - half):.1f} {base:.1f}V{y(p[1]):.1f}H{x(p[0] + half):.1f}V{base:.1f}Z"
                       for p in mark["points"])  # fmt: skip
        return f'<path d="{path}" fill="{colour}" fill-opacity="{mark.get("fade", 0.85)}"/>'
    points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in mark["points"])
    dots = "".join(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in mark["points"] if mark.get("dots"))
    return (f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{mark.get("width", 1.6)}" '
            f'stroke-dasharray="{mark.get("dash", "")}"/>{dots}')  # fmt: skip


def draw_legend(marks, left, top):
    out = []
    for row, mark in enumerate(mark for mark in marks if mark.get("name")):
        y, colour = top + 16 + 17 * row, colour_of(mark)
        if mark["kind"] in ("band", "bars"):
            fade = mark.get("fade", 0.85 if mark["kind"] == "bars" else 0.35)
            sample = f'<rect x="{left}" y="{y - 10}" width="28" height="10" fill="{colour}" fill-opacity="{fade}"/>'
        else:
            sample = (f'<path d="M{left} {y - 4}h28" stroke="{colour}" stroke-width="2" '
                      f'stroke-dasharray="{mark.get("dash", "")}"/>')  # fmt: skip
        out.append(f'{sample}<text x="{left + 36}" y="{y}" fill="{INK}">{html.escape(mark["name"])}</text>')
    return out


def draw_panel(panel, at_x, at_y, width, height):
    left, right, top, bottom = at_x + LEFT, at_x + width - RIGHT, at_y + TOP, at_y + height - BOTTOM
    low_x, high_x, low_y, high_y = extents(panel)
    log, names = panel.get("log"), dict(zip(panel.get("x_ticks", ()), panel.get("x_names", ())))

    def x(value):
        return left + (right - left) * (value - low_x) / (high_x - low_x)

    def y(value):
        share = math.log(value / low_y) / math.log(high_y / low_y) if log else (value - low_y) / (high_y - low_y)
        return bottom - (bottom - top) * share

    out = [f'<text x="{left}" y="{top - 12}" font-size="14" fill="{INK}">{html.escape(panel["title"])}</text>']
    for value in log_ticks(low_y, high_y) if log else ticks(low_y, high_y):
        out.append(f'<path d="M{left} {y(value):.1f}H{right}" stroke="{GRID}"/><text x="{left - 8}" '
                   f'y="{y(value) + 4:.1f}" text-anchor="end" fill="{SOFT}">{number(value)}</text>')  # fmt: skip
    for value in panel.get("x_ticks") or ticks(low_x, high_x):
        out.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle" fill="{SOFT}">'
                   f'{names.get(value) or number(value)}</text>')  # fmt: skip
    out += [draw_mark(mark, x, y, left, right) for mark in panel["marks"]]
    labels = "; ".join(panel[key] for key in ("x", "y") if panel.get(key))
    out.append(f'<text x="{right}" y="{at_y + height - 8}" text-anchor="end" fill="{SOFT}">{html.escape(labels)}'
               f'</text>')  # fmt: skip
    if panel.get("legend"):
        longest = max((len(mark["name"]) for mark in panel["marks"] if mark.get("name")), default=0)
        out += draw_legend(panel["marks"], left + 16 if panel["legend"] == "left" else right - 48 - 6.8 * longest, top)
    return out


def figure(panels, columns=1, width=760, height=360, title=None):
    """Arranges panels in rows of `columns` and returns the text of an SVG file."""
    rows, head = -(-len(panels) // columns), 30 if title else 0
    total = head + rows * height
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif" '
           f'font-size="12"><rect width="{width}" height="{total}" fill="#ffffff"/>']  # fmt: skip
    if title:
        out.append(f'<text x="{LEFT}" y="22" font-size="16" fill="{INK}">{html.escape(title)}</text>')
    wide = width // columns
    for n, panel in enumerate(panels):
        out += draw_panel(panel, n % columns * wide, head + n // columns * height, wide, height)
    return "\n".join([*out, "</svg>", ""])
