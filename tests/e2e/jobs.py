"""Starting, stopping and reading jobs, for the end-to-end tests. Each test script is called with
the programs' paths (see main() below) and is a unittest module."""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
import uuid

TINY = ["--layers", "2", "--width", "64", "--heads", "2", "--length", "32", "--batch", "8"]
PATIENCE = 60  # seconds that a job may take
SKIPPED = 77  # the exit code of a test that could not be run
WATCHER = "coxswain-watch"  # a process of the job that is no rank

programs = argparse.Namespace()


def package(name):
    """The folder into which scripts/bootstrap unpacks a package of PyPI."""
    cache = os.environ.get("COX_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "coxswain")
    return os.path.join(cache, name)


def skip(reason):
    """Ends a whole test, which ctest then counts as skipped."""
    print("skipped: " + reason)
    sys.exit(SKIPPED)


def main():
    parser = argparse.ArgumentParser()
    for name in ["gpt2", "cox", "trainer", "parallel", "adopt", "endings", "models", "mpiexec", "data", "prometheus", "promtool"]:
        parser.add_argument("--" + name, default="")
    _, rest = parser.parse_known_args(namespace=programs)
    unittest.main(argv=[sys.argv[0]] + rest, verbosity=2)


class Ended:
    """How a job ended: its exit code, what it printed, and how long it took."""

    def __init__(self, code, out, err, seconds):
        self.code, self.out, self.err, self.seconds = code, out, err, seconds

    def __repr__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"

    def complaints(self):
        """Lines on standard error that are the product's: mpiexec's banner is not."""
        lines = self.err.splitlines()
        cut = next((i for i, line in enumerate(lines) if line.startswith("=====")), len(lines))
        return [line for line in lines[:cut] if line.strip() and "[proxy:" not in line]


class Job:
    """A running job. `ranks` None starts it without mpiexec."""

    def __init__(self, command, ranks=None, env=None, cwd=None):
        self.mark = "COX_TEST_ID=" + uuid.uuid4().hex
        environment = {**os.environ, "HYDRA_LAUNCHER": "fork", "OMP_NUM_THREADS": "1"}
        environment.update(env or {})
        name, value = self.mark.split("=")
        environment[name] = value
        launch = [programs.mpiexec, "-n", str(ranks)] if ranks else []
        self.started = time.monotonic()
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in launch + command], env=environment,
                                        cwd=cwd, stdout=self.out, stderr=self.err,
                                        start_new_session=True)

    def pids(self):
        """Process ids of the program by rank; empty while it starts."""
        found = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    variables = file.read().decode(errors="replace").split("\0")
                with open(f"/proc/{entry}/comm", encoding="utf-8") as file:
                    name = file.read()
            except OSError:
                continue
            rank = [v[9:] for v in variables if v.startswith("PMI_RANK=")]
            if self.mark in variables and rank and name.strip() != WATCHER:
                found[int(rank[0])] = int(entry)
        return found

    def signal(self, number, ranks=None):
        for rank, pid in self.pids().items():
            if ranks is None or rank in ranks:
                os.kill(pid, number)

    def wait(self, patience=PATIENCE):
        try:
            code = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.signal(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"the job hangs: {self.ended('none')}") from None
        return self.ended(code)

    def ended(self, code):
        texts = []
        for file in (self.out, self.err):
            file.seek(0)
            texts.append(file.read())
            file.close()
        return Ended(code, *texts, time.monotonic() - self.started)

    def output(self):
        return self.so_far(self.out)

    def errors(self):
        return self.so_far(self.err)

    @staticmethod
    def so_far(file):
        with open(f"/proc/self/fd/{file.fileno()}") as again:
            return again.read()

    def until(self, what, patience=PATIENCE):
        """Waits until `what()` is true."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            value = what()
            if value:
                return value
            if self.process.poll() is not None:
                raise AssertionError(f"the job ended too early: {self.wait()}")
            time.sleep(0.02)
        self.signal(signal.SIGKILL)
        raise AssertionError(f"waited in vain: {self.wait()}")


def side_by_side(check, cases):
    """Calls check(*case) for all cases at once: for jobs that wait most of the time."""
    with concurrent.futures.ThreadPoolExecutor(len(cases)) as pool:
        for done in [pool.submit(check, *case) for case in cases]:
            done.result()


def run(command, ranks=None, env=None, patience=PATIENCE):
    return Job(command, ranks, env).wait(patience)


class Case(unittest.TestCase):
    """A test with a folder of its own and a text to train on."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="cox-e2e-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def text(self):
        """A file of 64 KiB that is the same each time and can be learned from."""
        name = self.path("text.txt")
        if not os.path.exists(name):
            words = "oar blade stroke crew river bow stern cox row wave".split()
            state, parts = 1, []
            while sum(map(len, parts)) < 65536:
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                end = ".\n" if state >> 62 == 0 else " "
                parts.append(words[(state >> 40) % len(words)] + end)
            with open(name, "w") as file:
                file.write("".join(parts))
        return name

    def gpt2(self, *flags, run_directory=None, saves=None):
        command = [programs.gpt2, "--text", self.text(), *TINY, *flags, "--cox.http.port=0"]
        if run_directory:
            command.append("--cox.run.directory=" + self.path(run_directory))
        if saves:
            command.append("--cox.checkpoint.directory=" + self.path(saves))
        return command

    def seal(self, save):
        """Takes over a save that the test has changed."""
        subprocess.run([programs.cox, "checkpoint", "seal", save], check=True, capture_output=True)

    def entries(self, saves):
        """What lies in a folder of saves beside its lock."""
        return sorted(set(os.listdir(self.path(saves))) - {"saves.lock"})

    def newest_save(self, saves):
        names = os.listdir(self.path(saves)) if os.path.isdir(self.path(saves)) else []
        return max((int(n[5:]) for n in names if re.fullmatch(r"step-\d+", n)), default=0)

    def rows(self, run_directory, rank=0):
        name = self.path(run_directory, f"rank{rank}", "steps.jsonl")
        with open(name) as file:
            return [json.loads(line) for line in file]

    def losses(self, run_directory, rank=0):
        """Losses by step, as written: every bit of the number is in its text."""
        rows = self.rows(run_directory, rank)
        self.assertEqual([row["step"] for row in rows], list(range(len(rows))))
        return [row["scalars"]["loss"] for row in rows]

    def pages_at_the_end(self, command, ranks, *pages, patience=PATIENCE):
        """(how the job ended, what these pages of /api/v1 said after its last step). The program knows
        --hold."""
        job = Job([*command, "--hold"], ranks)
        self.addCleanup(job.signal, signal.SIGKILL)
        found = job.until(lambda: re.search(r"holding (http://\S+)/status until", job.output()), patience)
        answers = []
        for page in pages:
            with urllib.request.urlopen(found[1] + "/api/v1/" + page, timeout=10) as answer:
                answers.append(json.load(answer))
        job.signal(signal.SIGTERM)
        return self.ends_well(job.wait()), answers

    def ends_well(self, ended):
        self.assertEqual(ended.code, 0, ended)
        return ended


class SharedCase(Case):
    """The tests of a class share a folder, and in it the runs that they only read."""

    @classmethod
    def setUpClass(cls):
        cls.shared_folder = tempfile.mkdtemp(prefix="cox-e2e-")
        cls.addClassCleanup(shutil.rmtree, cls.shared_folder, ignore_errors=True)
        cls.ended = {}

    def setUp(self):
        self.folder = self.shared_folder

    def once(self, name, start):
        """How the job of that name ended, which `start()` runs for the first test that asks. A name
        stands for one command in all tests of the class."""
        if name not in self.ended:
            self.ended[name] = start()
        return self.ended[name]
