"""Makes docs/results/GOAL.md from the lines of a benchmark.

    report.py GOAL FILE [--load AVERAGE] [--quick]

A figure with an interval is decided only when all of it lies on one side of the limit. The page has
the figures, how they were taken (notes/GOAL.md), commit, machine and command.
"""

import argparse
import json
import os
import re
import subprocess

import overlap_picture
import picture
import straggler_picture

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def number(value):
    return "-" if value is None else f"{value:.4g}"


def verdict(line):
    if line["limit"] is None:
        return ""
    if line["value"] is None:
        return "no figure"
    low = line["config"].get("low_95", line["value"])
    high = line["config"].get("high_95", line["value"])
    best, worst = (low, high) if line["better"] == "lower" else (high, low)
    sign = 1 if line["better"] == "lower" else -1
    if sign * worst <= sign * line["limit"]:
        return "met"
    return "**missed**" if sign * best > sign * line["limit"] else "not decided"


def rest(config):
    told = {key: value for key, value in config.items() if key != "figure"}
    words = (f"{key} {number(v) if isinstance(v, (int, float)) else v}" for key, v in told.items())
    return ", ".join(words)


def table(lines):
    rows = ["| figure | value | limit | | with |", "|---|---|---|---|---|"]
    for line in lines:
        limit = "" if line["limit"] is None else f"{number(line['limit'])} {line['unit']}"
        rows.append(
            f"| {line['config'].get('figure', '')} | {number(line['value'])} {line['unit']} | {limit} "
            f"| {verdict(line)} | {rest(line['config'])} |"
        )
    return "\n".join(rows)


def output_of(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def commit():
    name = output_of("git", "rev-parse", "--short", "HEAD") or "unknown"
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no", "--", "coordinator",
                        "metrics", "sdk", "tests/bench")
    return name + (" and changes that were not committed yet" if changed else "")


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = re.search(r"^model name\s*:\s*(.*)$", file.read(), re.MULTILINE)
    cores = len(os.sched_getaffinity(0))
    return f"{model.group(1) if model else 'unknown processor'}, {cores} cores"


def picture_of(goal, lines):
    """Writes docs/images/GOAL.svg where the lines have what it takes; returns the link to it."""
    if any("time_ratio" in line["config"] for line in lines):
        drawing = picture.draw(lines)
    elif overlap_picture.has_what_it_takes(lines):
        drawing = overlap_picture.draw(lines)
    elif straggler_picture.has_what_it_takes(lines):
        drawing = straggler_picture.draw(lines)
    else:
        return []
    with open(os.path.join(ROOT, "docs", "images", goal + ".svg"), "w", encoding="utf-8") as file:
        file.write(drawing)
    return [f"![{goal}](../images/{goal}.svg)", ""]


def page(goal, lines, options):
    with open(os.path.join(HERE, "notes", goal + ".md"), encoding="utf-8") as file:
        notes = file.read().strip()
    head, _, body = notes.partition("\n")
    command = f"scripts/bench {'--quick ' if options.quick else ''}--record {goal}"
    facts = [
        f"- Command: `{command}`",
        f"- Commit: {commit()}",
        f"- Machine: {machine()}; release preset",
        f"- Load average before the run: {options.load} (1 minute; what is above 0 is other work)",
    ]
    drawn = picture_of(goal, lines)
    return "\n".join([head, "", *drawn, table(lines), "", *facts, "", body.strip(), ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("goal")
    parser.add_argument("file")
    parser.add_argument("--load", default="unknown")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    with open(options.file, encoding="utf-8") as file:
        lines = [json.loads(text) for text in file if text.strip()]
    folder = os.path.join(ROOT, "docs", "results")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, options.goal + ".md"), "w", encoding="utf-8") as file:
        file.write(page(options.goal, lines, options))


if __name__ == "__main__":
    main()
