#!/usr/bin/env python3
"""Checks the dashboards and rules against a real Prometheus and a simulated job.

  check_dashboards.py --root REPOSITORY --serve PROGRAM --prometheus PROGRAM --promtool PROGRAM
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile
import urllib.error

import dashboard_lint
from live_prometheus import LiveJob, LivePrometheus, fetch


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("root", "serve", "prometheus", "promtool"):
        parser.add_argument("--" + name, required=True)
    return parser.parse_args()


def metric_kinds(exposition):
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.M))


def check_exposition(args, exposition):
    done = subprocess.run(
        [args.promtool, "check", "metrics"], input=exposition, capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or done.stdout.strip() or done.stderr.strip():
        yield "promtool check metrics: " + done.stdout + done.stderr


def check_rules(args, rules):
    for command in (["check", "rules", *rules], ["test", "rules", rules[0].replace("rules.yml", "alerts_test.yml")]):
        done = subprocess.run([args.promtool, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield "promtool " + " ".join(command[:2]) + ": " + done.stdout + done.stderr


def check_runbook(args, rules):
    """Every alert has a section, and no section is left over."""
    with open(os.path.join(args.root, "dashboards", "runbook.md"), encoding="utf-8") as file:
        sections = set(re.findall(r"^## (\w+)$", file.read(), re.M))
    with open(rules[1], encoding="utf-8") as file:
        text = file.read()
    alerts = set(re.findall(r"- alert: (\w+)", text))
    if alerts != sections:
        yield f"runbook and alerts differ: {sorted(alerts ^ sections)}"
    for alert in alerts:
        if f"runbook.md#{alert.lower()}\n" not in text:
            yield f"{alert}: runbook_url does not point to its section"


def has_series(prometheus, query):
    """Also true for a query that Prometheus refuses: waiting would not help."""
    try:
        return bool(prometheus.query(query))
    except urllib.error.HTTPError:
        return True


def check_queries(prometheus, dashboards):
    count = 0
    for path, dashboard in dashboards.items():
        for where, expression in dashboard_lint.queries(dashboard):
            count += 1
            query = dashboard_lint.substituted(expression)
            name = f"{os.path.basename(path)}: {where}"
            try:
                # What happens now and then in the simulated job comes within some seconds.
                prometheus.wait(lambda q=query: has_series(prometheus, q), "answering", seconds=8)
                prometheus.query(query)
            except urllib.error.HTTPError as error:
                yield f"{name}: {error.read().decode()}"
            except RuntimeError:
                yield f"{name}: no series for {query}"
    print(f"{count} queries of {len(dashboards)} dashboard(s) were run against Prometheus")


def check_live(args, rules, dashboards):
    with tempfile.TemporaryDirectory() as folder, LiveJob(args.serve, 20) as job:
        with LivePrometheus(args.prometheus, folder, job.url, rules) as prometheus:
            # Prometheus waits some seconds before its first scrape; rates need two.
            prometheus.wait(lambda: prometheus.query("rate(coxswain_rounds_total[1m]) > 0"), "scraping")
            exposition = fetch(job.url + "/metrics")
            yield from check_exposition(args, exposition)
            kinds = metric_kinds(exposition)
            for path, dashboard in dashboards.items():
                for fault in dashboard_lint.faults(dashboard, kinds):
                    yield os.path.basename(path) + ": " + fault
            yield from check_queries(prometheus, dashboards)


def main():
    args = arguments()
    folder = os.path.join(args.root, "dashboards")
    rules = [os.path.join(folder, "prometheus", name) for name in ("rules.yml", "alerts.yml")]
    paths = sorted(glob.glob(os.path.join(folder, "grafana", "*.json")))
    dashboards = {path: dashboard_lint.load(path) for path in paths}
    found = [] if dashboards else ["no dashboard found"]
    for check in (check_rules(args, rules), check_runbook(args, rules), check_live(args, rules, dashboards)):
        found += check
    for fault in found:
        print("FAULT:", fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
