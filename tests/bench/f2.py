"""F2: bytes of an adopted loop whose ranks divide what they hold, and its predicted peaks under memory budgets.

    f2.py --bench PROGRAM --mpiexec PROGRAM --text FILE --scratch DIR [--quick]

The activations of a rank are those of the same loop replicated: its peak less the parameters, two moments, and
gradients, which lie in memory that the ranks share where they are averaged there.
"""

import argparse
import os
import subprocess

from figures import line
from turns import Ranks

MIB = 1 << 20
STEPS = 4
BUDGETS = 24
ROWS = 8
LAYERS, WIDTH = 6, 256
QUEUED_BYTES = 8 * MIB  # of own gradients, in a backward pass (docs/sharding.md)
SHARDED = ["--cox.shard.mode=state"]


def answers_of(options, task, world, name, flags):
    ranks = Ranks(name, os.path.join(options.scratch, name), world)
    try:
        ranks.start([options.mpiexec, "-n", str(world), options.bench, "turns", task, ranks.folder, str(ROWS),
                     "--cox.run.log=error", "--cox.http.enabled=off", *flags], threads=1)
        ranks.turn("-", STEPS)
        answers = ranks.turn("-", STEPS)
        ranks.quit()
        return answers
    finally:
        ranks.kill()


def tell_bytes(options, task, world):
    """Prints what the node holds beside the formula, and returns the largest peak of a sharded rank."""
    observe = ["--cox.memory.mode=observe", "--cox.memory.budget=100GiB"]
    whole = answers_of(options, task, world, f"whole{world}", observe)
    sharded = answers_of(options, task, world, f"sharded{world}", observe + SHARDED)
    parameters = whole[0]["parameter_bytes"]
    gradients_in_shared = min(parameters, whole[0]["shared_bytes"] // world)
    activations = max(each["peak_bytes"] for each in whole) + gradients_in_shared - 4 * parameters
    held = sharded[0]["shared_bytes"] + sum(each["peak_bytes"] for each in sharded)
    formula = 4 * parameters + world * (activations + QUEUED_BYTES)
    line("F2", held / formula, "of the formula", "bytes of the node", 1.01, ranks=world,
         parameters_mib=parameters / MIB, activations_mib=activations / MIB, held_mib=held / MIB,
         replicated_mib=sum(each["peak_bytes"] for each in whole) / MIB)
    return max(each["peak_bytes"] for each in sharded)


def tell_budgets(options, task, world, peak):
    worst, kept, planned = 0.0, 0, 0
    count = 4 if options.quick else BUDGETS
    for i in range(count):
        budget = int(peak * (0.45 + 0.5 * i / count)) // 1024
        answers = answers_of(options, task, world, f"budget{i}",
                             [f"--cox.memory.budget={budget}KiB", *SHARDED])
        predicted = answers[0]["predicted_bytes"]
        measured = max(each["peak_bytes"] for each in answers)
        if predicted == 0:
            continue
        planned += 1
        kept += measured <= budget * 1024
        worst = max(worst, abs(measured - predicted) / predicted)
    line("F2", 100 * worst, "%", "largest difference of a measured peak from the predicted one", 0.2, ranks=world,
         budgets=count, planned=planned)
    line("F2", kept, "budgets", "kept", planned, "higher", ranks=world)


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "text", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    task = os.path.join(options.scratch, "task")
    os.makedirs(task)
    subprocess.run([options.bench, "task", task, options.text, str(LAYERS), str(WIDTH)], check=True)
    peak = 0
    for world in (2,) if options.quick else (4, 2):
        peak = tell_bytes(options, task, world)
    tell_budgets(options, task, 2, peak)


if __name__ == "__main__":
    main()
