"""Plots as SVG: grouped bars and lines."""
import math
from xml.sax.saxutils import escape

COLOURS = ("#d62728", "#1f77b4", "#7f7f7f", "#2ca02c")
LEFT, TOP, HEIGHT = 60, 48, 240


def short(number):
    """A number short enough for a label."""
    size = abs(number)
    for limit, divisor, letter in ((1e6, 1e6, "M"), (1e4, 1e3, "K")):
        if size >= limit:
            return f"{number / divisor:.3g}{letter}"
    return f"{number:.0f}" if size >= 99.5 else f"{number:.3g}"


def _text(x, y, anchor, size, words, turn=0):
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{turned}>{escape(words)}</text>'


def _line(x1, y1, x2, y2, colour):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _page(width, height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif">\n'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def _step(most):
    """About five grid lines: 1, 2 or 5 times a power of ten."""
    raw = most / 5
    power = 10 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)


def _legend(names):
    parts = []
    for at, name in enumerate(names):
        x = LEFT + at * 200
        parts.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{COLOURS[at % len(COLOURS)]}"/>')
        parts.append(_text(x + 14, 33, "start", 12, name))
    return parts


def ratio_bars(title, names, groups, most=8.0):
    """Bars by label on a logarithmic axis around 1, for ratios. `groups` are (label, a value or None for each name)."""
    bar, gap = 12, 16
    group_width = bar * len(names) + gap
    width = max(group_width * len(groups), 200 * len(names), 8 * len(title))

    def height_of(value):
        return TOP + HEIGHT / 2 - HEIGHT / 2 * math.log(min(max(value, 1 / most), most)) / math.log(most)

    parts = [_text(LEFT, 16, "start", 14, title), *_legend(names)]
    mark = 1 / most
    while mark <= most * 1.001:
        parts.append(_line(LEFT, height_of(mark), LEFT + width, height_of(mark), "#444" if mark == 1 else "#ddd"))
        parts.append(_text(LEFT - 4, height_of(mark) + 4, "end", 11, f"{mark:.3g} x"))
        mark *= 2
    for at, (label, values) in enumerate(groups):
        x = LEFT + at * group_width + gap / 2
        for which, value in enumerate(values):
            if not value:
                continue
            top, bottom = sorted((height_of(value), height_of(1)))
            words = escape(f"{label}, {names[which]}: {value:.2f}")
            parts.append(f'<rect x="{x + which * bar:.1f}" y="{top:.1f}" width="{bar - 2}" height="{max(bottom - top, 1):.1f}" '
                         f'fill="{COLOURS[which % len(COLOURS)]}"><title>{words}</title></rect>')
            if value > most or value < 1 / most:
                parts.append(_text(x + (which + 0.5) * bar, top - 2 if value > 1 else bottom + 10, "middle", 9, short(value)))
        parts.append(_text(x + group_width / 2 - gap / 2, TOP + HEIGHT + 14, "end", 11, label, turn=-40))
    return _page(LEFT + width + 16, TOP + HEIGHT + 110, parts)


def lines(title, unit, x_unit, named):
    """Lines over time. `named` maps a name to its (x, y) points."""
    width = 720
    named = {name: points for name, points in named.items() if points}
    most_x = max((x for points in named.values() for x, _ in points), default=1) or 1
    most_y = max((y for points in named.values() for _, y in points), default=1) or 1
    parts = [_text(LEFT, 16, "start", 14, title), *_legend(list(named))]
    for most, horizontal in ((most_y, True), (most_x, False)):
        step, at = _step(most), 0.0
        while at <= most * 1.0001:
            if horizontal:
                y = TOP + HEIGHT * (1 - at / most)
                parts += [_line(LEFT, y, LEFT + width, y, "#ddd"), _text(LEFT - 4, y + 4, "end", 11, short(at))]
            else:
                x = LEFT + width * at / most
                parts.append(_text(x, TOP + HEIGHT + 16, "middle", 11, short(at)))
            at += step
    parts += [_text(LEFT - 4, TOP - 8, "end", 11, unit), _text(LEFT + width, TOP + HEIGHT + 32, "end", 11, x_unit)]
    for which, points in enumerate(named.values()):
        path = " ".join(f"{LEFT + width * x / most_x:.1f},{TOP + HEIGHT * (1 - y / most_y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[which % len(COLOURS)]}" stroke-width="1.3"/>')
    return _page(LEFT + width + 16, TOP + HEIGHT + 44, parts)
