"""Kills, freezes and terminations of ranks and of mpiexec at random moments. A job that was disturbed
and resumed ends with the losses and weights of one that never was, bit for bit, and leaves no
process, no shared memory and no temporary file.

    kills.py ... [--trials N] [--seed N] [--jobs N] [--record FILE] [--whole-machine]

--jobs runs trials side by side. --record writes the figures as a page. --whole-machine looks for left
files in all of /dev/shm, too: for a machine, or a namespace, that nobody else uses.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time

import jobs
import records

RANKS = [1, 2, 3, 4]
STEPS = 60
PATIENCE_S = 120
QUIET_S = 20  # for the processes of a job to be gone after mpiexec is
TRAIN = ["--steps", STEPS, "--jitter-us", 12000, "--cox.checkpoint.every_steps=3", "--cox.http.port=0"]
Loop = collections.namedtuple("Loop", "name kind flags")
# A sharded loop has the bits of an adopted one.
LOOPS = [Loop("trainer", "trainer", ["--micro-batch", 2, "--cox.reduction.reproducible=on"]),
         Loop("adopted", "adopted", []),
         Loop("sharded", "adopted", ["--cox.shard.mode=state", "--cox.shard.grain=16"])]
PATHS = [("mailbox", {}, []), ("mpi", {"COX_CONTROL": "mpi"}, []),
         ("nodes", {}, ["--cox.control.ranks_per_node=2"]),
         ("messages", {}, ["--cox.reduction.shared_memory=off"])]


def paths_of(loop):
    """Ranks of several nodes share no parameters."""
    return [path for path in PATHS if loop.name != "sharded" or path[0] != "nodes"]


# Files of a whole run and its saves.
RUN_FILES = re.compile(r"rank\d+/(run\.json|operators\.json|(steps|host)\.jsonl)|journal\.cox|ending\.json|[^/.]+\.lock")
MPICH_FILES = ("mpich_", "ucx_shm_")  # in /dev/shm for a moment of MPI_Init: its own, its transport's
SAVE_FILES = re.compile(r"step-\d{12}/(manifest\.json|control\.state|"
                        r"[a-z_]+(-\d{5}-of-\d{5})?\.safetensors|[a-z_]+\.safetensors\.index\.json)|saves\.lock")

settings = argparse.Namespace()


def processes(mark):
    """All processes of a job: mpiexec, its helpers, ranks."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                is_ours = mark.encode() in file.read().split(b"\0")
            with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if is_ours and rest.split()[0] != "Z":
            found[int(entry)] = name
    return found


def files_below(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder)
                  for at, _, names in os.walk(folder) for name in names)


class Fault:
    """What is done to a job once its moment has come."""

    def __init__(self, name, act, goes_on=False):
        self.name, self.act, self.goes_on = name, act, goes_on


def hit(number, whom):
    def act(job, victim, _):
        {"rank": lambda: job.signal(number, [victim]), "ranks": lambda: job.signal(number),
         "mpiexec": lambda: job.process.send_signal(number)}[whom]()
    return act


def freeze_then(number):
    def act(job, victim, chance):
        job.signal(signal.SIGSTOP, [victim])
        time.sleep(chance.uniform(0.1, 2.5))
        job.signal(number, [victim])
    return act


FAULTS = [Fault("SIGKILL to a rank", hit(signal.SIGKILL, "rank")),
          Fault("SIGKILL to all ranks", hit(signal.SIGKILL, "ranks")),
          Fault("SIGKILL to mpiexec", hit(signal.SIGKILL, "mpiexec")),
          Fault("SIGTERM to a rank", hit(signal.SIGTERM, "rank")),
          Fault("SIGTERM to all ranks", hit(signal.SIGTERM, "ranks")),
          Fault("SIGTERM to mpiexec", hit(signal.SIGTERM, "mpiexec")),
          Fault("SIGINT to a rank", hit(signal.SIGINT, "rank")),
          Fault("SIGINT to mpiexec", hit(signal.SIGINT, "mpiexec")),
          Fault("SIGSTOP, then SIGCONT", freeze_then(signal.SIGCONT), goes_on=True),
          Fault("SIGSTOP, then SIGKILL", freeze_then(signal.SIGKILL))]
MOMENTS = ["start", "loop", "loop", "save"]


class Trial:
    """One job: disturbed once or twice, then resumed to its end."""

    def __init__(self, seed, number, folder, times):
        self.number, self.folder, self.times = number, folder, times
        self.chance = random.Random(seed * 100_003 + number)
        self.fault = FAULTS[number % len(FAULTS)]
        self.ranks = self.chance.choice(RANKS)
        self.loop = self.chance.choice(LOOPS)
        self.path = self.chance.choice(paths_of(self.loop))
        self.victim = self.chance.randrange(self.ranks)
        self.moment = self.chance.choice(MOMENTS)
        self.is_hit_twice = self.chance.random() < 0.25
        self.codes = []
        self.resumed_at = 0
        self.findings = []
        self.shared = tempfile.mkdtemp(prefix="kills-", dir="/dev/shm")
        self.temporary = os.path.join(folder, "tmp")
        os.mkdir(self.temporary)

    def __str__(self):
        twice = ", twice" if self.is_hit_twice else ""
        return (f"trial {self.number}: {self.fault.name} (rank {self.victim} of {self.ranks}, "
                f"{self.loop.name}, {self.path[0]}) at the {self.moment}{twice}: exit codes {self.codes}, resumed at "
                f"step {self.resumed_at}")

    def start(self, *flags):
        _, environment, more = self.path
        command = [jobs.programs.parallel, self.loop.kind, *TRAIN, *self.loop.flags, *more, *flags,
                   "--cox.run.directory=" + self.at("run"),
                   "--cox.checkpoint.directory=" + self.at("saves")]
        return jobs.Job(command, self.ranks, {**environment, "COX_SHM_DIR": self.shared,
                                              "TMPDIR": self.temporary})

    def at(self, *parts):
        return os.path.join(self.folder, *parts)

    def saves_entries(self):
        return os.listdir(self.at("saves")) if os.path.isdir(self.at("saves")) else []

    def wait_for_the_moment(self, job):
        end = time.monotonic() + PATIENCE_S
        whole, part = re.compile(r"step-0*(\d+)"), re.compile(r"\.writing-.*step-0*(\d+)")
        # For a step that is still to come, where there is one.
        beyond = min(last_step(self) + self.chance.randrange(0, STEPS), STEPS - 3)

        def is_there(pattern):
            found = (pattern.fullmatch(entry) for entry in self.saves_entries())
            return any(int(match[1]) > beyond for match in found if match)
        # Not before: mpiexec hangs by itself when it is terminated while it starts its helpers.
        look = {"start": lambda: len(job.pids()) == self.ranks, "loop": lambda: is_there(whole),
                "save": lambda: is_there(part)}
        while job.process.poll() is None and time.monotonic() < end and not look[self.moment]():
            time.sleep(0.0005)
        if self.moment == "start":
            time.sleep(self.chance.uniform(0, self.times["start"]))
        if self.moment == "loop":
            time.sleep(self.chance.uniform(0, 5 * self.times["step"]))

    def disturb(self, *flags):
        job = self.start(*flags)
        self.wait_for_the_moment(job)
        try:
            self.fault.act(job, self.victim, self.chance)
        except ProcessLookupError:
            pass  # it has just ended
        return self.outcome(job)

    def again(self):
        """Flags to go on with. A job without a save starts anew, into a new run directory."""
        if saved_steps(self):
            return ["--cox.checkpoint.resume=on"]
        shutil.rmtree(self.at("run"), ignore_errors=True)
        return []

    def outcome(self, job):
        try:
            ended = job.wait(PATIENCE_S)
        except AssertionError as hang:
            self.findings.append(str(hang))
            return jobs.Ended(None, "", str(hang), 0)
        self.codes.append(ended.code)
        resumed = re.search(r"resumed at step (\d+)", ended.err)
        self.resumed_at = int(resumed[1]) if resumed else self.resumed_at
        end = time.monotonic() + QUIET_S
        while processes(job.mark) and time.monotonic() < end:
            time.sleep(0.02)
        left = processes(job.mark)
        if left:
            self.findings.append(f"expected no process {QUIET_S} s after mpiexec, found {left}: {ended}")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return ended

    def run(self):
        ended = self.disturb()
        if self.fault.goes_on:
            if ended.code != 0:
                self.findings.append(f"expected a job that was frozen to go on, found {ended}")
        elif self.is_hit_twice and not self.is_over(ended):
            ended = self.disturb(*self.again())
        if not self.is_over(ended):
            ended = self.outcome(self.start(*self.again()))
        if not self.is_over(ended):
            self.findings.append(f"expected a resumed job to end, found {ended}")
        return ended

    def is_over(self, ended):
        return ended.code == 0 and len(weights(ended)) == self.ranks and last_step(self) == STEPS

    def left_files(self):
        found = [f"run/{f}" for f in files_below(self.at("run")) if not RUN_FILES.fullmatch(f)]
        found += [f"saves/{f}" for f in files_below(self.at("saves")) if not SAVE_FILES.fullmatch(f)]
        found += [f"{self.shared}/{f}" for f in files_below(self.shared)]
        return found + [f"TMPDIR/{f}" for f in files_below(self.temporary)]

    def close(self):
        shutil.rmtree(self.shared, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def saved_steps(trial):
    """A job that is terminated before its first step saves, too: step 0."""
    return [int(e[5:]) for e in trial.saves_entries() if re.fullmatch(r"step-\d+", e)]


def last_step(trial):
    return max(saved_steps(trial), default=0)


def weights(ended):
    return dict(re.findall(r"rank (\d+): weights (\d+)", ended.out))


def losses(trial):
    """By rank, of each step as written, every bit."""
    found = []
    for rank in range(trial.ranks):
        with open(trial.at("run", f"rank{rank}", "steps.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        found.append([(row["step"], row["scalars"]["loss"]) for row in rows])
    return found


class References:
    """Undisturbed jobs, one for each kind of job, and how long they took."""

    def __init__(self, folder):
        self.kept = {}
        self.times = {"start": 0.0, "step": 0.0}
        for loop, ranks, path in ((l, r, p) for l in LOOPS for r in RANKS for p in paths_of(l)):
            trial = Trial(0, 0, tempfile.mkdtemp(dir=folder), {})
            trial.loop, trial.ranks, trial.path = loop, ranks, path
            if self.key(trial) in self.kept:
                trial.close()
                continue
            job = trial.start()
            began = time.monotonic()
            job.until(lambda: trial.saves_entries())
            started = time.monotonic() - began
            ended = trial.outcome(job)
            if ended.code != 0 or trial.findings or trial.left_files():
                raise AssertionError(f"an undisturbed job: {trial.left_files()} {trial.findings} {ended}")
            self.kept[self.key(trial)] = (losses(trial), weights(ended))
            self.times["start"] = max(self.times["start"], started)
            took = time.monotonic() - began - started
            self.times["step"] = max(self.times["step"], took / STEPS)
            trial.close()

    @staticmethod
    def key(trial):
        """An adopted loop adds gradients within nodes first, so bits hang on which ranks share one."""
        return trial.loop.kind, trial.ranks, trial.loop.kind == "adopted" and trial.path[0] == "nodes"

    def findings(self, trial, ended):
        wanted_losses, wanted_weights = self.kept[self.key(trial)]
        if weights(ended) != wanted_weights:
            yield f"expected weights {wanted_weights}, found {weights(ended)}"
        for rank, (found, wanted) in enumerate(zip(losses(trial), wanted_losses)):
            if found != wanted:
                first = next((i for i, (f, w) in enumerate(zip(found, wanted)) if f != w),
                             min(len(found), len(wanted)))
                yield (f"rank {rank}: expected the {len(wanted)} losses of an undisturbed job, found "
                       f"{len(found)}, the first other one in row {first}")


def run_trial(number, references, folder):
    trial = Trial(settings.seed, number, tempfile.mkdtemp(dir=folder), references.times)
    ended = trial.run()
    if not trial.findings:
        trial.findings += references.findings(trial, ended)
        trial.findings += [f"expected no file left, found {name}" for name in trial.left_files()]
    print("\n  finding: ".join([str(trial), *trial.findings]), flush=True)
    if not trial.findings:
        trial.close()
    return trial


def page(trials, command, left):
    rows = []
    for fault in FAULTS:
        mine = [t for t in trials if t.fault is fault]
        codes = collections.Counter(code for t in mine for code in t.codes[:-1] or t.codes)
        told = ", ".join(f"{code}: {n}" for code, n in sorted(codes.items()))
        resumed = sum(t.resumed_at > 0 for t in mine)
        bad = sum(bool(t.findings) for t in mine)
        moments = collections.Counter(t.moment for t in mine)
        where = " / ".join(str(moments[m]) for m in ("start", "loop", "save"))
        root = sum(t.victim == 0 for t in mine)
        rows.append(f"| {fault.name} | {len(mine)} | {where} | {root} | {resumed} | {told} | {bad} |")
    mpich = sum(name.startswith(MPICH_FILES) for name in left)
    return PAGE.format(rows="\n".join(rows), left=len(left) - mpich, mpich=mpich, trials=len(trials), steps=STEPS,
                       findings=sum(bool(t.findings) for t in trials), command=command,
                       commit=records.commit(), machine=f"{records.machine()}; quick preset",
                       load=f"{os.getloadavg()[0]:.1f}")


PAGE = """# Kills: jobs that are killed, frozen and terminated at random moments

{trials} trials, {findings} with a finding.

| what was done | trials | at the start / in the loop / in a save | of them to rank 0 | resumed from a save | exit codes of the disturbed jobs | findings |
|---|---|---|---|---|---|---|
{rows}

In all of `/dev/shm` afterwards: {left} files, and {mpich} of MPICH and its UCX, from jobs that were killed in `MPI_Init`.

- Command: `{command}`
- Commit: {commit}
- Machine: {machine}; load average at the end: {load}

How: `tests/e2e/kills.py` starts a data-parallel job of 1 to 4 ranks and {steps} steps (dropout, batch normalisation, a save every third
step; a Trainer with AdamW in reproducible mode, or an adopted loop with torch's Adam and Session::keep, with its state divided or not) over the mailbox, MPI, pretended nodes of two ranks, or with gradients as messages. At a random moment (while
its ranks start, in its loop, or while a save is being written) it does what the first column says to a random rank, all ranks or mpiexec; one
trial in four is disturbed again after it was resumed. Then the job is resumed to its end. A finding is any of: another loss of a step
on any rank or other weights than those of a job that was never disturbed (every bit); a resumed job that fails; a job that does not end
within 120 s; a process left 20 s after mpiexec; a file other than the run's and the saves' own in the run directory, the folder of
saves, `TMPDIR` or the folder of shared memory; after SIGSTOP and SIGCONT, a job that does not end as if nothing had been. Code -9 is
mpiexec's own death.
"""


class Kills(jobs.Case):
    def test_disturbed_jobs_resume_bit_for_bit_and_leave_nothing(self):
        before = set(os.listdir("/dev/shm"))
        references = References(self.folder)
        with concurrent.futures.ThreadPoolExecutor(settings.jobs) as pool:
            trials = list(pool.map(lambda n: run_trial(n, references, self.folder),
                                   range(settings.trials)))
        left = set(os.listdir("/dev/shm")) - before
        if settings.record:
            told = f"tests/e2e/kills.py --trials {settings.trials} --seed {settings.seed}"
            with open(settings.record, "w", encoding="utf-8") as file:
                file.write(page(trials, told, left))
        self.assertEqual([str(t) for t in trials if t.findings], [])
        if settings.whole_machine:
            self.assertEqual({name for name in left if not name.startswith(MPICH_FILES)}, set())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--whole-machine", action="store_true")
    _, sys.argv[1:] = parser.parse_known_args(namespace=settings)
    jobs.main()
