"""Checks Grafana dashboards as files.

LINTER has the rules of grafana/dashboard-linter by their names, as far as they apply: the two about
LogQL do not, because nothing here asks Loki, and that a query is valid is shown by Prometheus itself
(check_dashboards.py). HOUSE has what else holds here.
"""

import json
import re

import promql

# Shown by no panel, on purpose.
EXEMPT = {"coxswain_last_plan_timestamp_seconds"}

SUBSTITUTES = {"$job": ".+", "$instance": ".+", "$__rate_interval": "1m", "${datasource}": "x"}

# Those of Grafana's units that are used here; the linter knows all of them.
UNITS = {"none", "short", "percentunit", "s", "bytes", "Bps", "ops", "flops"}
# What the linter looks at; the others it does not know.
LINTED = {"stat", "singlestat", "graph", "table", "timeseries", "gauge"}
TEMPLATED = ("$datasource", "${datasource}")
LEAST_PANELS = 25  # of all dashboards


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def targets(dashboard):
    for panel in panels(dashboard):
        for target in panel.get("targets") or []:
            yield f"{panel.get('title')} {target['refId']}", target["expr"]


def queries(dashboard):
    """(where, expression) of every panel and annotation."""
    yield from targets(dashboard)
    for annotation in dashboard["annotations"]["list"]:
        yield "annotation " + annotation["name"], annotation["expr"]


def substituted(expression):
    for name, value in SUBSTITUTES.items():
        expression = expression.replace(name, value)
    return expression


def metric_names(text):
    return set(re.findall(r"\bcoxswain_[a-z0-9_]+", text))


def family(name, catalogue):
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and name[: -len(suffix)] in catalogue:
            return name[: -len(suffix)]
    return name


def variable(dashboard, name):
    return next((each for each in dashboard["templating"]["list"] if each["name"] == name), None)


def query_variables(dashboard):
    return [each for each in dashboard["templating"]["list"] if each["type"] == "query"]


# ---- The linter's rules. Each takes a dashboard and yields a sentence for each fault.


def template_datasource(dashboard):
    sources = [each for each in dashboard["templating"]["list"] if each["type"] == "datasource"]
    if [(each["name"], each["label"], each["query"]) for each in sources] != [
        ("datasource", "Data source", "prometheus")
    ]:
        yield "expected one variable 'datasource', labelled 'Data source', of type prometheus"


def _template(dashboard, name):
    found = variable(dashboard, name)
    if found is None:
        yield f"no variable {name}"
        return
    expected = {"type": "query", "label": name.title(), "multi": True, "allValue": ".+"}
    for key, value in expected.items():
        if found.get(key) != value:
            yield f"variable {name}: expected {key} {value}, found {found.get(key)}"
    if found.get("datasource", {}).get("uid") not in TEMPLATED:
        yield f"variable {name}: fixed data source"


def template_job(dashboard):
    yield from _template(dashboard, "job")


def template_instance(dashboard):
    yield from _template(dashboard, "instance")


def template_label_promql(dashboard):
    for each in query_variables(dashboard):
        query = each["query"] if isinstance(each["query"], str) else each["query"]["query"]
        if not re.fullmatch(r"(label_names|label_values|metrics|query_result)\(.+\)", query):
            yield f"variable {each['name']}: expected label_values(...) or the like, found {query}"


def template_on_time_change_reload(dashboard):
    for each in query_variables(dashboard):
        if each.get("refresh") != 2:
            yield f"variable {each['name']}: not read again when the time range changes"


def panel_datasource(dashboard):
    for panel in panels(dashboard):
        if panel.get("datasource", {}).get("uid") not in TEMPLATED:
            yield f"{panel.get('title')}: fixed data source"


def panel_title_description(dashboard):
    for panel in panels(dashboard):
        for key in ("title", "description"):
            if not panel.get(key):
                yield f"{panel.get('title')}: no {key}"


def panel_units(dashboard):
    for panel in panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        if "mappings" not in defaults and defaults.get("unit") not in UNITS:
            yield f"{panel.get('title')}: unit {defaults.get('unit')} is none of {sorted(UNITS)}"


def panel_no_targets(dashboard):
    for panel in panels(dashboard):
        if not panel.get("targets"):
            yield f"{panel.get('title')}: no query"


def target_promql(dashboard):
    for where, expression in queries(dashboard):
        if not promql.selectors(expression):
            yield f"{where}: no metric in '{expression}'"


def target_rate_interval(dashboard):
    for where, expression in queries(dashboard):
        for each in promql.selectors(expression):
            if each.interval not in ("", "$__rate_interval"):
                yield f"{where}: a fixed interval [{each.interval}]"


def _target_matcher(dashboard, label):
    for where, expression in queries(dashboard):
        for each in promql.selectors(expression):
            if each.matchers.get(label) != ("=~", "$" + label):
                yield f'{where}: {each.name} without {label}=~"${label}"'


def target_job(dashboard):
    yield from _target_matcher(dashboard, "job")


def target_instance(dashboard):
    yield from _target_matcher(dashboard, "instance")


def target_counter_agg(dashboard):
    for where, expression in queries(dashboard):
        for each in promql.selectors(expression):
            is_rated = each.interval and each.function in ("rate", "irate", "increase")
            if each.name.endswith("_total") and not is_rated:
                yield f"{where}: counter {each.name} without rate, irate or increase"


def uneditable_dashboard(dashboard):
    if dashboard.get("editable") is not False:
        yield "editable"


LINTER = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": template_job,
    "template-instance-rule": template_instance,
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": target_job,
    "target-instance-rule": target_instance,
    "target-counter-agg-rule": target_counter_agg,
    "uneditable-dashboard": uneditable_dashboard,
}

# ---- The house's rules.


def ids(dashboard):
    if not dashboard.get("uid"):
        yield "no stable uid"
    if len({panel["id"] for panel in dashboard["panels"]}) != len(dashboard["panels"]):
        yield "two panels share an id"


def titles(dashboard):
    for row in (panel for panel in dashboard["panels"] if panel["type"] == "row"):
        if not row.get("title"):
            yield "a row without a title"
    for panel in panels(dashboard):
        text = panel.get("description") or ""
        if text and not text.endswith("."):
            yield f"{panel['title']}: a description is whole sentences"


def layout(dashboard):
    taken = {}
    for panel in dashboard["panels"]:
        pos = panel["gridPos"]
        if pos["x"] + pos["w"] > 24:
            yield f"{panel['title']}: beyond the right edge"
        for x in range(pos["x"], pos["x"] + pos["w"]):
            for y in range(pos["y"], pos["y"] + pos["h"]):
                other = taken.setdefault((x, y), panel["id"])
                if other != panel["id"]:
                    yield f"{panel['title']} overlaps another panel"
                    return


def links(dashboard):
    """Every dashboard lists all that have the tag, itself among them."""
    for link in dashboard.get("links") or []:
        is_list = link["type"] == "dashboards" and set(link["tags"]) <= set(dashboard["tags"])
        if is_list and link["includeVars"] and link["keepTime"] and not link["asDropdown"]:
            return
    yield "no list of links to the others that keeps job, instance and time"


HOUSE = {"ids": ids, "titles": titles, "layout": layout, "links": links}


def _kind_faults(dashboard, kinds):
    for where, expression in queries(dashboard):
        for each in promql.selectors(expression):
            kind = kinds.get(family(each.name, kinds))
            if kind is None:
                yield f"{where}: {each.name} is not in the catalogue"
            is_rated = each.function in ("rate", "irate", "increase")
            if family(each.name, kinds) != each.name and not is_rated:
                yield f"{where}: {each.name} of a histogram without rate or increase"
            if kind == "gauge" and is_rated:
                yield f"{where}: rate of gauge {each.name}"


def faults(dashboard, kinds):
    """Every fault as a sentence. `kinds`: metric name -> counter, gauge or histogram."""
    for name, rule in {**LINTER, **HOUSE}.items():
        for fault in rule(dashboard):
            yield f"{name}: {fault}"
    yield from _kind_faults(dashboard, kinds)


def faults_of_all(dashboards, kinds):
    """What no dashboard can be blamed for by itself."""
    count = sum(len(panels(dashboard)) for dashboard in dashboards)
    if count < LEAST_PANELS:
        yield f"{count} panels, expected {LEAST_PANELS} at least"
    for key in ("uid", "title"):
        if len({dashboard[key] for dashboard in dashboards}) != len(dashboards):
            yield f"two dashboards share a {key}"
    tags = set.intersection(*(set(dashboard["tags"]) for dashboard in dashboards))
    for dashboard in dashboards:
        if not any(set(link["tags"]) <= tags for link in dashboard["links"]):
            yield f"{dashboard['title']}: its links miss a dashboard"
    texts = [expression for dashboard in dashboards for _, expression in queries(dashboard)]
    shown = {family(name, kinds) for text in texts for name in metric_names(text)}
    for name in sorted(set(kinds) - shown - EXEMPT):
        yield f"{name} is shown by no panel"
