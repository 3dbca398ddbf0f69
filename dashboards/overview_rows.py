"""The panels of the dashboard, row by row: title, (width, height) of 24 columns, description, queries.

Panels stand from left to right, as high as they fit. A unit is named only where it is not that of
the metrics.
"""

from grafana_panels import AREAS, BARS, STACKED, STEPS
from grafana_panels import figure, formats_over_time, lines, log_scale, organize, quantiles, table, thresholds
from rank_rows import data_parallel, ranks, where_the_time_goes


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
        figure(
            "Loss",
            (4, 4),
            "Weighted mean loss of the newest round. Absent when no rank had a finite one.",
            {"loss": "avg(coxswain_loss)"},
            color="blue",
            curve=True,
            decimals=3,
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
            "Loss",
            (12, 8),
            "Weighted mean loss over all ranks, and where rounds were not finite. Dashed lines are plan changes.",
            {"loss {{instance}}": "coxswain_loss"},
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


def activation_memory():
    return [
        lines(
            "Peak against budget",
            (12, 8),
            "Highest peak of a rank: predicted under the newest plan, measured, and predicted with every block kept; lowest budget of a rank. Empty where memory is not planned.",
            {
                "predicted": "max(coxswain_memory_predicted_peak_bytes)",
                "measured": "max(coxswain_rank_memory_peak_bytes)",
                "budget": "min(coxswain_memory_budget_bytes)",
                "every block kept": "max(coxswain_memory_keep_all_peak_bytes)",
            },
            min=0,
        ),
        lines(
            "Blocks by action",
            (12, 8),
            "Blocks under each memory action, averaged over the ranks.",
            {"{{action}}": "max by (action) (coxswain_plan_action_blocks)"},
            draw=AREAS,
        ),
        lines(
            "Added time",
            (6, 8),
            "Most time that the newest plan is predicted to add to a step of a rank, of a step with every block kept.",
            {"added": "max(coxswain_memory_added_time_ratio)"},
            min=0,
        ),
        lines(
            "Left of the budget",
            (6, 8),
            "Least that a rank's measured peak is below its budget; below zero is over budget.",
            {"least left": "min(coxswain_memory_headroom_bytes)"},
        ),
        lines(
            "Nearest to its budget",
            (6, 8),
            "Which rank has the least left, and how many are over their budget. -1 where none has a budget.",
            {
                "rank": "max(coxswain_memory_tightest_rank)",
                "ranks over budget": "max(coxswain_memory_over_budget_ranks)",
            },
        ),
        lines(
            "What a rank holds",
            (6, 8),
            "What every rank holds beside activations, most that a rank holds all through a step, what all blocks would hold for the backward pass, and what those hold that the plan keeps.",
            {
                "all through the step": "max(coxswain_memory_resident_bytes)",
                "blocks: {{blocks}}": "max by (blocks) (coxswain_memory_activation_bytes)",
                "{{kind}}": "max by (kind) (coxswain_memory_held_bytes)",
            },
            min=0,
        ),
    ]


def numerics():
    return [
        lines(
            "Loss scale",
            (8, 8),
            "What fp16 gradients are multiplied with, and the limits that the plan sets; 0 where no loss scaler is at work. It falls with every overflow and grows after a stretch of clean steps; at its floor it cannot help any more.",
            {
                "loss scale": "max(coxswain_loss_scale)",
                "floor": "max(coxswain_loss_scale_floor)",
                "ceiling": "max(coxswain_loss_scale_ceiling)",
            },
            unit="short",
            draw=log_scale(2),
        ),
        lines(
            "Overflows by block",
            (8, 8),
            "Rounds in which values that are not finite arose, by the block and pass to blame; outside is outside of all blocks.",
            {"{{block}} {{pass}}": "sum by (block, pass) (increase(coxswain_overflows_total)) > 0"},
            unit="short",
            min=0,
        ),
        lines(
            "Steps lost",
            (8, 8),
            "Part of the rounds whose step was skipped, and part in which something overflowed.",
            {
                "skipped": "sum(rate(coxswain_skipped_rounds_total)) / sum(rate(coxswain_rounds_total))",
                "overflowed": "sum(rate(coxswain_overflow_rounds_total)) / sum(rate(coxswain_rounds_total))",
            },
            unit="percentunit",
            min=0,
        ),
        formats_over_time(
            "Format of every block",
            (12, 10),
            "What every block computes in. In large models a few neighbours share a line, which shows the lowest format among them.",
            {"{{block}}": "max by (block) (coxswain_block_precision)"},
        ),
        lines(
            "Changes of format",
            (6, 10),
            "Changes of a block's format that took effect.",
            {"{{from}} to {{to}}": "sum by (from, to) (increase(coxswain_precision_changes_total)) > 0"},
            unit="short",
            min=0,
        ),
        figure(
            "Since the last overflow",
            (6, 5),
            "Time since values that are not finite last arose; empty when they never did.",
            {
                "since the last overflow": "min((time() - coxswain_last_overflow_timestamp_seconds) and coxswain_last_overflow_timestamp_seconds > 0)"
            },
            decimals=1,
            thresholds=thresholds(("red", None), ("orange", 60), ("green", 600)),
        ),
        lines(
            "Gradient noise",
            (8, 8),
            "Noise of a block's gradients divided by their signal, the eight noisiest blocks. 1000 and more, where hardly any signal is seen, is drawn as 1000.",
            {
                "{{block}}": "topk(8, clamp_max(max by (block) (coxswain_block_gradient_noise_ratio), 1000))"
            },
            min=0,
        ),
        lines(
            "Underflow and clipping",
            (8, 8),
            "Sampled values that a block's format flushed to zero or clipped, the five worst blocks each.",
            {
                "{{block}} underflow": "topk(5, max by (block) (coxswain_block_underflow_ratio))",
                "{{block}} clipped": "topk(5, max by (block) (coxswain_block_saturated_ratio) > 0)",
            },
            min=0,
        ),
        lines(
            "Magnitudes",
            (8, 8),
            "Largest finite results and gradients of blocks over the ranks, the five largest each; gradients are without the loss scale.",
            {
                "{{block}} result": "topk(5, max by (block) (coxswain_block_activation_magnitude))",
                "{{block}} gradient": "topk(5, max by (block) (coxswain_block_gradient_magnitude))",
            },
            unit="short",
            draw=log_scale(10),
        ),
    ]


def decisions():
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
        lines(
            "Precision of the blocks",
            (12, 7),
            "Blocks that compute in each precision under the newest plan.",
            {"{{precision}}": "max by (precision) (coxswain_plan_precision_blocks)"},
            draw=AREAS,
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
    ]


def control_plane():
    return [
        lines(
            "Time to decide",
            (8, 7),
            "Time to decide on one round.",
            quantiles("coxswain_decision_duration_seconds", 0.5, 0.99),
            thresholds=thresholds(("green", None), ("orange", 0.05)),
        ),
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
            "Rounds and plans a second",
            (8, 7),
            "How often the control loop turns, and how often it publishes.",
            {"rounds/s": "sum(rate(coxswain_rounds_total))", "plans/s": "sum(rate(coxswain_plans_total))"},
            unit="ops",
        ),
        lines(
            "Journal errors",
            (8, 7),
            "Journal records that could not be written. Any makes the job impossible to replay completely.",
            {"errors": "sum(increase(coxswain_journal_errors_total))"},
        ),
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
    ("Is it training?", is_it_training),
    ("Where the time goes", where_the_time_goes),
    ("Ranks", ranks),
    ("Data parallel", data_parallel),
    ("Activation memory", activation_memory),
    ("Numerics", numerics),
    ("Decisions", decisions),
    ("Control plane", control_plane),
]
