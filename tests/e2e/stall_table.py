"""How soon a rank that keeps the others waiting is named: stopped, asleep in its step, dead, and gone
from its loop, at 2, 3 and 8 ranks, over the mailbox and MPI. Measures and prints rows of a table;
stalls.py is the test of it.
"""

import json
import re
import signal
import sys
import time
import urllib.error

import jobs
import stalls

RANKS = [2, 3, 8]
ENDLESS = ["--steps", 10**7]
LATE_S = 60
FAULTS = ["stopped", "asleep", "dead", "departed"]
SLEEPS_IN = 200  # the step in which a rank falls asleep, or after which it leaves


class Row:
    def __init__(self, fault, path, ranks):
        self.fault, self.path, self.ranks, self.victim = fault, path, ranks, ranks - 1
        self.seconds = dict.fromkeys(("API", "/status", "/livez", "log"))
        self.said = ""

    def __str__(self):
        times = " | ".join("-" if t is None else f"{t:.1f}" for t in self.seconds.values())
        return f"| {self.fault} | {self.path[0]} | {self.ranks} | {times} | {self.said} |"


class Table(stalls.Stalls):
    def measure(self, fault, path, ranks):
        row = Row(fault, path, ranks)
        kind = "own" if fault == "departed" else "trainer"
        flags = {"asleep": ["--sleep-on", row.victim, SLEEPS_IN, LATE_S],
                 "departed": ["--leave-on", row.victim, SLEEPS_IN, "--jitter-us", 30000],
                 "dead": ["--cox.run.directory=" + self.path(f"{path[0]}{ranks}")]}.get(fault, [])
        job = self.start(ranks, path, [kind, *ENDLESS, "--batch", 4 * ranks, "--no-norm", *flags])
        try:
            if fault == "departed":
                self.wait_for_the_error(row, job)
            elif fault == "dead":
                self.wait_for_the_end(row, job)
            else:
                self.follow(row, job, self.begin(row, job))
        finally:
            job.signal(signal.SIGKILL)
            job.process.kill()
            job.process.wait()
        return row

    def begin(self, row, job):
        """Brings the fault about and returns when it began."""
        job.until(lambda: self.trains(job))
        if row.fault == "asleep":
            return self.since_when_rounds_stand(job)
        job.signal(signal.SIGSTOP, [row.victim])
        return time.monotonic()

    def since_when_rounds_stand(self, job):
        newest, since = self.round(job), time.monotonic()
        while newest < SLEEPS_IN - 5 or time.monotonic() - since < 1:
            now = self.round(job)
            if now != newest:
                newest, since = now, time.monotonic()
            time.sleep(0.02)
        return since

    def round(self, job):
        return json.loads(stalls.get(job.address + "/api/v1/status"))["round"]

    def livez(self, job):
        try:
            return stalls.get(job.address + "/livez")
        except urllib.error.HTTPError as refused:  # 503 while the control loop has no processor
            return refused.read().decode()

    def follow(self, row, job, began):
        """Asks until the API, both pages and the log have named the rank, and only it."""
        others = [r for r in range(row.ranks) if r != row.victim]
        name = rf"ank {row.victim} (is|has|waits) (in|outside|saving|finished)|ank {row.victim} has"

        def api():
            stall = self.stall(job)
            row.said = stall["text"] if stall else row.said
            return (stall and [c["rank"] for c in stall["culprits"]] == [row.victim] and
                    sorted(stall["waiting"]) == others)
        looks = {"API": api, "/status": lambda: re.search(name, stalls.get(job.address + "/status")),
                 "/livez": lambda: re.search(name, self.livez(job)),
                 "log": lambda: re.search(name, job.errors())}
        while None in row.seconds.values() and time.monotonic() - began < LATE_S:
            for place, look in looks.items():
                if row.seconds[place] is None and look():
                    row.seconds[place] = time.monotonic() - began
            time.sleep(0.05)

    def wait_for_the_error(self, row, job):
        """The job ends with an error on all ranks: only the log is left to ask."""
        error = re.compile(rf".*rank {row.victim} has left its loop.*")
        newest, since = 0, time.monotonic()
        while not error.search(job.errors()) and job.process.poll() is None:
            try:
                now = self.round(job)
            except OSError:
                now = newest  # the server is gone
            if now != newest:
                newest, since = now, time.monotonic()
        if error.search(job.errors()):
            row.seconds["log"] = time.monotonic() - since
        code = job.process.wait(LATE_S)
        row.said = f"the job ends after {time.monotonic() - since:.1f} s with exit code {code}"

    def wait_for_the_end(self, row, job):
        """mpiexec kills the other ranks at once: only a process that outlives them is left to say anything."""
        job.until(lambda: self.trains(job))
        job.signal(signal.SIGKILL, [row.victim])
        began = time.monotonic()
        line = re.compile(rf"rank {row.victim} on .* ended before its loop did")
        while job.process.poll() is None or row.seconds["log"] is None:
            if row.seconds["log"] is None and line.search(job.errors()):
                row.seconds["log"] = time.monotonic() - began
            if time.monotonic() - began > LATE_S:
                break
            time.sleep(0.005)
        code = job.process.wait(LATE_S)
        row.said = f"mpiexec ends the job after {time.monotonic() - began:.1f} s with exit code {code}"

    def test_table(self):
        for fault in FAULTS:
            for path in stalls.PATHS[:2]:
                for ranks in RANKS:
                    print(self.measure(fault, path, ranks), flush=True)


if __name__ == "__main__":
    sys.argv.append("Table.test_table")
    jobs.main()
