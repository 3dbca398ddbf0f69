"""D3: batch shares that follow the speeds of ranks, against the ideal sum of speeds.

    d3.py --bench PROGRAM --mpiexec PROGRAM --scratch DIR [--quick]
"""

import argparse
import os
import subprocess

from figures import line, quantile

LIMIT, SETTLE_LIMIT, RESHARE_LIMIT = 1.05, 20, 1


class Form:
    """What is trained: factors[phase][rank], each phase over the same number of steps."""

    def __init__(self, name, figure, batch, factors):
        self.name, self.figure, self.batch, self.factors = name, figure, batch, factors
        self.ranks = len(factors[0])

    def slowdowns(self, steps):
        """The words that make the ranks so slow, for phases of `steps` steps."""
        words = []
        for phase, factors in enumerate(self.factors):
            words += [f"{rank}:{factor}:{phase * steps}-{(phase + 1) * steps - 1}"
                      for rank, factor in enumerate(factors)]
        return words


REAL = Form("real", "2 real ranks", 40, [(1, 4), (1, 1)])
IMITATED = Form("imitated", "4 imitated devices", 160, [(4, 4, 2, 1), (4, 4, 2, 4), (4, 4, 2, 1)])


class Step:
    def __init__(self, rows, end):
        self.samples = tuple(int(row[1]) for row in rows)
        self.work = [row[2] for row in rows]
        self.seconds = end - rows[0][0]  # rank 0's clock, until its next step began


def run(options, form, steps, shares):
    traces = os.path.join(options.scratch, f"d3-{form.name}-{shares}")
    os.makedirs(traces)
    count = steps * len(form.factors) + 1  # what the last step took is not known
    command = [options.mpiexec, "-n", str(form.ranks), options.bench, form.name, traces, str(count),
               str(form.batch), *form.slowdowns(steps), f"--cox.shares.mode={shares}",
               "--cox.run.log=error", "--cox.http.port=0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ranks = []
    for rank in range(form.ranks):
        with open(os.path.join(traces, str(rank)), encoding="utf-8") as file:
            ranks.append([[float(word) for word in text.split()] for text in file])
    rows = list(zip(*ranks))
    done = [Step(row, after[0][0]) for row, after in zip(rows, rows[1:])]
    return [done[at:at + steps] for at in range(0, len(done) - steps + 1, steps)]


def ideal_of(form, factors, settled):
    """Seconds of a step if all ranks worked at their speeds all the time. Imitated devices have the
    speed that they were given, real ranks that of these very steps."""
    if form.name == "imitated":
        return form.batch * 1e-3 / sum(1 / factor for factor in factors)
    speeds = [sum(step.samples[rank] for step in settled) / sum(step.work[rank] for step in settled)
              for rank in range(form.ranks)]
    return form.batch / sum(speeds)


def mean_seconds(steps):
    return sum(step.seconds for step in steps) / len(steps)


def changes_of(steps, before):
    """Where shares became other ones; the first step is compared with `before`."""
    kept = [before] + [step.samples for step in steps]
    return [i for i, (old, new) in enumerate(zip(kept, kept[1:])) if old != new]


def tell_phase(form, number, steps, even, before):
    factors = form.factors[number]
    changes = changes_of(steps, before)
    settled = steps[changes[-1] + 1:] if changes else steps[1:]
    common = {"form": form.figure, "phase": number + 1,
              "work_a_sample": ":".join(map(str, factors)),
              "samples": ":".join(map(str, steps[-1].samples))}
    ideal = ideal_of(form, factors, settled)
    line("D3", mean_seconds(settled) / ideal, "ratio", "settled step against the ideal sum of speeds",
         LIMIT, **common, ideal_ms=1e3 * ideal, steps=len(settled),
         median=quantile([step.seconds for step in settled], 0.5) / ideal,
         all_of_the_phase=mean_seconds(steps) / ideal)
    line("D3", changes[-1] if changes else 0, "steps", "steps until shares have settled",
         SETTLE_LIMIT, **common)
    line("D3", len(changes), "changes", "changes of shares", RESHARE_LIMIT, **common)
    line("D3", mean_seconds(even[1:]) / ideal, "ratio", "even split against the ideal", None,
         **common, even_ms=1e3 * mean_seconds(even[1:]))


def tell(options, form, steps):
    even = run(options, form, steps // 3, "off")
    shared = run(options, form, steps, "on")
    before = even[0][0].samples
    for number, phase in enumerate(shared):
        tell_phase(form, number, phase, even[number], before)
        before = phase[-1].samples


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bench", "mpiexec", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--form", choices=["real", "imitated"])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for form in (REAL, IMITATED):
        if options.form in (None, form.name):
            tell(options, form, 36 if options.quick else 120)


if __name__ == "__main__":
    main()
