"""Draws time against peak bytes from the lines of M4, as a self-contained SVG for light and dark."""

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 320, 60, 46, 40, 24


def scale(low, high, start, end):
    return lambda value: start + (value - low) / (high - low or 1) * (end - start)


def ticks(low, high, count):
    return [low + (high - low) * i / count for i in range(count + 1)]


def path(points):
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def draw(lines):
    plans = [dict(line["config"], peak=line["value"]) for line in lines
             if "time_ratio" in line["config"]]
    front = sorted((p for p in plans if "every block" not in p["figure"]), key=lambda p: p["peak"])
    others = [p for p in plans if "every block" in p["figure"]]
    top = max(p["time_high_95"] for p in plans)
    low = min(p["time_low_95"] for p in plans)
    x = scale(0, max(p["peak"] for p in plans) * 1.05, LEFT, WIDTH - RIGHT)
    y = scale(min(low, 1), top, HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           "<title>Time of a step against its peak bytes</title>",
           "<style>text{fill:#333}.axis{stroke:#999}.front{stroke:#0b7285;fill:none;stroke-width:2}"
           ".predicted{stroke:#999;fill:none;stroke-dasharray:4 3}.dot{fill:#0b7285}"
           ".bar{stroke:#0b7285}.all{fill:#c2410c}@media(prefers-color-scheme:dark)"
           "{text{fill:#ddd}}</style>",
           f'<text x="{LEFT}" y="20">time of a step, keep everything = 1</text>']
    for value in ticks(min(low, 1), top, 4):
        out.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
                   f'<path class="axis" opacity=".3" d="M{LEFT},{y(value):.1f} H{WIDTH - RIGHT}"/>')
    for value in ticks(0, max(p["peak"] for p in plans), 4):
        out.append(f'<text x="{x(value):.1f}" y="{HEIGHT - 26}" text-anchor="middle">{value:.0f}</text>')
    out.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">counted peak, MiB '
               "(points: plans of the front with 95 % interval; dashes: predicted; orange: "
               "recompute everything)</text>")
    out.append(f'<path class="predicted" '
               f'd="{path([(x(p["peak"]), y(p["predicted_time_ratio"])) for p in front])}"/>')
    out.append(f'<path class="front" d="{path([(x(p["peak"]), y(p["time_ratio"])) for p in front])}"/>')
    for kind, group in (("dot", front), ("all", others)):
        for p in group:
            out.append(f'<path class="bar" d="M{x(p["peak"]):.1f},{y(p["time_low_95"]):.1f} '
                       f'V{y(p["time_high_95"]):.1f}"/><circle class="{kind}" '
                       f'cx="{x(p["peak"]):.1f}" cy="{y(p["time_ratio"]):.1f}" r="4"/>')
    return "\n".join(out + ["</svg>", ""])
