"""OW: a loop that is watched only, beside the same loop in Python under pytscope's AutoProfiler.

    ow.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --scratch DIR [--quick]

Four programs live from start to end: both loops, plain and watched. They take turns, in an order of its
own each round. The cost is that of a watched step over a plain one; phases are what each side wrote into
its run directory about the steps of that turn.
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


def take_turns(options, folders, rounds, steps):
    """The phases of each step by the loop's own clock, in ms: a list of rounds for each program."""
    arms = [(side, mode) for side in SIDES for mode in ("plain", "watched")]
    programs = {arm: Ranks("-".join(arm), os.path.join(options.scratch, "ow-" + "-".join(arm)), 1)
                for arm in arms}
    command = commands(options, {arm: ranks.folder for arm, ranks in programs.items()}, folders)
    took = {arm: [] for arm in arms}
    try:
        for arm in arms:
            programs[arm].start(command[arm], threads=1)
        for number in range(rounds):
            for arm in random.Random(number).sample(arms, len(arms)):
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


def tell_ratio(figure, limit, over, under):
    value, low, high = (100 * (math.exp(each) - 1)
                        for each in centre([math.log(a / b) for a, b in zip(over, under)]))
    line("OW", abs(value), "%", figure, limit, ratio=1 + value / 100, from_95=1 + low / 100,
         to_95=1 + high / 100, ms=quantile(over, 0.5), against_ms=quantile(under, 0.5))


def tell(took, records, steps):
    for side, limit in (("ours", 1.0), ("pytscope", None)):
        plain, watched = (medians(took[side, mode], sum) for mode in ("plain", "watched"))
        value, low, high = centre([100 * (b / a - 1) for a, b in zip(plain, watched)])
        line("OW", value, "%", f"growth of a step that is watched only, {side}", limit, low_95=low,
             high_95=high, rounds=len(plain), steps=steps, step_ms=quantile(plain, 0.5))
    for number, phase in enumerate(PHASES):
        def value_of(step, number=number):
            return step[number]

        saw = {side: medians(records[side], value_of) for side in SIDES}
        clock = {side: medians(took[side, "watched"], value_of) for side in SIDES}
        tell_ratio(f"{phase}: ours against pytscope", 5, saw["ours"], saw["pytscope"])
        for side in SIDES:
            tell_ratio(f"{phase}: {side} against its loop's own clock", 5 if side == "ours" else None,
                       saw[side], clock[side])


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "peer-python", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds, steps = (8, 6) if options.quick else (80, 8)
    folders = {side: os.path.join(options.scratch, "ow-run-" + side) for side in SIDES}
    took = take_turns(options, folders, rounds, steps)
    tell(took, {side: recorded(folders[side], rounds, steps) for side in SIDES}, steps)


if __name__ == "__main__":
    main()
