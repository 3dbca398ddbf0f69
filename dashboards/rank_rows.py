"""The dashboard Ranks: who is slow and who waits, what their hosts lose, what they share."""

from grafana_panels import AREAS, STEPS
from grafana_panels import lines, organize, over_ranks, table, thresholds


def who_is_slow():
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
    ]


def time_over_the_ranks():
    return [
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
    ]


def who_waits():
    return [
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
    ]


def hosts():
    return [
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
        lines(
            "Writes and waits of a shared update",
            (12, 8),
            "Operators that wrote to parameters which the ranks of a node hold once, and waits for other ranks, in an update of rank 0. Empty without shard.mode=state.",
            {
                "writes": "sum(rate(coxswain_shared_writes_total)) / sum(rate(coxswain_shared_updates_total))",
                "waits": "sum(rate(coxswain_shared_waits_total)) / sum(rate(coxswain_shared_updates_total))",
            },
            min=0,
        ),
        lines(
            "Waited in a shared update",
            (6, 8),
            "Time of rank 0's waits for other ranks in an update.",
            {"waited": "sum(rate(coxswain_shared_wait_seconds_total)) / sum(rate(coxswain_shared_updates_total))"},
            min=0,
        ),
        lines(
            "Updates in a new order",
            (6, 8),
            "Shared updates that wrote in an order that had not occurred before, so that every write waited.",
            {"new orders": "sum(increase(coxswain_shared_new_sequences_total))"},
            min=0,
        ),
    ]


ROWS = [
    ("Who is slow", who_is_slow),
    ("Time over the ranks", time_over_the_ranks),
    ("Who waits", who_waits),
    ("Hosts", hosts),
    ("Data parallel", data_parallel),
]
