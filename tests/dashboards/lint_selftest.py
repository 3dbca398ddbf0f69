#!/usr/bin/env python3
"""Damages a dashboard in one way a rule and checks that this rule, and no other, says so.

  lint_selftest.py DASHBOARD.json
"""

import copy
import sys

import dashboard_lint
import promql

LINES = "timeseries"


def first(dashboard, kind=LINES):
    return next(panel for panel in dashboard["panels"] if panel["type"] == kind)


def put(path, value):
    """A damage: sets what `path` leads to, from a panel or a variable."""

    def damage(thing):
        for key in path[:-1]:
            thing = thing[key]
        thing[path[-1]] = value

    return damage


def in_panel(*path, value):
    return lambda dashboard: put(path, value)(first(dashboard))


def in_variable(name, *path, value):
    return lambda dashboard: put(path, value)(dashboard_lint.variable(dashboard, name))


def with_query(text):
    return in_panel("targets", 0, "expr", value=text)


BOTH = 'job=~"$job",instance=~"$instance"'
DAMAGES = [
    ("template-datasource-rule", in_variable("datasource", "label", value="Source")),
    ("template-job-rule", in_variable("job", "multi", value=False)),
    ("template-job-rule", in_variable("job", "datasource", "uid", value="prometheus-1")),
    ("template-instance-rule", in_variable("instance", "allValue", value=".*")),
    ("template-label-promql-rule", in_variable("job", "query", "query", value="coxswain_build_info")),
    ("template-on-time-change-reload-rule", in_variable("instance", "refresh", value=1)),
    ("panel-datasource-rule", in_panel("datasource", "uid", value="prometheus-1")),
    ("panel-title-description-rule", in_panel("description", value="")),
    ("panel-title-description-rule", in_panel("title", value="")),
    ("panel-units-rule", in_panel("fieldConfig", "defaults", "unit", value="furlong")),
    ("panel-no-targets-rule", in_panel("targets", value=[])),
    ("target-promql-rule", with_query("1 + 1")),
    ("target-rate-interval-rule", with_query(f"rate(coxswain_rounds_total{{{BOTH}}}[5m])")),
    ("target-job-rule", with_query('coxswain_loss{instance=~"$instance"}')),
    ("target-job-rule", with_query(f'coxswain_loss{{{BOTH}}} + coxswain_step{{job="$job",instance=~"$instance"}}')),
    ("target-instance-rule", with_query('coxswain_loss{job=~"$job"}')),
    ("target-counter-agg-rule", with_query(f"sum by (job) (coxswain_rounds_total{{{BOTH}}})")),
    ("target-counter-agg-rule", with_query(f"changes(coxswain_rounds_total{{{BOTH}}}[$__rate_interval])")),
    ("uneditable-dashboard", lambda dashboard: dashboard.update(editable=True)),
    ("ids", in_panel("id", value=1)),
    ("titles", in_panel("description", value="no full stop")),
    ("layout", in_panel("gridPos", "x", value=20)),
    ("links", lambda dashboard: dashboard.update(links=[])),
    ("links", lambda dashboard: dashboard["links"][0].update(keepTime=False)),
]

# Expression -> what its selectors are: name, labels, interval, function.
SELECTORS = {
    'sum by (le) (rate(a_bucket{x="1, (2)",y!~"b"}[5m]))': [("a_bucket", "xy", "5m", "rate")],
    "histogram_quantile(0.99, sum(b[1m]) by (job))": [("b", "", "1m", "sum")],
    "a and on(job, instance) c > 0 unless d": [("a", "", "", ""), ("c", "", "", ""), ("d", "", "", "")],
    "time() - max(e offset 5m) * 1e3": [("e", "", "", "max")],
    "f / on (x) group_left (y) ((g))": [("f", "", "", ""), ("g", "", "", "")],
}


def selector_faults():
    for text, expected in SELECTORS.items():
        found = [(s.name, "".join(s.matchers), s.interval, s.function) for s in promql.selectors(text)]
        if found != expected:
            yield f"{text}: expected {expected}, found {found}"


def rules_that_speak(dashboard):
    rules = {**dashboard_lint.LINTER, **dashboard_lint.HOUSE}
    return {name for name, rule in rules.items() if list(rule(dashboard))}


def rule_faults(whole):
    if rules_that_speak(whole):
        yield f"faults before any damage: {rules_that_speak(whole)}"
    for name, damage in DAMAGES:
        damaged = copy.deepcopy(whole)
        damage(damaged)
        found = rules_that_speak(damaged)
        if found != {name}:
            yield f"expected {name} to speak, found {sorted(found)}"
    untried = {**dashboard_lint.LINTER, **dashboard_lint.HOUSE}.keys() - {name for name, _ in DAMAGES}
    if untried:
        yield f"no damage for {sorted(untried)}"


def main():
    found = [*selector_faults(), *rule_faults(dashboard_lint.load(sys.argv[1]))]
    for fault in found:
        print("FAULT:", fault, file=sys.stderr)
    print(f"{len(DAMAGES)} damages, {len(SELECTORS)} expressions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
