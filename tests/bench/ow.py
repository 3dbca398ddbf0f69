"""OW: a loop that is watched only, beside the same loop in Python under pytscope's AutoProfiler.

    ow.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --scratch DIR [--quick]

Each start has four programs, both loops, plain and watched, which take turns, in an order of its own each
round. The cost is that of a watched step over a plain one. Phases are what each side wrote into its run
directory about the steps of its turns, over what its loop's own clock says of the same steps.
"""

import argparse
import json
import math
import os
import random

from figures import centre, line, quantile
from turns import Ranks

HERE = os.path.dirname(os.path.abspath(__file__))
PHASES = ("data", "forward", "backward", "optimizer")
SIDES = ("ours", "pytscope")


def commands(options, pipes, folders):
    quiet = ["--cox.run.log=error", "--cox.http.enabled=off"]
    peer = [options.peer_python, "-B", os.path.join(HERE, "ow_peer.py")]
    return {
        ("ours", "plain"): [options.bench, "plain", pipes["ours", "plain"], *quiet],
        ("ours", "watched"): [options.bench, "watched", pipes["ours", "watched"], *quiet,
                              "--cox.run.directory=" + folders["ours"]],
        ("pytscope", "plain"): [*peer, "plain", pipes["pytscope", "plain"], "-"],
        ("pytscope", "watched"): [*peer, "watched", pipes["pytscope", "watched"], folders["pytscope"]],
    }


def take_turns(options, scratch, folders, rounds, steps):
    """The phases of each step by the loop's own clock, in ms: a list of rounds for each program."""
    arms = [(side, mode) for side in SIDES for mode in ("plain", "watched")]
    programs = {arm: Ranks("-".join(arm), os.path.join(scratch, "-".join(arm)), 1) for arm in arms}
    command = commands(options, {arm: ranks.folder for arm, ranks in programs.items()}, folders)
    took = {arm: [] for arm in arms}
    try:
        for arm in arms:
            programs[arm].start(command[arm], threads=1)
        for number in range(rounds):
            for arm in random.Random(f"{scratch} {number}").sample(arms, len(arms)):
                took[arm].append(programs[arm].turn("-", steps + 1)[0]["ms"])
        for ranks in programs.values():
            ranks.quit()
    finally:
        for ranks in programs.values():
            ranks.kill()
    return took


def recorded(folder, rounds, steps):
    """The same as the run directory has it."""
    path = next(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names
                if name == "steps.jsonl")
    with open(path, encoding="utf-8") as file:
        rows = {row["step"]: row["phases"] for row in map(json.loads, file)}
    per_step = [[1e3 * rows.get(step, {}).get(phase, 0) for phase in PHASES]
                for step in range(rounds * (steps + 1))]
    return [per_step[number * (steps + 1):(number + 1) * (steps + 1)] for number in range(rounds)]


def medians(rounds, value_of):
    """Of each round but the first. The first step of a turn has waited for it and does not count; nor
    does the last round, whose last step has no next forward pass that would end it like the others."""
    return [quantile([value_of(step) for step in steps[1:]], 0.5) for steps in rounds[1:-1]]


class Start:
    """The medians over the rounds of one start of all four programs."""

    def __init__(self, options, number, rounds, steps):
        scratch = os.path.join(options.scratch, f"ow{number}")
        os.makedirs(scratch)
        folders = {side: os.path.join(scratch, "run-" + side) for side in SIDES}
        took = take_turns(options, scratch, folders, rounds, steps)
        step = {arm: medians(took[arm], sum) for arm in took}
        self.step_ms = {side: quantile(step[side, "plain"], 0.5) for side in SIDES}
        self.growth = {side: quantile([b / a - 1 for a, b in zip(step[side, "plain"], step[side, "watched"])],
                                      0.5) for side in SIDES}
        self.saw, self.of_clock = {}, {}
        for side in SIDES:
            records = recorded(folders[side], rounds, steps)
            for number, phase in enumerate(PHASES):
                saw, clock = (medians(each, lambda values, number=number: values[number])
                              for each in (records, took[side, "watched"]))
                self.saw[side, phase] = quantile(saw, 0.5)
                self.of_clock[side, phase] = quantile([a / b for a, b in zip(saw, clock)], 0.5)


def tell_ratio(figure, limit, ratios, **config):
    value, low, high = (100 * (math.exp(each) - 1) for each in centre([math.log(r) for r in ratios]))
    line("OW", abs(value), "%", figure, limit, ratio=1 + value / 100, from_95=1 + low / 100,
         to_95=1 + high / 100, **config)


def tell(starts, rounds, steps):
    for side, limit in (("ours", 1.0), ("pytscope", None)):
        value, low, high = centre([100 * start.growth[side] for start in starts])
        line("OW", value, "%", f"growth of a step that is watched only, {side}", limit, low_95=low,
             high_95=high, starts=len(starts), rounds=rounds, steps=steps,
             step_ms=quantile([start.step_ms[side] for start in starts], 0.5))
    for phase in PHASES:
        ms = {f"{side}_ms": quantile([start.saw[side, phase] for start in starts], 0.5) for side in SIDES}
        tell_ratio(f"{phase}: ours against pytscope, each over its loop's own clock", 5,
                   [start.of_clock["ours", phase] / start.of_clock["pytscope", phase] for start in starts],
                   **ms)
        for side in SIDES:
            tell_ratio(f"{phase}: {side} against its loop's own clock", 5 if side == "ours" else None,
                       [start.of_clock[side, phase] for start in starts])


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "peer-python", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    starts, rounds, steps = (2, 6, 6) if options.quick else (12, 12, 8)
    tell([Start(options, number, rounds, steps) for number in range(starts)], rounds, steps)


if __name__ == "__main__":
    main()
