#!/usr/bin/env python3
"""Checks the dashboards and rules against a real Prometheus and a simulated job.

  check_dashboards.py --root REPOSITORY --serve PROGRAM --rehearsals PROGRAM --prometheus PROGRAM
                      --promtool PROGRAM
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


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def alerts_in(rules):
    """Name -> the text of the rule."""
    text = "\n".join(read(path) for path in rules)
    parts = re.split(r"- alert: (\w+)", text)
    return dict(zip(parts[1::2], parts[2::2]))


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("root", "serve", "rehearsals", "prometheus", "promtool"):
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


def check_rules(args, rules, tests):
    for command in (["check", "rules", *rules], ["test", "rules", *tests]):
        done = subprocess.run([args.promtool, *command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            yield "promtool " + " ".join(command[:2]) + ": " + done.stdout + done.stderr


def runbook_sections(args):
    """Alert -> its section of the runbook."""
    runbook = read(os.path.join(args.root, "dashboards", "runbook.md"))
    return dict(re.findall(r"^## (Coxswain\w+)\n(.*?)(?=^## |\Z)", runbook, re.M | re.S))


def check_runbook(args, alerts):
    """Every alert has a section, and no section is left over. It says what to check and what to do."""
    sections = runbook_sections(args)
    if set(alerts) != set(sections):
        yield f"runbook and alerts differ: {sorted(set(alerts) ^ set(sections))}"
    for alert, text in alerts.items():
        if f"runbook.md#{alert.lower()}\n" not in text:
            yield f"{alert}: runbook_url does not point to its section"
        if not re.search(r"severity: (critical|warning|info)\b", text):
            yield f"{alert}: severity is none of critical, warning, info"
        for part in ("- Check: ", "- Do: "):
            if part not in sections.get(alert, ""):
                yield f"runbook, {alert}: expected a line that begins with {part!r}"


def tests_of(alert, tests):
    """What the rules' tests expect of the alert: a text for each moment that they look at."""
    parts = re.split(r"alertname: ", "".join(read(path) for path in tests))
    return [part[len(alert) :] for part in parts[1:] if re.match(alert + r"\b", part)]


def check_rehearsed(args, alerts, tests):
    """The runbook quotes of an alert that is no finding's what it says when it fires in the rules' tests."""
    sections = runbook_sections(args)
    for alert, text in alerts.items():
        if 'code="' in text:
            continue  # check_findings
        said = [line for part in tests_of(alert, tests) for line in re.findall(r"description: (.*)", part)]
        if not any(f'- Rehearsed: "{line}" ' in sections.get(alert, "") for line in said):
            yield f"runbook, {alert}: expected a rehearsed case that begins with what the alert says, one of {said}"


def check_tested(alerts, tests):
    """Every alert fires in a test of its own, and is quiet in one."""
    for alert in alerts:
        of_alert = tests_of(alert, tests)
        fires = [part for part in of_alert if re.match(r"\s+exp_alerts:\s+- exp_labels", part)]
        quiet = [part for part in of_alert if re.match(r", exp_alerts: \[\]", part)]
        if not fires or not quiet:
            yield f"{alert}: {len(fires)} tests in which it fires, {len(quiet)} in which it does not"


# Codes without an alert; the runbook says why.
NO_ALERT = {
    "TIMING.BACKWARD_HEAVY",
    "TIMING.OPTIMIZER_HEAVY",
    "EFFICIENCY.LOW_MFU",
    "DIST.EXPOSED_COMM",
    "DIST.PIPELINE_BUBBLE",
    "MEMORY.FRAGMENTATION",
    "PRECISION.SCALE_LOW",
    "PRECISION.WITHHELD",
}


def check_findings(args, alerts):
    """Every code has an alert or a reason why not, and what the runbook quotes is what is said."""
    exported = read(os.path.join(args.root, "docs", "metrics.md"))
    codes = set(re.search(r"^\| `code` \| ([A-Z]+\..*) \|$", exported, re.M)[1].split(", "))
    alarmed = {code: name for name, text in alerts.items() for code in re.findall(r'code="([^"]+)"', text)}
    for code in sorted(codes ^ (set(alarmed) | NO_ALERT)):
        yield f"{code}: neither an alert nor a reason why not, or no code of the diagnosis"
    said = subprocess.run([args.rehearsals], capture_output=True, text=True, check=True).stdout
    sentences = dict(line.split("\t") for line in said.splitlines())
    runbook = read(os.path.join(args.root, "dashboards", "runbook.md"))
    sections = runbook_sections(args)
    for code, alert in alarmed.items():
        section = sections.get(alert, "")
        if f"`{code}`" not in section:
            yield f"runbook, {alert}: expected the code {code}"
        if f'- Rehearsed: "{sentences.get(code)}"\n' not in section:
            yield f"runbook, {alert}: expected the rehearsed case: {sentences.get(code)}"
    for code in NO_ALERT:
        if f"`{code}`" not in runbook:
            yield f"runbook: {code} is not among the findings without an alert"


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
    print(f"{count} queries of {len(dashboards)} dashboards were run against Prometheus")


def check_live(args, rules, dashboards):
    with tempfile.TemporaryDirectory() as folder, LiveJob(args.serve, 20) as job:
        with LivePrometheus(args.prometheus, folder, job.url, rules) as prometheus:
            # Prometheus waits some seconds before its first scrape; rates need two.
            prometheus.wait(lambda: prometheus.query("rate(coxswain_rounds_total[1m]) > 0"), "scraping")
            prometheus.wait(lambda: prometheus.query("coxswain_finding_active == 1"), "told of a finding")
            exposition = fetch(job.url + "/metrics")
            yield from check_exposition(args, exposition)
            kinds = metric_kinds(exposition)
            for path, dashboard in dashboards.items():
                for fault in dashboard_lint.faults(dashboard, kinds):
                    yield os.path.basename(path) + ": " + fault
            yield from dashboard_lint.faults_of_all(list(dashboards.values()), kinds)
            yield from check_queries(prometheus, dashboards)


def main():
    args = arguments()
    folder = os.path.join(args.root, "dashboards")
    files = sorted(glob.glob(os.path.join(folder, "prometheus", "*.yml")))
    tests = [path for path in files if path.endswith("_test.yml")]
    rules = [path for path in files if path not in tests and not path.endswith("prometheus.yml")]
    alerts = alerts_in(rules)
    paths = sorted(glob.glob(os.path.join(folder, "grafana", "*.json")))
    dashboards = {path: dashboard_lint.load(path) for path in paths}
    found = [] if dashboards and alerts else ["no dashboard or no alert found"]
    checks = (
        check_rules(args, rules, tests),
        check_runbook(args, alerts),
        check_tested(alerts, tests),
        check_rehearsed(args, alerts, tests),
        check_findings(args, alerts),
        check_live(args, rules, dashboards),
    )
    for check in checks:
        found += check
    for fault in found:
        print("FAULT:", fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
