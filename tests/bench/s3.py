"""S3: slow ranks named under real MPI, 8 ranks on however few cores there are.

    s3.py --bench PROGRAM --cox PROGRAM --mpiexec PROGRAM --scratch DIR [--quick]
"""

import argparse
import os
import random
import re
import subprocess

from figures import line, quantile

RANKS, BATCH, ONSET, STEPS = 8, 40, 60, 110
WITHIN_STEPS = 10
COMPUTE = {"forward", "backward", "compute"}
FOUND = re.compile(r"^round (\d+): stragglers straggler_found \(reported\): rank (\d+) .*? in (\w+)", re.M)


class Run:
    """Who was named in a run, in the order in which it happened."""

    def __init__(self, options, name, model, steps, words):
        folder = os.path.join(options.scratch, f"s3-{name}")
        subprocess.run([options.mpiexec, "-n", str(RANKS), options.bench, model, str(steps),
                        str(BATCH), *words, "--cox.run.log=error", "--cox.http.enabled=off",
                        f"--cox.run.directory={folder}"], check=True, stdout=subprocess.DEVNULL)
        replayed = subprocess.run([options.cox, "replay", folder, "--verbose"], check=True,
                                  capture_output=True, text=True).stdout
        self.named = [(int(round_), int(rank), phase)
                      for round_, rank, phase in FOUND.findall(replayed)]
        self.rounds = int(re.search(r"(\d+) rounds", replayed).group(1))
        subprocess.run(["rm", "-rf", folder], check=True)

    def delay(self, rank):
        """Steps from the first slow one until the rank was named; None where it was not."""
        rounds = [round_ - ONSET for round_, named, _ in self.named if named == rank]
        return rounds[0] if rounds else None

    def false_names(self, slow):
        return sum(1 for round_, rank, _ in self.named if rank not in slow or round_ <= ONSET)

    def is_right(self, slow, phases):
        right = {rank for round_, rank, phase in self.named if phase in phases and round_ > ONSET}
        return right == set(slow) and self.false_names(slow) == 0


def tell(name, figure, runs, phases, limit):
    """`runs`: (Run, its slow ranks) each."""
    delays = [run.delay(rank) for run, slow in runs for rank in slow]
    found = sorted(delay for delay in delays if delay is not None)
    soon = sum(run.is_right(slow, phases) and
               all((run.delay(rank) or 10 ** 6) <= WITHIN_STEPS for rank in slow)
               for run, slow in runs)
    line("S3", soon, "runs", f"{figure}: all named, and nobody else, right phase, within "
         f"{WITHIN_STEPS} steps", limit and len(runs), better="higher", case=name, runs=len(runs),
         ranks=RANKS, cores=len(os.sched_getaffinity(0)), right=sum(
             run.is_right(slow, phases) for run, slow in runs),
         median_steps=quantile(found, 0.5) if found else -1, most_steps=found[-1] if found else -1,
         never=delays.count(None), false_names=sum(run.false_names(slow) for run, slow in runs))


def one_slow(options, draw, count):
    runs = []
    for i in range(count):
        rank = draw.randrange(RANKS)
        runs.append((Run(options, f"one{i}", "gpt2", STEPS, [f"{rank}:1.2:{ONSET}-{STEPS}"]), [rank]))
    tell("one", "a rank computes 20 % more", runs, COMPUTE, True)


def two_slow(options, draw, count):
    runs = []
    for i in range(count):
        slow = sorted(draw.sample(range(RANKS), 2))
        words = [f"{slow[0]}:1.2:{ONSET}-{STEPS}", f"{slow[1]}:1.4:{ONSET}-{STEPS}"]
        runs.append((Run(options, f"two{i}", "gpt2", STEPS, words), slow))
    tell("two", "two ranks compute 20 and 40 % more", runs, COMPUTE, True)


def slow_data(options, draw, count):
    runs = []
    for i in range(count):
        rank = draw.randrange(RANKS)
        runs.append((Run(options, f"data{i}", "gpt2", STEPS, [f"data:{rank}:20:{ONSET}"]), [rank]))
    tell("data", "a rank waits 20 ms for each batch", runs, {"data"}, True)


def quiet(options, steps):
    run = Run(options, "quiet", "small", steps, [])
    line("S3", len(run.named), "names", "names in quiet steps", 0, case="quiet", steps=steps,
         ranks=RANKS, rounds=run.rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bench", "cox", "mpiexec", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    draw = random.Random(3)
    one_slow(options, draw, 2 if options.quick else 20)
    two_slow(options, draw, 1 if options.quick else 5)
    slow_data(options, draw, 1 if options.quick else 5)
    quiet(options, 1000 if options.quick else 100_000)


if __name__ == "__main__":
    main()
