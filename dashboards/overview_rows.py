"""The panels of the dashboard, row by row: title, (width, height) of 24 columns, description, queries.

Panels stand from left to right, as high as they fit. A unit is named only where it is not that of
the metrics.
"""

from grafana_panels import AREAS, BARS, STACKED, STEPS
from grafana_panels import figure, formats_over_time, lines, log_scale, organize, over_ranks, quantiles, table
from grafana_panels import thresholds


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
            "Spread over the ranks",
            (8, 8),
            "Wall time of a step by rank, as statistics over the ranks.",
            over_ranks("coxswain_rank_step_duration_seconds", by="avg"),
        ),
        lines(
            "Own work over the ranks",
            (8, 8),
            "Time a rank works without waiting for others. The slowest rank holds up the rest.",
            over_ranks("coxswain_rank_work_duration_seconds", by="avg"),
        ),
        lines(
            "Skew",
            (8, 8),
            "Own work of the slowest rank divided by the median; 1 is even.",
            {"skew": "max(coxswain_rank_step_skew_ratio)"},
            unit="none",
            decimals=2,
            min=1,
            thresholds=thresholds(("green", None), ("orange", 1.2)),
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


def ranks():
    return [
        table(
            "Slowest ranks",
            (8, 8),
            "The five ranks with most own work in the newest round. Slot 0 is the slowest.",
            {
                "rank": "max by (slot) (coxswain_worst_rank >= 0)",
                "to median": "max by (slot) (coxswain_worst_rank_slowdown_ratio > 0)",
            },
            [
                {"id": "joinByField", "options": {"byField": "slot", "mode": "outer"}},
                organize(["Time 1", "Time 2"], {"slot": "Slot", "Value #A": "Rank", "Value #B": "To median"}),
            ],
            decimals=2,
        ),
        lines(
            "Who is slowest",
            (8, 8),
            "The rank in slot 0 over time. A steady line is a straggler, a restless one is noise.",
            {"rank {{instance}}": 'coxswain_worst_rank{slot="0"}'},
            draw=STEPS,
            decimals=0,
        ),
        lines(
            "Ranks by state",
            (8, 8),
            "What the ranks did in each round. They add up to the world size.",
            {"{{state}}": "sum by (state) (coxswain_ranks)"},
            draw=AREAS,
        ),
        lines(
            "Ranks by speed",
            (12, 7),
            "Hosts whose ranks are all slow, and ranks that are not ordinary by what the estimates say of their speed. Suspected is not certain yet; recovered ranks were slow a while ago.",
            {"{{state}}": 'sum by (state) (coxswain_ranks_by_speed{state!="ordinary"})', "slow hosts": "sum(coxswain_slow_hosts)"},
            draw=STEPS,
        ),
        lines(
            "How slow",
            (12, 7),
            "The largest slowdown of a rank and that of the job as a whole against its own past, each with its 95 % interval; 1 while nothing is slow.",
            {
                "slowest rank, {{bound}}": "max by (bound) (coxswain_straggler_slowdown_ratio)",
                "whole job, {{bound}}": "max by (bound) (coxswain_job_slowdown_ratio)",
            },
            unit="none",
            decimals=2,
            min=1,
        ),
        lines(
            "Waiting for the last rank",
            (12, 7),
            "The part of communication in a step before the last rank arrived, over the ranks. The rank that waits least is the one waited for. 0 where it is not measured.",
            over_ranks("coxswain_rank_waiting_duration_seconds", by="avg"),
            min=0,
        ),
        lines(
            "Recompute",
            (12, 7),
            "The part of backward in a step that memory actions cost, over the ranks.",
            over_ranks("coxswain_rank_recompute_duration_seconds", by="avg"),
            min=0,
        ),
        lines(
            "Pressure on hosts",
            (8, 7),
            "The largest part of its time that a host loses: stolen by other virtual machines, throttled by its CPU quota, or waiting for a core, memory or disks.",
            {"{{resource}}": "max by (resource) (coxswain_host_pressure_ratio)"},
            min=0,
            max=1,
        ),
        lines(
            "Load of the busiest host",
            (8, 7),
            "Threads a core that run or want to. More than 1 means that ranks wait for cores.",
            {"threads a core": "max(coxswain_host_load_per_core)"},
            decimals=1,
            min=0,
        ),
        lines(
            "Slowest clock",
            (8, 7),
            "Present over largest clock of the cores, on the host where it is lowest. Empty where no host tells.",
            {"clock": "min(coxswain_host_clock_ratio)"},
            min=0,
        ),
        lines(
            "Waiting for a rank",
            (12, 7),
            "How long ranks have waited for those that keep them waiting. 0 while nobody waits for long.",
            {"waited {{instance}}": "coxswain_stall_duration_seconds"},
            min=0,
        ),
        lines(
            "Who keeps others waiting",
            (12, 7),
            "The lowest rank that keeps others waiting, -1 while none does, and how many ranks do and wait. /status names the phase.",
            {"rank": "max(coxswain_stall_rank)", "{{part}}": "max by (part) (coxswain_stall_ranks)"},
            draw=STEPS,
            decimals=0,
        ),
        lines(
            "Memory in use",
            (12, 7),
            "Memory in use divided by its limit, over the ranks. 0 where no limit is known.",
            over_ranks("coxswain_rank_memory_used_ratio"),
            min=0,
            max=1,
        ),
        lines(
            "Memory high water",
            (12, 7),
            "Largest memory high water of a rank.",
            {"high water": "max(coxswain_rank_memory_peak_bytes)"},
            min=0,
        ),
    ]


def data_parallel():
    return [
        lines(
            "Batch of a step",
            (8, 8),
            "Samples that all ranks trained on in a step, and what the newest plan asks for. They part for the rounds until a plan is active.",
            {"trained on": "max(coxswain_step_samples)", "planned": "max(coxswain_plan_step_samples)"},
            min=0,
        ),
        lines(
            "Samples over the ranks",
            (8, 8),
            "How the batch divides: the rank with most samples in a step, with fewest, and between. Even shares lie on each other.",
            over_ranks("coxswain_rank_step_samples"),
            min=0,
        ),
        lines(
            "Micro-batches of the slowest",
            (8, 8),
            "Fewest micro-batches that a rank computed in a step: the anchor of accumulation. 0 where the job has no fixed micro-batch.",
            {"anchor": "max(coxswain_accumulation_anchor)"},
            min=0,
        ),
        lines(
            "Gradient reduction",
            (12, 8),
            "Time of a step's gradient buckets by rank, and the part of it that no backward pass hid.",
            {
                "{{stat}}": "max by (stat) (coxswain_reduction_duration_seconds)",
                "not hidden, {{stat}}": "max by (stat) (coxswain_reduction_exposed_duration_seconds)",
            },
            min=0,
        ),
        lines(
            "Hidden behind backward",
            (6, 8),
            "Part of the reduction's time that the backward pass hid. Empty where nothing is reduced.",
            {"hidden": "min(coxswain_reduction_hidden_ratio)"},
            min=0,
        ),
        lines(
            "Steps done again",
            (6, 8),
            "Steps whose exact sums were out of range, so the step was done again on all ranks. Only in reproducible mode.",
            {"done again": "sum(increase(coxswain_repeated_rounds_total))"},
            min=0,
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
            "What measured changes of each policy gained or lost since the job began, against going on without them.",
            {"{{policy}} {{result}}": "sum by (policy, result) (coxswain_policy_saved_seconds_total) > 0"},
            unit="s",
            min=0,
        ),
        lines(
            "What came of promises",
            (12, 7),
            "Changes that promised a shorter step, by what the comparison of the rounds before and after found.",
            {"{{policy}} {{verdict}}": "sum by (policy, verdict) (coxswain_policy_verdicts_total) > 0"},
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
