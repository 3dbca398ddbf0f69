"""The dashboard Overview: is it training, what is wrong, where the time goes.

A panel is its title, (width, height) of 24 columns, description and queries. Panels stand from left to
right, as high as they fit. A unit is named only where it is not that of the metrics.
"""

from grafana_panels import BARS, STACKED
from grafana_panels import figure, found_over_time, lines, log_scale, quantiles, thresholds


def is_it_training():
    return [
        figure(
            "Since the newest round",
            (4, 4),
            "Seconds since the coordinator closed a round. Red where the alert CoxswainStalled would fire for steps of up to 3 s.",
            {"since the newest round": "max(time() - coxswain_last_round_timestamp_seconds)"},
            decimals=1,
            thresholds=thresholds(("green", None), ("orange", 30), ("red", 60)),
        ),
        figure(
            "Step",
            (4, 4),
            "Optimizer step of the newest round. It goes back after a rollback.",
            {"step": "max(coxswain_step)"},
        ),
        lines(
            "Loss",
            (12, 8),
            "Weighted mean loss over all ranks, and where rounds were not finite. Dashed lines are plan changes.",
            {"loss {{instance}}": "coxswain_loss"},
        ),
        figure(
            "Tokens a second",
            (4, 4),
            "Tokens trained on by all ranks. 0 where the trainer reports none.",
            {"tokens/s": "sum(rate(coxswain_tokens_total))"},
            unit="short",
            color="blue",
            curve=True,
        ),
        figure(
            "Ranks missing",
            (4, 4),
            "Ranks without a report for the newest round, of all ranks of the job.",
            {"missing": 'sum(coxswain_ranks{state="missing"})', "of": "sum(coxswain_world_size)"},
            color="green",
        ),
        figure(
            "Plan in force",
            (4, 4),
            "Number of the newest plan that ranks apply, beside the newest published one.",
            {"applied": "max(coxswain_plan_applied_id)", "published": "max(coxswain_plan_id)"},
        ),
        lines(
            "Throughput",
            (12, 8),
            "Samples and tokens a second over all ranks.",
            {
                "tokens/s": "sum(rate(coxswain_tokens_total))",
                "samples/s": "sum(rate(coxswain_samples_total))",
            },
            unit="short",
            draw=log_scale(10),
        ),
        lines(
            "Gradient norm",
            (12, 7),
            "Largest gradient norm reported in a round.",
            {"norm {{instance}}": "coxswain_gradient_norm"},
        ),
        lines(
            "Trouble",
            (12, 7),
            "Rounds that were not finite, skipped or rolled back, and values kept out of statistics.",
            {
                "not finite: {{source}}": "sum by (source) (increase(coxswain_nonfinite_rounds_total))",
                "skipped": "sum(increase(coxswain_skipped_rounds_total))",
                "rolled back": "sum(increase(coxswain_rollbacks_total))",
                "kept out": "sum(increase(coxswain_nonfinite_observations_total))",
            },
            draw=BARS,
        ),
    ]


def what_is_wrong():
    return [
        figure(
            "Findings",
            (4, 5),
            "Codes of the diagnosis that hold of the newest steps. The sentences, with what each costs, are at /status and /api/v1/findings.",
            {"found": "sum(coxswain_finding_active)"},
            thresholds=thresholds(("green", None), ("orange", 1)),
        ),
        found_over_time(
            "Found in the newest steps",
            (20, 12),
            "What the diagnosis says of the newest steps, a line for each code; red while it holds. docs/diagnosis.md says when a code holds, dashboards/runbook.md what to do.",
            {"{{code}}": "max by (code) (coxswain_finding_active)"},
        ),
        figure(
            "Skipped steps",
            (4, 4),
            "Part of the rounds whose step was skipped, over the interval of a point.",
            {"skipped": "sum(rate(coxswain_skipped_rounds_total)) / sum(rate(coxswain_rounds_total))"},
            unit="percentunit",
            decimals=1,
            thresholds=thresholds(("green", None), ("orange", 0.03)),
        ),
        figure(
            "Waiting for a rank",
            (4, 3),
            "How long ranks have waited for one that keeps them waiting. 0 while nobody waits for long.",
            {"waited": "max(coxswain_stall_duration_seconds)"},
            decimals=0,
            thresholds=thresholds(("green", None), ("red", 10)),
        ),
    ]


def where_the_time_goes():
    return [
        lines(
            "Step time",
            (12, 8),
            "Wall time of a step, median over the ranks: middle and slow end of the distribution over time, and its mean.",
            {
                **quantiles("coxswain_step_duration_seconds", 0.5, 0.95),
                "mean": "sum(rate(coxswain_step_duration_seconds_sum)) / sum(rate(coxswain_step_duration_seconds_count))",
            },
        ),
        lines(
            "Where a step goes",
            (12, 8),
            "Time in each phase, median over the ranks, stacked. Waiting for others counts as communication.",
            {"{{phase}}": 'avg by (phase) (coxswain_phase_duration_seconds{stat="median"})'},
            draw={"fillOpacity": 60, **STACKED},
        ),
        lines(
            "FLOPs of a step",
            (8, 7),
            "FLOPs of the model in a step, forward and backward, all ranks together. 0 where no rank follows its operators.",
            {"step {{instance}}": "coxswain_step_flops"},
            unit="short",
            min=0,
        ),
        lines(
            "FLOPs a second",
            (8, 7),
            "FLOPs of the model a second, forward and backward, all ranks together. 0 where no rank follows its operators.",
            {"achieved {{instance}}": "coxswain_achieved_flops_per_second"},
            unit="flops",
            min=0,
        ),
        lines(
            "MFU",
            (8, 7),
            "Part of the devices' peak that the model's FLOPs reach. Empty where run.peak_flops_per_device is not given.",
            {"MFU {{instance}}": "coxswain_mfu_ratio"},
            min=0,
        ),
    ]


ROWS = [
    ("Is it training?", is_it_training),
    ("What is wrong?", what_is_wrong),
    ("Where the time goes", where_the_time_goes),
]
