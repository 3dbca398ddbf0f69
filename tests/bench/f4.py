"""F4: what a save beside the steps costs them.

    f4.py --bench PROGRAM --mpiexec PROGRAM --scratch DIR [--quick]

One job of two ranks times blocks of steps in turn, with a save at the beginning of every other one.
"""

import argparse
import json
import os
import subprocess

from figures import centre, line


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = subprocess.run([options.mpiexec, "-n", "2", options.bench, "steps", *(["--quick"] if options.quick else []),
                            "--cox.run.log=error", "--cox.http.enabled=off", "--cox.checkpoint.keep=1",
                            "--cox.checkpoint.directory=" + os.path.join(options.scratch, "f4")],
                           check=True, stdout=subprocess.PIPE, text=True, timeout=3600).stdout
    rank = json.loads(next(text for text in found.splitlines() if text.startswith("{")))
    plain, saving = rank["plain_s"], rank["saving_s"]
    growth, low, high = centre([100 * (b / a - 1) for a, b in zip(plain, saving, strict=True)])
    config = {"parameters": rank["parameters"], "ranks": 2, "pairs": len(plain)}
    line("F4", growth, "% growth of the mean step", "a save beside the steps", limit=1, low=low, high=high, **config)
    line("F4", sum(plain) / len(plain), "s", "mean step without saves", **config)
    line("F4", max(rank["longest_s"]), "s", "longest step with saves", **config)


if __name__ == "__main__":
    main()
