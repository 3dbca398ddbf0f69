"""F3: Python goes on from a save of one to four ranks, from its pieces and from the merged files.

    f3.py --bench PROGRAM --mpiexec PROGRAM --cox PROGRAM --peer-python PROGRAM --scratch DIR
"""

import argparse
import json
import os
import subprocess

from figures import line

HERE = os.path.dirname(os.path.abspath(__file__))
SAVE = "step-000000000006"


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout


def losses_here(options, ranks, folder):
    """Of the whole batch: the ranks have equal parts of it."""
    found = output_of([options.mpiexec, "-n", str(ranks), options.bench, "continue", "--cox.run.log=error",
                       "--cox.http.enabled=off", "--cox.checkpoint.directory=" + folder])
    per_rank = [json.loads(text)["losses"] for text in found.splitlines() if text.startswith("{")]
    assert len(per_rank) == ranks, found
    return [sum(step) / ranks for step in zip(*per_rank)]


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "cox", "peer-python", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for ranks in (1, 2, 3, 4):
        saves = os.path.join(options.scratch, f"saves{ranks}")
        merged = os.path.join(options.scratch, f"merged{ranks}")
        ours = losses_here(options, ranks, saves)
        save = os.path.join(saves, SAVE)
        output_of([options.cox, "checkpoint", "merge", save, merged])
        for figure, folder in (("pieces", save), ("merged", merged)):
            found = json.loads(output_of([options.peer_python, "-B", os.path.join(HERE, "f3_peer.py"), folder]))
            farthest = max(abs(a - b) / abs(a) for a, b in zip(ours, found, strict=True))
            line("F3", farthest, "relative distance of a loss in Python", figure, limit=1e-6, ranks=ranks,
                 steps=len(found))


if __name__ == "__main__":
    main()
