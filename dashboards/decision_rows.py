"""The dashboard Decisions: plans, why they were made, what came of them."""

from grafana_panels import AREAS, BARS, STACKED, STEPS
from grafana_panels import lines


def plans():
    return [
        lines(
            "Plans",
            (8, 8),
            "Number of the newest plan published, and of the newest one that ranks apply.",
            {"published": "max(coxswain_plan_id)", "applied": "max(coxswain_plan_applied_id)"},
            draw=STEPS,
            decimals=0,
        ),
        lines(
            "Hold and lag",
            (12, 7),
            "Rounds for which knobs still rest, rounds from publication to activation.",
            {
                "rounds on hold": "max(coxswain_plan_hold_rounds)",
                "rounds to activation": "max(coxswain_plan_activation_lag_rounds)",
            },
            draw=STEPS,
        ),
        lines(
            "Precision of the blocks",
            (12, 7),
            "Blocks that compute in each precision under the newest plan.",
            {"{{precision}}": "max by (precision) (coxswain_plan_precision_blocks)"},
            draw=AREAS,
        ),
    ]


def reasons():
    return [
        lines(
            "Decisions by policy and outcome",
            (8, 8),
            "Reasons given in each interval, also those that changed nothing. The sentences are at /status and /api/v1/decisions.",
            {"{{policy}} {{outcome}}": "sum by (policy, outcome) (increase(coxswain_decisions_total)) > 0"},
            draw={**BARS, **STACKED},
        ),
        lines(
            "Reasons by code",
            (8, 8),
            "The same reasons by what they say.",
            {"{{code}}": "sum by (code) (increase(coxswain_reasons_total)) > 0"},
            draw={**BARS, **STACKED},
        ),
    ]


def effects():
    return [
        lines(
            "Seconds gained and lost",
            (12, 7),
            "What measured changes of each policy gained or lost in each interval, against going on without them.",
            {"{{policy}} {{result}}": "sum by (policy, result) (increase(coxswain_policy_saved_seconds_total))"},
            unit="s",
            min=0,
        ),
        lines(
            "What came of promises",
            (12, 7),
            "Changes that promised a shorter step, of all policies, by what the comparison of the rounds before and after found.",
            {"{{verdict}}": "sum by (verdict) (increase(coxswain_policy_verdicts_total))"},
            unit="short",
            min=0,
        ),
    ]


ROWS = [
    ("Plans", plans),
    ("Reasons", reasons),
    ("What came of them", effects),
]
