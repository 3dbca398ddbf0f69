#!/usr/bin/env python3
"""Makes grafana/coxswain-overview.json from overview_rows.py and rank_rows.py.

make_grafana.py            writes the dashboard
make_grafana.py --check    fails if the file is not what this script makes
"""

import json
import os
import re
import sys

from grafana_panels import FOLDER, METRICS, SOURCE, expression, family
from overview_rows import ROWS

DASHBOARD = os.path.join(FOLDER, "grafana", "coxswain-overview.json")


def placed(rows):
    """Gives each panel its place: from the left, as high as it fits, below the heading of its row."""
    panels = []
    top = 0
    for title, row in rows:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        panels[-1].update({"collapsed": False, "panels": []})
        skyline = [top + 1] * 24
        for each in row:
            width, height = each.pop("size")
            y, x = min((max(skyline[x : x + width]), x) for x in range(25 - width))
            skyline[x : x + width] = [y + height] * width
            panels.append({**each, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        top = max(skyline)
    return [{"id": index, **each} for index, each in enumerate(panels, 1)]


def variable(name, label, query):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "v"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
        "hide": 0,
    }


def annotation(name, color, query, title):
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "iconColor": color,
        "expr": expression(query),
        "titleFormat": title,
        "textFormat": "{{instance}}",
        "useValueForTime": False,
    }


# Shown by no panel.
UNSHOWN = {
    "coxswain_finding_active",  # the status page has the findings themselves
    "coxswain_finding_look_duration_seconds",
    "coxswain_last_plan_timestamp_seconds",  # the annotation tells plan changes
}


def dashboard():
    return {
        "uid": "coxswain-overview",
        "title": "Coxswain: training",
        "description": "Is it training, is it healthy, what changed, and why.",
        "tags": ["coxswain", "training"],
        "schemaVersion": 38,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                    "hide": 0,
                },
                variable("job", "Job", "label_values(coxswain_build_info, job)"),
                variable("instance", "Instance", 'label_values(coxswain_build_info{job=~"$job"}, instance)'),
            ]
        },
        "annotations": {
            "list": [
                annotation(
                    "Plan changes",
                    "purple",
                    "changes(coxswain_plan_applied_id) > 0",
                    "another plan is in force",
                ),
                annotation(
                    "Not finite",
                    "red",
                    "sum by (instance, source) (increase(coxswain_nonfinite_rounds_total)) > 0",
                    "a {{source}} was not finite",
                ),
            ]
        },
        "panels": placed([(title, panels()) for title, panels in ROWS]),
    }


def text_of(made):
    """JSON with a line for each panel, so that a change of one is a change of one line."""
    panels = ",\n".join(json.dumps(each) for each in made["panels"])
    frame = json.dumps({**made, "panels": []}, indent=2)
    return frame.replace('"panels": []', f'"panels": [\n{panels}\n]') + "\n"


def main():
    text = text_of(dashboard())
    unshown = set(METRICS) - {family(name) for name in re.findall(r"\bcoxswain_\w+", text)}
    if unshown != UNSHOWN:
        sys.exit(f"make_grafana.py: shown by no panel, or by one after all: {sorted(unshown ^ UNSHOWN)}")
    if "--check" not in sys.argv[1:]:
        with open(DASHBOARD, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    with open(DASHBOARD, encoding="utf-8") as file:
        if file.read() == text:
            return 0
    print(
        "grafana/coxswain-overview.json is not what dashboards/make_grafana.py makes: run it", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
