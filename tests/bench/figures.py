"""What benchmarks in Python print and calculate; line.h is the same in C++."""

import json
import math


def rounded(value):
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def line(goal, value, unit, figure, limit=None, better="lower", **config):
    config = {"figure": figure, **config}
    print(json.dumps({"goal": goal, "value": rounded(value), "limit": limit, "unit": unit,
                      "better": better,
                      "config": {key: rounded(v) for key, v in config.items()}}), flush=True)


def quantile(samples, part):
    ordered = sorted(samples)
    return ordered[round(part * (len(ordered) - 1))]


def centre(samples):
    """Hodges-Lehmann centre and its interval of 95 % confidence."""
    means = sorted((a + b) / 2 for i, a in enumerate(samples) for b in samples[:i + 1])
    n, last = len(samples), len(means) - 1
    half = 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)

    def at(place):
        return means[int(min(max(math.floor(place), 0), last))]

    return at(last / 2), at(last / 2 - half), at(last / 2 + half + 1)
