"""The dashboard Control plane: the loop on rank 0, its reports and its journal."""

from grafana_panels import lines, organize, quantiles, table, thresholds


def loop():
    return [
        lines(
            "Time to decide",
            (8, 7),
            "Time to decide on one round.",
            quantiles("coxswain_decision_duration_seconds", 0.5, 0.99),
            thresholds=thresholds(("green", None), ("orange", 0.05)),
        ),
        lines(
            "Looking for findings",
            (8, 7),
            "Time that the newest look for findings took. It runs on a thread of its own, for at most a hundredth of a core.",
            {"look {{instance}}": "coxswain_finding_look_duration_seconds"},
            min=0,
        ),
        lines(
            "Rounds and plans a second",
            (8, 7),
            "How often the control loop turns, and how often it publishes.",
            {"rounds/s": "sum(rate(coxswain_rounds_total))", "plans/s": "sum(rate(coxswain_plans_total))"},
            unit="ops",
        ),
    ]


def reports():
    return [
        lines(
            "Reports that did not count",
            (8, 7),
            "Reports of ranks that were missing, duplicate, stale or damaged, and whole plans sent again.",
            {
                "{{fault}}": "sum by (fault) (increase(coxswain_report_faults_total))",
                "plans sent again": "sum(increase(coxswain_full_plans_resent_total))",
            },
        ),
        lines(
            "Control traffic and journal",
            (8, 7),
            "Control bytes a second up and down, and bytes written to the journal.",
            {
                "{{direction}}": "sum by (direction) (rate(coxswain_wire_bytes_total))",
                "journal": "sum(rate(coxswain_journal_bytes_total))",
            },
            unit="Bps",
        ),
        lines(
            "Journal errors",
            (8, 7),
            "Journal records that could not be written. Any makes the job impossible to replay completely.",
            {"errors": "sum(increase(coxswain_journal_errors_total))"},
        ),
    ]


def build():
    return [
        table(
            "Build",
            (8, 7),
            "Version on rank 0, how often the job was started, and since when it runs.",
            {
                "build": "coxswain_build_info",
                "starts": "coxswain_incarnation",
                "running": "time() - coxswain_start_timestamp_seconds",
            },
            [
                {"id": "merge", "options": {}},
                organize(
                    ["Time", "__name__", "Value #A"],
                    {
                        "version": "Version",
                        "revision": "Revision",
                        "Value #B": "Starts",
                        "Value #C": "Running (s)",
                    },
                ),
            ],
        ),
    ]


ROWS = [
    ("The loop", loop),
    ("Reports and journal", reports),
    ("Build", build),
]
