"""S2: the figures of `cox whatif` against those published, and what it takes.

    s2.py --bench MAKER --cox COX --data FOLDER --scratch FOLDER [--quick]

MAKER writes a trace of 128 workers; FOLDER has trace-NAME.csv.gz and expected-NAME.json. CPU time is
judged, because other programs may share the machine; wall time stands beside it.
"""

import argparse
import glob
import json
import os
import resource
import statistics
import subprocess
import time

from figures import line


def children_cpu():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(cox, trace):
    """The figures, CPU seconds and wall seconds of one call."""
    cpu, wall = children_cpu(), time.perf_counter()
    done = subprocess.run([cox, "whatif", trace, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout), children_cpu() - cpu, time.perf_counter() - wall


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def deviations(expected, found, path=""):
    """(path, deviation) of each published number: relative, of shares absolute."""
    for key, value in expected.items():
        where = f"{path}/{key}"
        if isinstance(value, dict):
            yield from deviations(value, found[key], where)
        elif is_number(value):
            is_share = key.endswith("_share") or key in ("M_W", "M_S")
            size = 1 if is_share or value == 0 else abs(value)
            yield where, abs(found[key] - value) / size


def measure(cox, trace, name, repeats):
    runs = [run(cox, trace) for _ in range(repeats)]
    figures = runs[0][0]
    size = {"trace": name, "workers": figures["traced_ranks"], "steps": figures["steps"]}
    cpu = statistics.median(seconds for _, seconds, _ in runs)
    wall = statistics.median(seconds for _, _, seconds in runs)
    line("S2", cpu, "s", "the whole command, CPU time, median", 1, runs=repeats, **size)
    line("S2", wall, "s", "the whole command, wall time, median", runs=repeats, **size)
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--mpiexec")
    parser.add_argument("--cox", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    repeats = 3 if options.quick else 20
    for trace in sorted(glob.glob(os.path.join(options.data, "trace-*.csv.gz"))):
        name = os.path.basename(trace).removeprefix("trace-").removesuffix(".csv.gz")
        figures = measure(options.cox, trace, name, repeats)
        with open(os.path.join(options.data, f"expected-{name}.json"), encoding="utf-8") as file:
            off = list(deviations(json.load(file), figures))
        worst = max(off, key=lambda pair: pair[1])
        line("S2", worst[1], "ratio", "largest deviation from a published number", 0.01, trace=name,
             numbers=len(off), where=worst[0])
    made = os.path.join(options.scratch, "trace-made.csv")
    subprocess.run([options.bench, made], check=True)
    measure(options.cox, made, "made", max(3, repeats // 4))
    os.remove(made)


if __name__ == "__main__":
    main()
