"""T4: `cox analyze`, `cox trace` and `cox whatif` on large runs and traces: memory, CPU time; agreement
on published runs.

    t4.py --bench MAKER --cox COX --data FOLDER --scratch FOLDER [--quick]

MAKER writes run directories and traces; FOLDER has expected.json and runs/. With --quick a run is of
20 MB, a trace of 100,000 events, and their memory is told but not judged.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

from figures import line

LIMIT_MIB = 256
LIMIT_SECONDS = 10
FULL_MB = 1000
FULL_EVENTS = 10_000_000


def measured(command):
    """Runs it; returns the peak of its resident memory in MiB, CPU seconds and wall seconds."""
    began = time.perf_counter()
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        process = subprocess.Popen(command, stdout=nothing, stderr=nothing)
        _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"expected exit code 0 of {command}, found status {status}")
    return usage.ru_maxrss / 1024, usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def steps_bytes(run):
    return sum(os.path.getsize(os.path.join(base, "steps.jsonl"))
               for base, _, leaves in os.walk(run) if "steps.jsonl" in leaves)


def analyze_large(options, ranks, megabytes):
    run = os.path.join(options.scratch, f"run-{ranks}")
    shutil.rmtree(run, ignore_errors=True)
    subprocess.run([options.bench, "run", run, str(ranks), str(megabytes)], check=True)
    size = steps_bytes(run)
    config = {"ranks": ranks, "megabytes": round(size / 1e6)}
    memory, cpu, wall = measured([options.cox, "analyze", run])
    line("T4", memory, "MiB", "cox analyze, peak resident memory",
         LIMIT_MIB if megabytes == FULL_MB else None, **config)
    line("T4", cpu * 1e9 / size, "s", "cox analyze, CPU time for a gigabyte", LIMIT_SECONDS, **config)
    line("T4", wall * 1e9 / size, "s", "cox analyze, wall time for a gigabyte", **config)
    memory, cpu, wall = measured([options.cox, "trace", run, "--out", run + ".json"])
    line("T4", memory, "MiB", "cox trace, peak resident memory",
         LIMIT_MIB if megabytes == FULL_MB else None, **config)
    line("T4", cpu, "s", "cox trace, CPU time", **config)
    os.remove(run + ".json")
    memory, cpu, wall = measured([options.cox, "whatif", run])
    line("T4", memory, "MiB", "cox whatif, peak resident memory",
         LIMIT_MIB if megabytes == FULL_MB else None, **config)
    line("T4", cpu, "s", "cox whatif, CPU time", **config)
    shutil.rmtree(run)


def analyze_trace(options, kind, events):
    """Of a small run with a large trace."""
    trace = os.path.join(options.scratch, f"{kind}.json")
    subprocess.run([options.bench, "trace", trace, str(events), kind], check=True)
    run = os.path.join(options.data, "runs", "healthy")
    memory, cpu, _ = measured([options.cox, "analyze", run, "--trace", trace])
    config = {"events": events, "kernels": kind, "megabytes": round(os.path.getsize(trace) / 1e6)}
    line("T4", memory, "MiB", "cox analyze of a trace, peak resident memory",
         LIMIT_MIB if events == FULL_EVENTS else None, **config)
    line("T4", cpu, "s", "cox analyze of a trace, CPU time", **config)
    os.remove(trace)


def heads(findings):
    return [(finding["code"], finding["severity"]) for finding in findings]


def compare_published(options):
    with open(os.path.join(options.data, "expected.json"), encoding="utf-8") as file:
        expected = json.load(file)["analyze"]
    different = 0
    for name, wanted in expected.items():
        done = subprocess.run([options.cox, "analyze", os.path.join(options.data, "runs", name),
                               "--rules", "pytscope", "--json", *wanted["arguments"]],
                              capture_output=True, text=True, check=True)
        different += heads(json.loads(done.stdout)["findings"]) != heads(wanted["findings"])
    line("T4", different, "runs", "published runs whose findings differ from pytscope's", 0,
         runs=len(expected))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--mpiexec")
    parser.add_argument("--cox", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    compare_published(options)
    for ranks in (1, 4) if options.quick else (1, 4, 1000):
        analyze_large(options, ranks, 20 if options.quick else FULL_MB)
    for kind in ("apart", "nonsense"):
        analyze_trace(options, kind, 100_000 if options.quick else FULL_EVENTS)


if __name__ == "__main__":
    main()
