"""Random jobs of ranks that need not do the same, for mixed.py: how they are drawn, run and judged.

A job is judged by how it ends: by itself, in time, without a crash, and, unless all ranks end well,
with a line that names a rank and what it did."""

import collections
import concurrent.futures
import random
import re
import shlex
import tempfile

import jobs

LOOPS = ["trainer", "accumulating", "fit", "reducer", "manual", "scaler", "adopted", "watching", "together", "idle"]
AVERAGING = {"trainer", "accumulating", "fit", "reducer", "manual", "adopted"}
SETTINGS = ["--cox.reduction.verify_steps=7", "--cox.run.warmup_steps=3"]
FLAGS = ["--cox.control.wait_seconds=3", "--cox.http.enabled=off"]
CRASHES = {-11, -6, -7, -8, 139, 134, 135, 136}
LIMIT_S = 13  # control.wait_seconds, and the ten seconds more that the coordinator is given
START_S = 20  # for processes to start and to come to their fault, on a machine that others use, too

# Outcomes of jobs, by the line that tells each; the first one that fits counts.
KINDS = [
    ("other calls", r"expected the same call (with the same tensors )?on all ranks, found .* on rank \d.* on rank \d"),
    ("a rank that left", r"expected every rank in this step, found that rank \d .*"),
    ("a rank that left", r"rank \d has left the exchange: .*"),
    ("a rank that left", r"expected all ranks at the end of the training loop, found rank \d waiting"),
    ("other settings, options or data", r"expected .* on all ranks, found .*rank \d"),
    ("a rank that kept the others waiting", r"rank \d.*control\.wait_seconds"),
    ("a rank that kept the others waiting", r"control\.wait_seconds: .*rank \d"),
    ("a rank with an error of its own", r"error: rank \d: the rank leaves"),
    ("a rank that exited", r"rank \d.* ended before its loop did"),
]


class Pair:
    """One job: the words of each rank, in rank order."""

    def __init__(self, number, parts):
        self.number, self.parts = number, parts
        self.ended, self.kind, self.faults = None, "", []

    def command(self, program, saves):
        """The ranks' parts of a command of mpiexec."""
        flags = FLAGS + ([f"--cox.checkpoint.directory={saves}"] if self.has("--save-at") else [])
        words = []
        for part in self.parts:
            words += [":", "-n", "1"] if words else []
            words += [program, *part, *flags]
        return words

    def has(self, word):
        return any(word in part for part in self.parts)

    def longest(self, word):
        return max((float(part[part.index(word) + 1]) for part in self.parts if word in part), default=0)

    def differ_in(self, pick):
        return len({pick(part) for part in self.parts}) > 1

    def must_fail(self):
        """Whether ranks differ in what no rank can miss. A rank that leaves early may miss all but the settings."""
        if self.differ_in(lambda part: tuple(word for word in part if word in SETTINGS)):
            return True
        averages = all(part[0] in AVERAGING for part in self.parts)
        differs = self.differ_in(lambda part: part[0]) or (averages and self.differ_in(lambda part: "--width" in part))
        return differs and not self.has("--leave-at")

    def limit_s(self):
        """MPI_Init waits for a rank that is absent, and a rank that has ended its session for all that have not."""
        has_ended = self.ended.code == 0 or "the end of its session" in self.ended.err
        late = self.longest("--late") if has_ended else 0
        return START_S + LIMIT_S + self.longest("--absent") + late

    def run(self, program):
        with tempfile.TemporaryDirectory() as saves:
            try:
                self.ended = jobs.run(self.command(program, saves), 1, patience=150)
            except AssertionError as hangs:
                self.kind, self.faults = "a hang", [str(hangs)]
                return self
        self.judge()
        return self

    def judge(self):
        text = "\n".join(line for line in self.ended.err.splitlines() if " warning: " not in line)
        fits = [kind for kind, line in KINDS if re.search(line, text)]
        self.kind = "all ranks end well" if self.ended.code == 0 else fits[0] if fits else "no such line"
        if self.ended.code in CRASHES:
            self.faults.append("a crash")
        if self.ended.seconds > self.limit_s():
            self.faults.append(f"expected an end within {self.limit_s():.0f} s")
        if self.ended.code == 0 and self.must_fail():
            self.faults.append("expected an error")
        if self.kind == "no such line":
            self.faults.append("expected a line that names a rank and what it did")

    def __str__(self):
        words = shlex.join(["mpiexec", "-n", "1", *self.command("e2e_mixed", "SAVES")])
        how = f"code {self.ended.code}, {self.ended.seconds:.1f} s, " if self.ended else ""
        return f"pair {self.number}: {how}{self.kind}: {words}"

    __repr__ = __str__


def draw_fault(draw):
    """What one rank does otherwise, as words of its command line."""
    step = str(draw.choice([0, 1, 20]))
    return draw.choice([
        [],
        ["--late", str(draw.choice([1, 1, 5, 5, 60]))],
        ["--late", str(draw.choice([1, 5, 60])), "--late-at", step],
        ["--absent", str(draw.choice([1, 5]))],
        ["--leave-at", step, "--leave-by", draw.choice(["return", "exit", "finish", "throw"])],
        ["--together-at", step],
        ["--save-at", step],
        draw.choice([["--width", "64"], ["--batch", "12"], ["--steps", "150"]]),
        [draw.choice(SETTINGS)],
    ])


def draw_pair(number, draw):
    """The odd rank often runs the others' loop: what it does wrong is then its fault alone."""
    loop = draw.choice(LOOPS)
    ranks = draw.choice([2, 2, 3])
    odd = draw.randrange(ranks)
    other = draw.choice([loop, loop, draw.choice(LOOPS)])
    parts = [[other if rank == odd else loop] for rank in range(ranks)]
    parts[odd] += draw_fault(draw)
    if draw.randrange(3) == 0:
        parts[draw.randrange(ranks)][1:] = draw_fault(draw)
    return Pair(number, parts)


def draw_pairs(count, seed):
    draw = random.Random(seed)
    return [draw_pair(number, draw) for number in range(count)]


def run_pairs(pairs, program, at_once, tell):
    """Runs all of them; `tell` receives each pair that is over."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for pair in pool.map(lambda each: each.run(program), pairs):
            tell(pair)


def counts(pairs):
    """Lines of a table: how the jobs ended, how many of them, and the longest."""
    by_kind = collections.defaultdict(list)
    for pair in pairs:
        by_kind[pair.kind].append(pair)
    rows = []
    for kind, mine in sorted(by_kind.items(), key=lambda item: -len(item[1])):
        codes = collections.Counter(pair.ended.code for pair in mine if pair.ended)
        told = ", ".join(f"{code}: {number}" for code, number in sorted(codes.items()))
        longest = max((pair.ended.seconds for pair in mine if pair.ended), default=0)
        faulty = sum(bool(pair.faults) for pair in mine)
        rows.append(f"| {kind} | {len(mine)} | {told} | {longest:.1f} s | {faulty} |")
    return rows


PAGE = """# Mixed: ranks that do not do the same

{jobs} random jobs of 2 or 3 ranks, {faulty} with a fault; the longest took {longest} s, a rank that came late included.

| how the job ended | jobs | exit codes | longest | faults |
|---|---|---|---|---|
{rows}

- Command: `{command}`
- Commit: {commit}
- Machine: {machine}; load average at the end: {load}

How: `tests/e2e/mixed.py` draws one loop for most ranks of a job (`Trainer` with and without `accumulate`, `cox::fit` with an
evaluation, an own loop with a `Reducer`, `ManualParallel` or a `LossScaler`, an adopted and a watched one, `Session::together` alone, or
no step at all), for one rank often another loop, and for one or two ranks a fault: late by 1, 5 or 60 s before or in the loop, or by 1 or
5 s before `Session::start`; leaves its loop at step 0, 1 or 20 by `return`, `exit(0)`, `Session::finish()` or an exception; calls
`Session::together` or `Trainer::save` alone; or has another width of the model, batch, number of steps or setting. `control.wait_seconds`
is 3. A fault is any of: a crash; a job that does not end {limit} s after its start (processes start for up to {start} s of it on a machine
that others use; an absent rank comes on top, and a late one where others have ended their sessions, which wait for it); a job that ends
with an error and without a line of Coxswain's that names a rank and what it did. "All ranks end well" are pairs that may go on: equal ranks, late ones of watched loops.
"""


def page(pairs, command, place):
    """`place`: commit, machine and load, as texts."""
    return PAGE.format(jobs=len(pairs), faulty=sum(bool(pair.faults) for pair in pairs),
                       longest=f"{max(pair.ended.seconds for pair in pairs if pair.ended):.1f}",
                       rows="\n".join(counts(pairs)), command=command, limit=START_S + LIMIT_S, start=START_S, **place)
