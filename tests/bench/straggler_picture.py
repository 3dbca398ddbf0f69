"""Draws delay and false alarms against the size of a slowdown from the lines of S1, as a
self-contained SVG for light and dark."""

import math

WIDTH, HEIGHT, TOP, BOTTOM = 720, 400, 44, 128
PANELS = ((56, 340), (420, 704))
COLOURS = ("#0b7285", "#c2410c", "#7048e8", "#5c940d")
FIGURE = "mean delay at 3 % of noise"


def curves_of(lines):
    curves = {}
    for line in lines:
        config = line["config"]
        if config.get("figure") == FIGURE:
            curves.setdefault(config["rule"], []).append(
                dict(config, delay=line["value"], slowdown=config["slowdown_percent"]))
    return curves


def has_what_it_takes(lines):
    return bool(curves_of(lines))


def scale(low, high, start, end):
    low, high = math.log(low), math.log(high)
    return lambda v: start + (math.log(v) - low) / (high - low) * (end - start)


def path(points):
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def panel(box, title, ticks, values):
    x = scale(5, 100, *box)
    y = scale(ticks[0], ticks[-1], HEIGHT - BOTTOM, TOP)
    out = [f'<text x="{box[0]}" y="24">{title}</text>']
    for tick in ticks:
        out.append(f'<text x="{box[0] - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
                   f'<path class="axis" d="M{box[0]},{y(tick):.1f} H{box[1]}"/>')
    for tick in (5, 10, 20, 50, 100):
        out.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" '
                   f'text-anchor="middle">{tick} %</text>')
    for style, points in values:
        held = [(x(s), y(min(max(v, ticks[0]), ticks[-1]))) for s, v in points]
        out.append(f'<path d="{path(held)}" fill="none" stroke-width="2" {style}/>')
    return out


def draw(lines):
    curves = curves_of(lines)
    ours = curves["estimates"]
    styles = {rule: f'stroke="{colour}"' for rule, colour in zip(curves, COLOURS)}
    bound = 'stroke="#888" stroke-dasharray="4 3"'
    delays = [(styles[rule], [(p["slowdown"], p["delay"]) for p in points])
              for rule, points in curves.items()]
    delays.append((bound, [(p["slowdown"], p["bound"]) for p in ours]))
    alarms = [(styles[rule], [(p["slowdown"], p["false_alarms_per_million"]) for p in points])
              for rule, points in curves.items()]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           "<title>Delay and false alarms against the size of a slowdown</title>",
           "<style>text{fill:#333}.axis{stroke:#999;opacity:.3}@media(prefers-color-scheme:dark)"
           "{text{fill:#ddd}}</style>"]
    out += panel(PANELS[0], "steps to the name, mean (200: not named)", (0.5, 1, 2, 5, 13, 50, 200),
                 delays)
    out += panel(PANELS[1], "false names per 10^6 rank-steps (0.1: none seen)",
                 (0.1, 1, 10, 100, 1000, 10000), alarms)
    legend = list(styles.items()) + [("bound ln(A) / KL", bound)]
    for i, (name, style) in enumerate(legend):
        row = HEIGHT - BOTTOM + 40 + 16 * i
        out.append(f'<path d="M56,{row - 4} h28" fill="none" stroke-width="2" {style}/>'
                   f'<text x="92" y="{row}">{name}</text>')
    out.append(f'<text x="{WIDTH - 16}" y="{HEIGHT - 6}" text-anchor="end">slowdown of one of 64 '
               "ranks, noise of 3 % a step</text>")
    return "\n".join(out + ["</svg>", ""])
