"""Jobs under limits of the system, at values from "nothing works" to "all works". A job trains as one
without a limit does, or ends with an error that names the limit. No save is damaged, and a job that
ended goes on from its newest save once the limit is gone.

    limits.py ... [--limit NAME]... [--values N] [--jobs N] [--record FILE]

--record writes the figures as a page. Needs root, for mounts and another user; the mounts are in a
namespace of its own.
"""

import argparse
import collections
import concurrent.futures
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import jobs
import records
from kills import processes

RANKS = 2
STEPS = 30
PATIENCE_S = 60
KIB, MIB = 1 << 10, 1 << 20
TRAINED, ENDED, BEFORE, FAULT = "trained", "ended, limit named", "before our first line", "fault"
GROUPS = "/sys/fs/cgroup"
# A limit on processes counts those of a user, and none of root's.
FIRST_USER = 54_000

# Lines of ours on standard error, and signals that nothing of ours sends.
OUR_LINE = re.compile(r"^(coxswain(\[\d+\])?: |coxswain(\[\d+\])? (warning|error): |(error|warning): )", re.MULTILINE)
CRASH = re.compile(r"terminate called|Assertion|Aborted|Segmentation fault|Bus error|Trace/breakpoint"
                   r"|File size limit exceeded")
# Said by the loader, the C library, MPICH and its launcher's child before a session has started.
OTHERS = re.compile(r"error while loading shared libraries|internal_Init_thread|UCX|ucs_|std::bad_alloc")

MPICH_ABORT = signal.SIGABRT | signal.SIGKILL  # of the two ranks; its words may be lost

settings = argparse.Namespace()


class Limit:
    """One limit, its values, and how a job is put under it."""

    def __init__(self, name, words, first, last, unit, put, flags=(), ranks=RANKS):
        self.name, self.words, self.unit, self.put = name, words, unit, put
        self.first, self.last = first, last
        self.flags, self.ranks = list(flags), ranks  # None: one, without mpiexec

    def job(self):
        """Limits with the same of it train the same."""
        return str((self.flags, self.ranks))

    def values(self, count):
        """From the first to the last, each by the same factor more than the one before it."""
        factor = (self.last / self.first) ** (1 / max(count - 1, 1))
        found = []
        for i in range(count):
            found.append(max(round(self.first * factor**i), found[-1] + 1 if found else self.first))
        return found

    def text(self, value):
        return f"{value / self.unit[1]:.4g} {self.unit[0]}".strip()


class Put:
    """What is done to a job: words before its program, before mpiexec, environment, mounts."""

    def __init__(self, program=(), job=(), environment=None):
        self.program, self.job, self.environment = list(program), list(job), environment or {}


def resource(name):
    return lambda trial, value: Put(["prlimit", f"--{name}={value}"])


def soft_limit_on_cpu(_, value):
    return Put(["prlimit", f"--cpu={value}:"])


def of_a_user(trial, value):
    caps = "+dac_override"
    return Put(["setpriv", f"--reuid={FIRST_USER + trial.number}", "--clear-groups", "--inh-caps", caps,
                "--ambient-caps", caps, "prlimit", f"--nproc={value}"])


def in_a_group(controller, file_name):
    """In a control group of version 1, which has a hierarchy for each controller."""
    def put(trial, value):
        trial.group = os.path.join(GROUPS, controller, f"cox-limits-{os.getpid()}-{trial.number}")
        os.mkdir(trial.group)
        with open(os.path.join(trial.group, file_name), "w", encoding="utf-8") as file:
            file.write(str(value))
        return Put(["sh", "-c", f"echo $$ > {trial.group}/cgroup.procs && exec \"$@\"", "sh"])
    return put


def remove_group(group):
    """Its processes have been killed, but may not have gone."""
    end = time.monotonic() + PATIENCE_S
    while os.path.isdir(group) and time.monotonic() < end:
        try:
            os.rmdir(group)
        except OSError:
            time.sleep(0.05)


def mount(options, folder):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "limits", folder], check=True)


def on_a_disk(folders, option="size"):
    """The folders are in one file system of so many bytes or files."""
    def put(trial, value):
        disk = trial.at("disk")
        mount(f"{option}={value}", disk)
        for name in folders:
            os.mkdir(os.path.join(disk, name))
            trial.places[name] = os.path.join(disk, name)
        return Put()
    return put


def shared_memory(trial, value):
    script = f"mount -t tmpfs -o size={value} limits /dev/shm && exec \"$@\""
    return Put(job=["unshare", "-m", "sh", "-c", script, "sh"])


def shared_memory_of_ours(trial, value):
    mount(f"size={value}", trial.at("disk"))
    return Put(environment={"COX_SHM_DIR": trial.at("disk")})


DISK = r"No space left|quota|full"
LONG = ["--layers", 4, "--width", 128, "--length", 64, "--batch", 16]
LIMITS = [
    Limit("file size", r"ulimit -f", 64, 64 * MIB, ("KiB", KIB), resource("fsize")),
    Limit("file size, without mpiexec", r"ulimit -f", KIB, 4 * MIB, ("KiB", KIB), resource("fsize"), ranks=None),
    Limit("memory", r"ulimit -v", 400 * MIB, 1000 * MIB, ("MiB", MIB), resource("as")),
    Limit("threads", r"ulimit -u", 1, 24, ("", 1), of_a_user),
    Limit("pids", r"pids\.max", 1, 24, ("", 1), in_a_group("pids", "pids.max")),
    # The kernel kills a process of the group; the watch over the ranks says which one.
    Limit("memory of a control group", r"signal 9", 60 * MIB, 600 * MIB, ("MiB", MIB),
          in_a_group("memory", "memory.limit_in_bytes")),
    Limit("descriptors", r"ulimit -n", 8, 64, ("", 1), resource("nofile")),
    Limit("disk of the run directory", DISK, 4 * KIB, 512 * KIB, ("KiB", KIB), on_a_disk(["run"])),
    Limit("disk of saves", DISK, 4 * KIB, 8 * MIB, ("KiB", KIB), on_a_disk(["saves"])),
    Limit("disk of the offload tier", DISK, 4 * KIB, 256 * MIB, ("KiB", KIB), on_a_disk(["tier"])),
    Limit("disk of all three", DISK, 4 * KIB, 16 * MIB, ("KiB", KIB), on_a_disk(["run", "saves", "tier"])),
    Limit("files on the disk of all three", DISK, 5, 64, ("", 1), on_a_disk(["run", "saves", "tier"], "nr_inodes")),
    Limit("/dev/shm", r"/dev/shm", 4 * KIB, 64 * MIB, ("KiB", KIB), shared_memory),
    Limit("COX_SHM_DIR", DISK + "|COX_SHM_DIR", 4 * KIB, 8 * MIB, ("KiB", KIB), shared_memory_of_ours),
    Limit("CPU seconds, soft", r"ulimit -t", 1, 20, ("s", 1), soft_limit_on_cpu, LONG),
    Limit("CPU seconds, hard", r"ulimit -t", 1, 20, ("s", 1), resource("cpu"), LONG),
]


class Trial:
    """One job under one limit, and the same job without the limit from its newest save on."""

    def __init__(self, limit, value, number, folder):
        self.limit, self.value, self.number, self.folder = limit, value, number, folder
        self.places = {name: self.at(name) for name in ("run", "saves", "tier")}
        self.group = None
        self.outcome, self.note, self.ended = FAULT, "", None
        for name in (*self.places, "disk", "tmp"):
            os.mkdir(self.at(name))
        for name in ("run", "saves"):
            os.rmdir(self.at(name))

    def __str__(self):
        note = ": " + self.note if self.note else ""
        return f"{self.limit.name} {self.limit.text(self.value)}: {self.outcome}{note}"

    def at(self, *parts):
        return os.path.join(self.folder, *parts)

    def train(self, put, *flags):
        program = [jobs.programs.gpt2, "--text", settings.text, *jobs.TINY, *self.limit.flags, "--steps", STEPS,
                   "--cox.http.port=0", "--cox.checkpoint.every_steps=5", "--cox.memory.force=*=offload",
                   "--cox.memory.smallest_bytes=4KiB", "--cox.run.directory=" + self.places["run"],
                   "--cox.checkpoint.directory=" + self.places["saves"],
                   "--cox.memory.tier_directory=" + self.places["tier"], *flags]
        launch = [jobs.programs.mpiexec, "-n", self.limit.ranks] if self.limit.ranks else []
        command = [*put.job, *launch, *put.program, *program]
        job = jobs.Job(command, env={"TMPDIR": self.at("tmp"), **put.environment})
        try:
            return job.wait(PATIENCE_S)
        finally:
            for pid in processes(job.mark):
                os.kill(pid, signal.SIGKILL)

    def run(self, wanted):
        try:
            self.ended = self.train(self.limit.put(self, self.value))
            self.outcome, self.note = self.judge(wanted)
            self.close_limit()
            if self.outcome in (ENDED, BEFORE):
                self.go_on(wanted)
        except AssertionError as hang:
            is_before = OTHERS.search(str(hang)) and not OUR_LINE.search(str(hang))
            self.outcome, self.note = BEFORE if is_before else FAULT, str(hang)

    def judge(self, wanted):
        err, is_named = self.ended.err, self.names_the_limit()
        both = self.ended.out + err
        damaged = self.damaged_saves()
        if damaged:
            return FAULT, "a damaged save: " + damaged
        if self.ended.code == 0 and result(self.ended) == result(wanted):
            has_all = self.newest_save() == STEPS
            if has_all or is_named:
                return TRAINED, "" if has_all else "saves lost"
            return FAULT, "a save lost in silence"
        if self.ended.code in (signal.SIGKILL, signal.SIGXCPU) and result(self.ended) == result(wanted):
            return ENDED, "killed after its end"
        if not OUR_LINE.search(err):
            is_killed = self.limit.words == "signal 9" and self.ended.code == signal.SIGKILL
            is_before = OTHERS.search(both) or self.ended.code == MPICH_ABORT or is_killed
            return BEFORE if is_before else FAULT, first_line(both)
        if CRASH.search(err):
            return FAULT, "a crash"
        if is_named:
            return ENDED, f"exit code {self.ended.code}"
        return FAULT, f"exit code {self.ended.code}, and no message names the limit"

    def names_the_limit(self):
        mine = [line for line in self.ended.err.splitlines() if OUR_LINE.match(line)]
        return any(re.search(self.limit.words, line) for line in mine)

    def saves(self):
        at = self.places["saves"]
        return sorted(n for n in os.listdir(at) if re.fullmatch(r"step-\d+", n)) if os.path.isdir(at) else []

    def newest_save(self):
        return max((int(name[5:]) for name in self.saves()), default=-1)

    def damaged_saves(self):
        if not self.saves():
            return ""
        checked = subprocess.run([jobs.programs.cox, "checkpoint", "verify", self.places["saves"]],
                                 capture_output=True, text=True, check=False)
        return "" if checked.returncode == 0 else checked.stdout + checked.stderr

    def go_on(self, wanted):
        """The newest save is worth something: the job ends as one that had no limit."""
        if not self.saves():
            return
        again = self.train(Put(), "--cox.checkpoint.resume=on")
        if again.code != 0 or result(again)[-1] != result(wanted)[-1]:
            self.outcome, self.note, self.ended = FAULT, "no resume to the same loss", again
        self.note += f", resumed at step {resumed_at(again)}"

    def close_limit(self):
        if self.group:
            remove_group(self.group)
            self.group = None
        disk = self.at("disk")
        if os.path.ismount(disk):
            for name, at in self.places.items():
                if at.startswith(disk):
                    shutil.copytree(at, self.at(name), dirs_exist_ok=True)
                    self.places[name] = self.at(name)
            subprocess.run(["umount", disk], check=True)

    def close(self):
        self.close_limit()
        if self.outcome != FAULT:
            shutil.rmtree(self.folder, ignore_errors=True)


def result(ended):
    """(steps, last loss) of a job that came to its end."""
    found = re.search(r"loss \S+ -> (\S+) in (\d+) steps", ended.out)
    return (found[2], found[1]) if found else (None, None)


def resumed_at(ended):
    found = re.search(r"resumed at step (\d+)", ended.err)
    return found[1] if found else "none"


def first_line(text):
    return next((line for line in text.splitlines() if line.strip()), "nothing was said")


def run_trial(limit, value, number, wanted, folder):
    trial = Trial(limit, value, number, tempfile.mkdtemp(dir=folder))
    try:
        trial.run(wanted)
    finally:
        trial.close()
    told = f"\n{trial.ended}" if trial.outcome == FAULT or settings.verbose else ""
    print(f"{trial}{told}", flush=True)
    return trial


def undisturbed(limit, folder):
    trial = Trial(limit, 0, 0, tempfile.mkdtemp(dir=folder))
    ended = trial.train(Put())
    if ended.code != 0 or trial.damaged_saves() or trial.newest_save() != STEPS:
        raise AssertionError(f"a job without a limit: {ended}")
    trial.outcome = TRAINED
    trial.close()
    return ended


def page(trials, command):
    rows = []
    for limit in LIMITS:
        mine = [t for t in trials if t.limit is limit]
        if not mine:
            continue
        kinds = collections.Counter(t.outcome for t in mine)
        counts = " | ".join(str(kinds[kind]) for kind in (TRAINED, ENDED, BEFORE, FAULT))
        least = min((t.value for t in mine if t.outcome == TRAINED), default=None)
        trains = limit.text(least) if least else "-"
        values = f"{limit.text(mine[0].value)} to {limit.text(mine[-1].value)}"
        rows.append(f"| {limit.name} | {values} | {counts} | {trains} |")
    return PAGE.format(rows="\n".join(rows), trials=len(trials), steps=STEPS, ranks=RANKS, command=command, patience=PATIENCE_S,
                       faults=sum(t.outcome == FAULT for t in trials), **records.place())


PAGE = """# Limits: jobs with too little of what the system gives

{trials} jobs, {faults} faults.

| limit | values | trained | ended, limit named | before our first line | faults | trains from |
|---|---|---|---|---|---|---|
{rows}

- Command: `{command}`
- Commit: {commit}
- Machine: {machine}; quick preset; load average at the end: {load}

How: `tests/e2e/limits.py` trains a small GPT-2 on {ranks} ranks for {steps} steps under one limit at a time, with a run directory, a save every fifth
step and all blocks sent to the offload tier. Each value of a limit is the same factor above the one before it.

- *Trained*: exit code 0 and the loss of a job without the limit. Where the last save is missing, a message names the limit.
- *Ended*: an exit code, and a line of ours that names the limit. The job then goes on without the limit, from the newest save where there is one,
  to the loss of a job that never had it. Jobs that trained all steps and could not write their last save are among them (exit code 1).
- *Before our first line*: the dynamic loader, the C library or MPICH ended the process, in `MPI_Init` or before.
- *Fault*: killed by a signal that no line names, an end without the limit's name, a save that `cox checkpoint verify` calls damaged, another loss, no
  resume, or no end within {patience} s.
"""


class Limits(jobs.Case):
    def test_a_limit_is_named_and_damages_nothing(self):
        settings.text = self.text()
        os.chmod(self.folder, 0o755)
        wanted = {}
        for limit in settings.limits:
            if limit.job() not in wanted:
                wanted[limit.job()] = undisturbed(limit, self.folder)
        cases = [(limit, value) for limit in settings.limits
                 for value in limit.values(settings.values)]

        def one(number):
            limit, value = cases[number]
            return run_trial(limit, value, number, wanted[limit.job()], self.folder)
        with concurrent.futures.ThreadPoolExecutor(settings.jobs) as pool:
            trials = list(pool.map(one, range(len(cases))))
        if settings.record:
            with open(settings.record, "w", encoding="utf-8") as file:
                told = f"tests/e2e/limits.py --values {settings.values} --jobs {settings.jobs}"
                file.write(page(trials, told))
        self.assertEqual([str(t) for t in trials if t.outcome == FAULT], [])


def in_a_namespace():
    """Mounts are seen by this process and its children alone, and end with them."""
    if "LIMITS_MOUNTS" not in os.environ and not {"-h", "--help"} & set(sys.argv):
        os.environ["LIMITS_MOUNTS"] = "its own"
        os.execvp("unshare", ["unshare", "-m", sys.executable, "-B", *sys.argv])


if __name__ == "__main__":
    in_a_namespace()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--limit", action="append", choices=[limit.name for limit in LIMITS])
    parser.add_argument("--values", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--record", default="")
    parser.add_argument("--all-output", action="store_true", dest="verbose")
    _, sys.argv[1:] = parser.parse_known_args(namespace=settings)
    settings.limits = [limit for limit in LIMITS if not settings.limit or limit.name in settings.limit]
    jobs.main()
