#!/usr/bin/env python3
"""Makes the dashboards in grafana/ from the rows of panels in *_rows.py.

make_grafana.py            writes them
make_grafana.py --check    fails if a file is not what this script makes
"""

import glob
import json
import os
import re
import sys

import control_rows
import decision_rows
import memory_numerics_rows
import overview_rows
import rank_rows
from grafana_panels import FOLDER, METRICS, SOURCE, expression, family

TAG = "coxswain"
# uid and file name -> title, description, rows. The list of links shows them by title.
DASHBOARDS = {
    "coxswain-overview": (
        "Coxswain: 1 overview",
        "Is it training, is it healthy, what changed, and why.",
        overview_rows.ROWS,
    ),
    "coxswain-ranks": (
        "Coxswain: 2 ranks",
        "Who is slow and who waits, what hosts lose, and what ranks share.",
        rank_rows.ROWS,
    ),
    "coxswain-memory-numerics": (
        "Coxswain: 3 memory and numerics",
        "What ranks hold and what plans keep; loss scale, overflows and formats of blocks.",
        memory_numerics_rows.ROWS,
    ),
    "coxswain-decisions": (
        "Coxswain: 4 decisions",
        "Plans, why they were made, and what came of them.",
        decision_rows.ROWS,
    ),
    "coxswain-control-plane": (
        "Coxswain: 5 control plane",
        "The control loop on rank 0, the reports that it reads and the journal that it writes.",
        control_rows.ROWS,
    ),
}

# Shown by no panel: the annotation tells plan changes.
UNSHOWN = {"coxswain_last_plan_timestamp_seconds"}


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


VARIABLES = [
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


ANNOTATIONS = [
    annotation(
        "Plan changes", "purple", "changes(coxswain_plan_applied_id) > 0", "another plan is in force"
    ),
    annotation(
        "Not finite",
        "red",
        "sum by (instance, source) (increase(coxswain_nonfinite_rounds_total)) > 0",
        "a {{source}} was not finite",
    ),
]

# A list of all dashboards with the tag; job, instance and time go with whoever follows a link.
LINK = {
    "type": "dashboards",
    "title": "Coxswain",
    "tags": [TAG],
    "asDropdown": False,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "dashboard",
    "tooltip": "",
    "url": "",
}


def dashboard(uid):
    title, description, rows = DASHBOARDS[uid]
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": [TAG, "training"],
        "schemaVersion": 38,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "links": [LINK],
        "templating": {"list": VARIABLES},
        "annotations": {"list": ANNOTATIONS},
        "panels": placed([(title, panels()) for title, panels in rows]),
    }


def text_of(made):
    """JSON with a line for each panel, so that a change of one is a change of one line."""
    panels = ",\n".join(json.dumps(each) for each in made["panels"])
    frame = json.dumps({**made, "panels": []}, indent=2)
    return frame.replace('"panels": []', f'"panels": [\n{panels}\n]') + "\n"


def is_made(path, text):
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as file:
        return file.read() == text


def check(texts):
    """The files that are not what is made, and those that nothing makes."""
    there = set(glob.glob(os.path.join(FOLDER, "grafana", "*.json")))
    return sorted({path for path, text in texts.items() if not is_made(path, text)} | (there - set(texts)))


def main():
    texts = {
        os.path.join(FOLDER, "grafana", uid + ".json"): text_of(dashboard(uid)) for uid in DASHBOARDS
    }
    named = re.findall(r"\bcoxswain_\w+", "".join(texts.values()))
    unshown = set(METRICS) - {family(name) for name in named}
    if unshown != UNSHOWN:
        sys.exit(f"make_grafana.py: shown by no panel, or by one after all: {sorted(unshown ^ UNSHOWN)}")
    if "--check" not in sys.argv[1:]:
        for path, text in texts.items():
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return 0
    wrong = [os.path.relpath(path, FOLDER) for path in check(texts)]
    if wrong:
        print(f"{', '.join(wrong)}: not what dashboards/make_grafana.py makes: run it", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
