"""Draws when the buckets of D1 were on their way, from its lines at two ranks, as a self-contained SVG
for light and dark."""

import re

WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 640, 150, 24, 58, 16, 44
BUCKET = re.compile(r"bucket (\d+) of \d+, from start to sum")


def buckets_of(lines):
    found = []
    for line in lines:
        match = BUCKET.match(line["config"].get("figure", ""))
        if match and line["config"]["ranks"] == 2:
            begin = line["config"]["started_ms"]
            found.append({"bytes": line["config"]["bytes"], "begin": begin,
                          "end": begin + line["value"]})
    return found


def backward_of(lines):
    times = [line["config"]["backward_ms"] for line in lines
             if line["config"].get("ranks") == 2 and "backward_ms" in line["config"]]
    return times[0] if times else None


def has_what_it_takes(lines):
    return bool(buckets_of(lines)) and backward_of(lines) is not None


def draw(lines):
    buckets, backward = buckets_of(lines), backward_of(lines)
    last = max([backward] + [bucket["end"] for bucket in buckets]) * 1.03
    height = TOP + ROW * len(buckets) + BOTTOM
    x = lambda ms: LEFT + ms / last * (WIDTH - LEFT - RIGHT)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           'font-family="sans-serif" font-size="12">',
           "<title>Gradient buckets on their way while backward runs</title>",
           "<style>text{fill:#333}.axis{stroke:#999}.work{fill:#d0d7de}.bucket{fill:#0b7285}"
           ".end{stroke:#c2410c;stroke-dasharray:4 3}@media(prefers-color-scheme:dark)"
           "{text{fill:#ddd}.work{fill:#444c56}}</style>",
           f'<text x="{LEFT - 8}" y="{TOP - 18}" text-anchor="end">backward</text>',
           f'<rect class="work" x="{x(0):.1f}" y="{TOP - 30}" width="{x(backward) - x(0):.1f}" '
           'height="16" rx="2"/>']
    for row, bucket in enumerate(buckets):
        y = TOP + ROW * row
        width = max(1.5, x(bucket["end"]) - x(bucket["begin"]))
        out.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">bucket {row + 1}, '
                   f'{bucket["bytes"] / 2**20:.1f} MiB</text>'
                   f'<rect class="bucket" x="{x(bucket["begin"]):.1f}" y="{y + 2}" '
                   f'width="{width:.1f}" height="{ROW - 5}" rx="2"/>')
    bottom = TOP + ROW * len(buckets) + 4
    out.append(f'<path class="end" d="M{x(backward):.1f},{TOP - 34} V{bottom}"/>')
    for part in range(5):
        ms = last / 1.03 * part / 4
        out.append(f'<path class="axis" d="M{x(ms):.1f},{bottom} v4"/>'
                   f'<text x="{x(ms):.1f}" y="{bottom + 17}" text-anchor="middle">{ms:.0f}</text>')
    out.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 34}" text-anchor="end">ms since backward '
               "began; a bar: from a bucket's start to its sum over 2 ranks</text>")
    return "\n".join(out + ["</svg>", ""])
