"""The dashboard Memory and numerics: what ranks hold, what plans keep, loss scale, formats of blocks."""

from grafana_panels import AREAS
from grafana_panels import figure, formats_over_time, lines, log_scale, over_ranks, thresholds


def memory():
    return [
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


def loss_scale():
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
    ]


def blocks():
    return [
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


ROWS = [
    ("Memory", memory),
    ("Activation memory", activation_memory),
    ("Loss scale and overflows", loss_scale),
    ("Blocks", blocks),
]
