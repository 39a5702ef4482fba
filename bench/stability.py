"""Which learning rates are stable under the delay: momentum SGD on a quadratic, for docs/delay.md and its figure.

With x = rate times curvature, momentum mu, a share s of workers one step late and the correction (c, a), the weights
obey a recursion whose roots are those of

    (z - 1) (z - mu) z^2 + x ((1 - s) z + s) ((1 + c) z^2 - c z + a (z - 1) (z - mu))

It is stable while all of them are inside the unit circle.

In training, each batch has a curvature of its own. With a relative deviation `spread` of it, the weights must converge in
the mean square: the same recursion for the second moments of weights, old weights, momentum and last gradient.
"""

import math
import sys

sys.dont_write_bytecode = True
from draw import DASHES, figure  # noqa: E402
from tables import print_table  # noqa: E402

MOMENTUM = 0.9
CURVES = [("no delay", 0, 0, 0), ("one step late", 1, 0, 0), ("the same, c 0.9, a 0", 1, 0.9, 0),
          ("the same, c 0.9, a 1", 1, 0.9, 1)]  # fmt: skip
CORRECTIONS = [("none", lambda s: (0, 0)), ("c 0.9, a 0", lambda s: (0.9, 0)), ("c 0.9, a 1", lambda s: (0.9, 1)),
               ("c 0.9, a = share", lambda s: (0.9, s))]  # fmt: skip
# For the table of damping: a name, the share of late workers, c and a.
DAMPED = [("dp, heavy ball", 0, 0, 0), ("dp, Nesterov", 0, 0.9, 0), ("dp, corrected", 0, 0.9, 1),
          ("cdp-v1, off", 1, 0, 0), ("cdp-v1", 1, 0.9, 1),
          ("cdp-v1, auto", 1, 1.71, 1), ("cdp-v1, M 2", 0.5, 0.45, 0.5),
          ("cdp-v1, M 2, auto", 0.5, 1.305, 0.5)]  # fmt: skip
# The same with more micro-batches, for the table of noise alone.
NOISY = [*DAMPED, *((f"cdp-v1, M {m}{word}", 1 / m, c, 1 / m) for m in (4, 8)
                    for word, c in (("", 0.9 / m), (", auto", 0.9 * (1 + 0.9 / m))))]  # fmt: skip
PRODUCTS = (0.01, 0.03, 0.1, 0.2, 0.3)
MOMENTA = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
SPREADS = (0, 0.5, 1, 2)  # of the curvatures of batches, relative to their mean


def product(p, q):
    """Multiplies polynomials: lists of coefficients, highest power first."""
    out = [0.0] * (len(p) + len(q) - 1)
    for i, a in enumerate(p):
        for j, b in enumerate(q):
            out[i + j] += a * b
    return out


def polynomial(x, s, c, a, mu=MOMENTUM):
    step = product(product([1, -1], [1, -mu]), [1, 0, 0])
    square = product([1, -1], [1, -mu])
    response = [1 + c + a * square[0], -c + a * square[1], a * square[2]]
    late = product([x * (1 - s), x * s], response)
    return [step[0]] + [step[n + 1] + late[n] for n in range(4)]


def radius(coefficients):
    """The absolute value of the largest root, by the Durand-Kerner method."""
    roots = [complex(0.4, 0.9) ** n for n in range(len(coefficients) - 1)]
    for _ in range(400):
        moved = 0.0
        for n, z in enumerate(roots):
            value = 0
            for k in coefficients:
                value = value * z + k
            for m, other in enumerate(roots):
                value /= (z - other) if m != n else 1
            roots[n] = z - value
            moved = max(moved, abs(value))
        if moved < 1e-12:
            break
    return max(abs(z) for z in roots)


def limit(s, c, a, most=4.0, mu=MOMENTUM):
    """The smallest x that is not stable, found by bisection; only the first crossing counts."""
    low, step = 0.0, 0.02
    while low < most and radius(polynomial(low + step, s, c, a, mu)) <= 1 + 1e-9:
        low += step
    high = low + step
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if radius(polynomial(middle, s, c, a, mu)) <= 1 + 1e-9 else (low, middle)
    return high


def stability_figure():
    lines = []
    for k, (name, s, c, a) in enumerate(CURVES):
        points = [(n / 100, round(radius(polynomial(n / 100, s, c, a)), 4)) for n in range(1, 101)]
        lines.append({"kind": "line", "points": points, "name": name, "colour": k, "dash": DASHES[k]})
    growth = {"title": "Largest root: above 1 the weights run away", "x": "rate × curvature", "y": "momentum 0.9",
              "marks": [*lines, {"kind": "level", "at": 1, "colour": "#444444", "dash": "1 3"}], "legend": "left",
              "y_range": (0.75, 1.6)}  # fmt: skip
    limits = [{"kind": "line", "points": [(n / 20, round(min(limit(n / 20, *of(n / 20)), 4), 3)) for n in range(21)],
               "name": name, "colour": k + 1 if k else 1, "dash": DASHES[k + 1]}
              for k, (name, of) in enumerate(CORRECTIONS)]  # fmt: skip
    shares = {"title": "Largest stable rate × curvature", "x": "share of workers that are one step late",
              "y": "by correction", "marks": limits, "legend": True, "y_range": (0, 4)}  # fmt: skip
    return figure([growth, shares], columns=2, width=960, height=340)


def step_matrix(x, s, c, a, mu=MOMENTUM):
    """The recursion of (weights, weights before, momentum, last gradient) at rate 1; linear in x."""
    gradient = [x * (1 - s), x * s, 0, 0]
    momentum = [gradient[0], gradient[1], mu, 0]
    change = [(1 + c) * m + a * g for m, g in zip(momentum, gradient)]
    return [[1 - change[0], -change[1], -(change[2] - c), a], [1, 0, 0, 0], momentum, gradient]


def moved(matrix, moments):
    """matrix * moments * its transpose"""
    half = [[sum(row[k] * moments[k][j] for k in range(4)) for j in range(4)] for row in matrix]
    return [[sum(line[k] * row[k] for k in range(4)) for row in matrix] for line in half]


def mean_square(x, s, c, a, spread):
    """The factor by which the root of the mean square error changes in each step, by power iteration."""
    mean, none = step_matrix(x, s, c, a), step_matrix(0, s, c, a)
    noise = [[spread * (m - n) for m, n in zip(*rows)] for rows in zip(mean, none)]
    moments = [[float(i == j) for j in range(4)] for i in range(4)]
    growth, steps = 0.0, 600
    for n in range(steps):
        parts = moved(mean, moments), moved(noise, moments)
        moments = [[p + q for p, q in zip(*rows)] for rows in zip(*parts)]
        size = sum(moments[i][i] for i in range(4))
        growth += math.log(size) if n >= steps // 2 else 0
        moments = [[m / size for m in row] for row in moments]
    return math.exp(growth / (steps - steps // 2) / 2)


def noisy_limit(s, c, a, spread):
    """The smallest x whose mean square does not converge."""
    low, high = 0.005, 4.0
    for _ in range(14):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if mean_square(middle, s, c, a, spread) < 1 else (low, middle)
    return high


def print_noise():
    rows = [[name, f"{c:g}, {a:g}", *(f"{noisy_limit(s, c, a, spread):.2f}" for spread in SPREADS)]
            for name, s, c, a in NOISY]  # fmt: skip
    header = ["", "c, a", *(f"{spread:g}" for spread in SPREADS)]
    print_table("Largest stable rate times curvature by the spread of batches' curvatures", header, rows)


def print_momentum():
    """Below which momentum a correction lowers the limit."""
    corrections = ("off", lambda mu: (0, 0)), ("mu, 1", lambda mu: (mu, 1)), ("mu (1 + mu), 1", lambda mu: (mu * (1 + mu), 1))
    header = ["momentum", *(f"share {s:g}: {name}" for s in (1, 0.5) for name, _ in corrections)]
    rows = [[f"{mu:g}", *(f"{limit(s, *of(mu), mu=mu):.2f}" for s in (1, 0.5) for _, of in corrections)]
            for mu in MOMENTA]  # fmt: skip
    print_table("Largest stable rate times curvature by momentum", header, rows)


def print_damping():
    """The largest root for small products: the factor by which an error shrinks in each step."""
    header = ["", "c, a", *(f"{x:g}" for x in PRODUCTS)]
    rows = [[name, f"{c:g}, {a:g}", *(f"{radius(polynomial(x, s, c, a)):.3f}" for x in PRODUCTS)]
            for name, s, c, a in DAMPED]  # fmt: skip
    print_table("Largest root by rate times curvature", header, rows)


def main():
    """bench/stability.py [FILE.svg]: the tables of momentum, damping and noise in docs/delay.md, and its figure."""
    print_momentum()
    print_damping()
    print_noise()
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            file.write(stability_figure())


if __name__ == "__main__":
    main()
