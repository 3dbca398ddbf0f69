"""OW: a loop that is watched only, beside the same loop in Python under pytscope's AutoProfiler.

    ow.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --scratch DIR [--quick]

Each round starts four programs in an order of its own: both loops, plain and watched. The cost is that of a
watched step over a plain one; phases are what each side wrote into its run directory.
"""

import argparse
import json
import math
import os
import random
import subprocess

from figures import centre, line, quantile

HERE = os.path.dirname(os.path.abspath(__file__))
PHASES = ("data", "forward", "backward", "optimizer")
WARMUP_STEPS = 10


def milliseconds(command):
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def phases_of(folder):
    """Median seconds of each phase, of all steps after warm-up."""
    path = next(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names
                if name == "steps.jsonl")
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(text) for text in file]
    rows = [row["phases"] for row in rows if row["step"] >= WARMUP_STEPS]
    # The last step has no next forward pass that would end it like the others.
    return {phase: quantile([row.get(phase, 0) for row in rows[:-1]], 0.5) for phase in PHASES}


class Round:
    """One run of each of the four programs."""

    def __init__(self, options, number, steps):
        ours, theirs = (os.path.join(options.scratch, f"{side}{number}") for side in ("ow", "peer"))
        quiet = ["--cox.run.log=error", "--cox.http.enabled=off"]
        peer = [options.peer_python, "-B", os.path.join(HERE, "ow_peer.py")]
        commands = {
            ("ours", "plain"): [options.bench, "plain", str(steps), *quiet],
            ("ours", "watched"): [options.bench, "watched", str(steps), *quiet,
                                  f"--cox.run.directory={ours}"],
            ("pytscope", "plain"): [*peer, "plain", str(steps), theirs],
            ("pytscope", "watched"): [*peer, "watched", str(steps), theirs],
        }
        order = list(commands)
        random.Random(number).shuffle(order)
        took = {arm: quantile(milliseconds(commands[arm]), 0.5) for arm in order}
        self.growth = {side: took[side, "watched"] / took[side, "plain"] - 1
                       for side in ("ours", "pytscope")}
        self.step_ms = {side: took[side, "plain"] for side in ("ours", "pytscope")}
        self.phases = {"ours": phases_of(ours), "pytscope": phases_of(theirs)}


def tell(rounds, steps):
    for side, limit in (("ours", 1.0), ("pytscope", None)):
        value, low, high = (100 * each for each in centre([r.growth[side] for r in rounds]))
        line("OW", value, "%", f"growth of a step that is watched only, {side}", limit, low_95=low,
             high_95=high, rounds=len(rounds), steps=steps,
             step_ms=quantile([r.step_ms[side] for r in rounds], 0.5))
    for phase in PHASES:
        ratios = [math.log(r.phases["ours"][phase] / r.phases["pytscope"][phase]) for r in rounds]
        value, low, high = (100 * (math.exp(each) - 1) for each in centre(ratios))
        line("OW", abs(value), "%", f"{phase}: difference of what both sides saw", 5, low_95=low,
             high_95=high, ours_ms=1e3 * quantile([r.phases["ours"][phase] for r in rounds], 0.5),
             pytscope_ms=1e3 * quantile([r.phases["pytscope"][phase] for r in rounds], 0.5))


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "peer-python", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rounds, steps = (2, 50) if options.quick else (16, 150)
    tell([Round(options, number, steps) for number in range(rounds)], steps)


if __name__ == "__main__":
    main()
