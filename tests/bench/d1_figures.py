"""The lines of D1, from what both sides answered. A turn: the name of its side, tokens a second, and
the answers of the ranks."""

from figures import centre, line, quantile

LIMIT, LOWER_END_LIMIT, HIDDEN_LIMIT = 1.10, 1.05, 0.8


def name_of(side):
    return {"ours": "ours", "plain": "a plain loop"}.get(side, f"DDP, buckets of {side}")


def speeds_of(turns, side):
    return [turn["speed"] for turn in turns if turn["side"] == side]


def tell_speed(turns, common):
    sides = list(dict.fromkeys(turn["side"] for turn in turns))
    best = max((side for side in sides if side != "ours"),
               key=lambda side: quantile(speeds_of(turns, side), 0.5))
    ratios = [a / b for a, b in zip(speeds_of(turns, "ours"), speeds_of(turns, best))]
    value, low, high = centre(ratios)
    limits = (LIMIT, LOWER_END_LIMIT) if common["ranks"] > 1 else (None, None)
    line("D1", value, "ratio", "tokens/s against DDP", limits[0], "higher", **common,
         least=min(ratios), most=max(ratios), rounds=len(ratios), against=name_of(best))
    line("D1", low, "ratio", "the same, lower end of its interval of 95 % confidence", limits[1],
         "higher", **common, upper_end=high)
    for side in sides:
        speeds = speeds_of(turns, side)
        cpu = [sum(answer["cpu"] for answer in turn["answers"]) / turn["steps"] for turn in turns
               if turn["side"] == side]
        line("D1", quantile(speeds, 0.5), "tokens/s", name_of(side), None, "higher", **common,
             quarter=quantile(speeds, 0.25), three_quarters=quantile(speeds, 0.75),
             cpu_ms_a_step=1e3 * quantile(cpu, 0.5))


def mean(rows, key):
    return sum(row[key] for row in rows) / len(rows)


def layout_of(overlap):
    return [bucket["bytes"] for bucket in overlap["buckets"]]


def tell_overlap(turns, common):
    """Means over turns and ranks, of the layout of buckets that the last turn had."""
    all_of_them = [answer["overlap"] for turn in turns for answer in turn["answers"]
                   if turn["side"] == "ours"]
    layout = layout_of(all_of_them[-1])
    same = [overlap for overlap in all_of_them if layout_of(overlap) == layout]
    due = mean(same, "due")
    if due > 0:
        line("D1", mean(same, "hidden") / due, "ratio",
             "part of the reduction hidden behind backward, all buckets but the last", HIDDEN_LIMIT,
             "higher", **common, buckets=len(layout), backward_ms=1e3 * mean(same, "backward"),
             exposed_ms=1e3 * mean(same, "exposed"))
    for number, size in enumerate(layout):
        rows = [overlap["buckets"][number] for overlap in same]
        line("D1", 1e3 * (mean(rows, "done") - mean(rows, "started")), "ms",
             f"bucket {number + 1} of {len(layout)}, from start to sum", **common, bytes=size,
             started_ms=1e3 * mean(rows, "started"), worked_ms=1e3 * mean(rows, "worked"))
