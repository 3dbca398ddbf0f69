"""Checks a Grafana dashboard as a file: what every panel must have, and which metrics it shows."""

import json
import re

# Shown by no panel, on purpose.
EXEMPT = {"coxswain_last_plan_timestamp_seconds"}

SUBSTITUTES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m", "${datasource}": "x"}


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries(dashboard):
    """(where, expression) of every panel and annotation."""
    for panel in panels(dashboard):
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for annotation in dashboard["annotations"]["list"]:
        yield "annotation " + annotation["name"], annotation["expr"]


def substituted(expression):
    for name, value in SUBSTITUTES.items():
        expression = expression.replace(name, value)
    return expression


def metric_names(text):
    return set(re.findall(r"\bcoxswain_[a-z0-9_]+", text))


def family(name, catalogue):
    for suffix in ("", "_bucket", "_sum", "_count"):
        if suffix and name.endswith(suffix) and name[: -len(suffix)] in catalogue:
            return name[: -len(suffix)]
    return name


def _panel_faults(panel):
    for key in ("title", "description", "targets"):
        if not panel.get(key):
            yield f"{panel.get('title')}: no {key}"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield f"{panel['title']}: no unit"
    if panel["datasource"]["uid"] != "${datasource}":
        yield f"{panel['title']}: fixed data source"


def _query_faults(where, expression, kinds):
    if 'job=~"$job"' not in expression or 'instance=~"$instance"' not in expression:
        yield f"{where}: does not use the variables job and instance"
    if re.search(r"\b(rate|irate|increase|changes)\(", expression) and "[$__rate_interval]" not in expression:
        yield f"{where}: a fixed interval"
    for name in metric_names(expression):
        kind = kinds.get(family(name, kinds))
        if kind is None:
            yield f"{where}: {name} is not in the catalogue"
        rated = re.search(rf"\b(rate|increase)\({name}\b", expression)
        if (kind == "counter" or family(name, kinds) != name) and not rated:
            yield f"{where}: counter {name} without rate or increase"
        if kind == "gauge" and rated:
            yield f"{where}: rate of gauge {name}"


def _layout_faults(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        pos = panel["gridPos"]
        if pos["x"] + pos["w"] > 24:
            yield f"{panel['title']}: beyond the right edge"
        for x in range(pos["x"], pos["x"] + pos["w"]):
            for y in range(pos["y"], pos["y"] + pos["h"]):
                other = taken.setdefault((x, y), panel["title"])
                if other != panel["title"]:
                    yield f"{panel['title']} overlaps {other}"
                    return


def faults(dashboard, kinds):
    """Every fault as a sentence. `kinds`: metric name -> counter, gauge or histogram."""
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    if variables != ["datasource", "job", "instance"]:
        yield f"variables are {variables}"
    if dashboard.get("editable") is not False or not dashboard.get("uid"):
        yield "editable, or without a stable uid"
    if len({panel["id"] for panel in dashboard["panels"]}) != len(dashboard["panels"]):
        yield "two panels share an id"
    if len(panels(dashboard)) < 12:
        yield "fewer than 12 panels"
    shown = set()
    for panel in panels(dashboard):
        yield from _panel_faults(panel)
    for where, expression in queries(dashboard):
        yield from _query_faults(where, expression, kinds)
        shown |= {family(name, kinds) for name in metric_names(expression)}
    for name in set(kinds) - shown - EXEMPT:
        yield f"{name} is shown by no panel"
    yield from _layout_faults(dashboard)
