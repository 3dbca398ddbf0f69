"""D4: reproducible mode: equal weights at any number of ranks and any shares, and what it costs.

    d4.py --bench PROGRAM --mpiexec PROGRAM --scratch DIR [--quick]
"""

import argparse
import json
import os
import subprocess
import sys

from figures import centre, line, quantile
from turns import Ranks

WORLDS = [1, 2, 4, 8]
COST_LIMIT = 3
QUIET = ["--cox.run.log=error", "--cox.http.port=0"]


def switch(mode):
    return f"--cox.reduction.reproducible={mode}"


def weights(options, world, steps, mode):
    """What rank 0 says at the end; shares are drawn from another seed at each number of ranks."""
    command = [options.mpiexec, "-n", str(world), options.bench, "weights", str(steps), str(world),
               switch(mode), *QUIET]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))


def tell_weights(options, steps):
    found = {world: weights(options, world, steps, "on") for world in WORLDS}
    sums = sorted({answer["weights"] for answer in found.values()})
    line("D4", len(sums), "weights", "different weights at the end, at 1, 2, 4 and 8 ranks", 1,
         steps=steps, checksum=" ".join(sums), loss=found[1]["loss"],
         **{f"changes_of_shares_{world}": found[world]["changes"] for world in WORLDS[1:]})
    plain = {weights(options, world, steps // 10, "off")["weights"] for world in WORLDS[:2]}
    line("D4", len(plain), "weights", "the same without reproducible mode, at 1 and 2 ranks",
         steps=steps // 10)


def tell_cost(options, rounds, steps):
    sides = {mode: Ranks(mode, os.path.join(options.scratch, "d4-" + mode), 2)
             for mode in ("off", "on")}
    try:
        for mode, ranks in sides.items():
            ranks.start([options.mpiexec, "-n", "2", options.bench, "turns", ranks.folder,
                         switch(mode), *QUIET], threads=1)
        seconds = {mode: [] for mode in sides}
        cpu = {mode: [] for mode in sides}
        repeated = 0
        for number in range(-1, rounds):  # the first is a warm-up
            for mode in sorted(sides, reverse=number % 2 == 1):
                answers = sides[mode].turn(mode, steps + 1)
                if number >= 0:
                    seconds[mode].append(max(answer["seconds"] for answer in answers) / steps)
                    cpu[mode].append(sum(answer["cpu"] for answer in answers) / steps)
                repeated = max([repeated] + [answer["repeated"] for answer in answers])
        for ranks in sides.values():
            ranks.quit()
    finally:
        for ranks in sides.values():
            ranks.kill()
    value, low, high = centre([100 * (a / b - 1) for a, b in zip(seconds["on"], seconds["off"])])
    line("D4", value, "%", "growth of a step by reproducible mode", COST_LIMIT, ranks=2, low_95=low,
         high_95=high, rounds=rounds, steps=steps, on_ms=1e3 * quantile(seconds["on"], 0.5),
         off_ms=1e3 * quantile(seconds["off"], 0.5), repeated_steps=repeated,
         cpu_growth=100 * (quantile(cpu["on"], 0.5) / quantile(cpu["off"], 0.5) - 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bench", "mpiexec", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        tell_weights(options, 100 if options.quick else 1000)
        tell_cost(options, *((3, 3) if options.quick else (12, 5)))
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
