"""The kinds of Grafana panels that the dashboards have, as functions that return their JSON.

A query names metrics alone: the selectors of the variables job and instance, and the interval of a
rate, are put in here. Which metrics exist and in what unit they are is read from docs/metrics.md,
which the catalogue generates, so a misspelt name fails.
"""

import os
import re
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
CATALOGUE = os.path.join(FOLDER, "..", "docs", "metrics.md")

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SELECTOR = 'job=~"$job",instance=~"$instance"'
UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "percentunit"}
SUFFIXES = ("_bucket", "_sum", "_count")


def read_catalogue():
    """Metric name -> its unit, "" where it has none."""
    with open(CATALOGUE, encoding="utf-8") as file:
        rows = re.findall(
            r"^\| `(coxswain_\w+)` \| (?:counter|gauge|histogram)(?:, (\w+))? \|", file.read(), re.M
        )
    return dict(rows)


METRICS = read_catalogue()


def family(name):
    """The metric of a series: histograms have three kinds of them."""
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name[: -len(suffix)] in METRICS:
            return name[: -len(suffix)]
    if name not in METRICS:
        sys.exit(f"dashboards: {name} is not in docs/metrics.md")
    return name


def names_in(query):
    return re.findall(r"\bcoxswain_\w+", query)


def expression(query):
    def select(match):
        name, labels = match.group(1), match.group(2)
        family(name)
        return f"{name}{{{labels + ',' if labels else ''}{SELECTOR}}}"

    selected = re.sub(r"\b(coxswain_\w+)(?:\{([^}]*)\})?", select, query)
    return re.sub(r"\b(rate|increase|changes)\((\w+\{[^}]*\})\)", r"\1(\2[$__rate_interval])", selected)


def unit_of(queries):
    """The unit that all metrics of a panel share, as Grafana calls it."""
    units = {METRICS[family(name)] for query in queries.values() for name in names_in(query)}
    return UNITS.get(units.pop(), "none") if len(units) == 1 else "none"


def thresholds(*steps):
    """Steps are colours with the value from which they hold; the first holds from below."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]}


def panel(kind, title, size, description, queries, options, target=None, defaults=None, **more):
    defaults = {"unit": unit_of(queries), **(defaults or {})}
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": expression(query),
            "legendFormat": legend,
            **(target or {}),
        }
        for index, (legend, query) in enumerate(queries.items())
    ]
    return {
        "type": kind,
        "title": title,
        "size": size,
        "description": description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        **more,
        "targets": targets,
    }


LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True}
STACKED = {"stacking": {"mode": "normal", "group": "A"}}
STEPS = {"lineInterpolation": "stepAfter"}
BARS = {"drawStyle": "bars", "fillOpacity": 60}
AREAS = {"fillOpacity": 50, **STEPS, **STACKED}


def log_scale(base):
    return {"scaleDistribution": {"type": "log", "log": base}}


def lines(title, size, description, queries, draw=None, **defaults):
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 0,
        "showPoints": "never",
        "spanNulls": False,
        "lineInterpolation": "linear",
        "stacking": {"mode": "none", "group": "A"},
        **(draw or {}),
    }
    options = {"legend": LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel(
        "timeseries", title, size, description, queries, options, defaults={**defaults, "custom": custom}
    )


def figure(title, size, description, queries, color="text", curve=False, **defaults):
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area" if curve else "none",
        "textMode": "auto",
        "justifyMode": "auto",
    }
    defaults.setdefault("thresholds", thresholds((color, None)))
    return panel("stat", title, size, description, queries, options, {"instant": not curve}, defaults)


def table(title, size, description, queries, transformations, **defaults):
    target = {"instant": True, "format": "table"}
    return panel(
        "table", title, size, description, queries, {}, target, defaults, transformations=transformations
    )


def organize(hidden, names):
    return {
        "id": "organize",
        "options": {"excludeByName": {name: True for name in hidden}, "renameByName": names},
    }


def states_over_time(title, size, description, queries, states):
    """A band a series; `states`: value -> (text, colour)."""
    texts = {
        str(value): {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(states.items())
    }
    defaults = {
        "mappings": [{"type": "value", "options": texts}],
        "custom": {"fillOpacity": 70, "lineWidth": 0},
    }
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.9,
        "legend": LEGEND,
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel("state-timeline", title, size, description, queries, options, defaults=defaults)


def formats_over_time(title, size, description, queries):
    formats = [("fp32", "#8a97a1"), ("bf16", "#3f8fa5"), ("fp16", "#c47f2c"), ("fp8", "#8d74b8")]
    return states_over_time(title, size, description, queries, dict(enumerate(formats)))


def found_over_time(title, size, description, queries):
    states = {0: ("no", "transparent"), 1: ("found", "#c4392c")}
    return states_over_time(title, size, description, queries, states)


def quantiles(metric, *quantile):
    return {
        f"p{int(100 * q)}": f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket)))" for q in quantile
    }


def over_ranks(metric, by="max"):
    return {"{{stat}}": f"{by} by (stat) ({metric})"}
