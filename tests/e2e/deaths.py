"""A rank that dies is named in one line and in the run directory, although the launcher kills the
others at once: killed, aborted, gone by exit(3) or by a stray write, at 2, 3 and 8 ranks, over the
mailbox and MPI. Nothing is left behind, the resume and `cox replay` tell it, and a job that ends in
order, or by an error that it tells, says nothing of it.

    deaths.py ... [--times N]

--times N kills a rank of 8 so often, by SIGKILL, and prints how many of the deaths were named rightly.
The default is 1; docs/results/stalls.md has 40.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import jobs

PATHS = [("mailbox", {}), ("mpi", {"COX_CONTROL": "mpi"})]
LINE = re.compile(r"^coxswain\[(\d+)\] error: rank (\d+) on (\S+) \(process (\d+)\) ended before its loop did: "
                  r"(.*?); it (.*?)(?: for [0-9.]+ s)?(; the launcher .*|\. .*)$", re.MULTILINE)
WAYS = {"kill": "killed by signal 9 (SIGKILL", "abort": "killed by signal 6 (SIGABRT",
        "exit": "exit code 3, without Session::finish()", "stray": "killed by signal 11 (SIGSEGV"}
DIES_IN = 30
QUIET_S = 20  # for the processes of a job to be gone after mpiexec is

settings = argparse.Namespace()


class Deaths(jobs.Case):
    seconds = 0  # the longest from a kill to the end of mpiexec, when all lines are out

    def start(self, ranks, path, *flags, kind="trainer"):
        command = [jobs.programs.parallel, kind, "--batch", 4 * (ranks or 1), "--no-norm", "--cox.http.enabled=off",
                   "--cox.run.directory=" + self.path("run"), *flags]
        job = jobs.Job(command, ranks, path[1])
        self.addCleanup(job.signal, signal.SIGKILL)
        return job

    def processes(self, job):
        """Of the job, by their names: mpiexec, ranks and what they left."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    is_ours = job.mark.encode() in file.read().split(b"\0")
                with open(f"/proc/{entry}/comm", encoding="utf-8") as file:
                    name = file.read().strip()
            except OSError:
                continue
            if is_ours:
                found.append(name)
        return found

    def leaves_nothing(self, job):
        end = time.monotonic() + QUIET_S
        while self.processes(job) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(self.processes(job), [])
        self.assertEqual([name for name in os.listdir(self.path("run")) if name.endswith(".new")], [])

    def trains(self, ranks):
        """Whether all ranks have written rows; they are in the middle of their steps then."""
        def has_rows(rank):
            name = self.path("run", f"rank{rank}", "steps.jsonl")
            return os.path.exists(name) and os.path.getsize(name) > 0
        return all(has_rows(rank) for rank in range(max(ranks, 1)))

    def dies(self, way, victim, ranks, path, *flags):
        """Ends the job of which a rank dies, with the process of that rank where it was killed."""
        if way != "kill":
            job = self.start(ranks, path, "--steps", 10**7, "--die-on", victim, DIES_IN, way, *flags)
            return job, job.wait(), None
        job = self.start(ranks, path, "--steps", 10**7, *flags)
        job.until(lambda: self.trains(ranks))
        pid = job.pids()[victim]
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        ended = job.wait()
        self.seconds = max(self.seconds, time.monotonic() - began)
        return job, ended, pid

    def line(self, ended):
        found = LINE.findall(ended.err)
        self.assertEqual(len(found), 1, ended)
        return found[0]

    def is_named(self, way, victim, ranks, path, *flags):
        job, ended, pid = self.dies(way, victim, ranks, path, *flags)
        self.assertNotEqual(ended.code, 0, ended)
        writer, rank, _, process, how, where, rest = self.line(ended)
        print(f"{path[0]}, {ranks} ranks, rank {victim}, {way}: after {ended.seconds:.1f} s: {how}; {where}")
        self.assertEqual((int(writer), int(rank)), (victim, victim), ended)
        if pid is not None:
            self.assertEqual(int(process), pid)
        # Of a process that the launcher has waited for, only Linux 6.15 and later know; and exit() may crash on its
        # way out, since the coordinator's thread still runs.
        self.assertTrue(how.startswith(WAYS[way]) or how == "the cause is not known" or
                        way == "exit" and how.startswith("killed by"), how)
        if way != "kill":  # in its own code, which the forward pass calls
            self.assertRegex(where, rf"in (compute|forward) of step {DIES_IN}$")
        else:
            newest = self.rows("run", victim)[-1]["step"]
            self.assertGreaterEqual(int(re.search(r"step (\d+)", where)[1]), newest)
        self.assertEqual("the launcher then ends the other ranks" in rest, ranks > 1)
        with open(self.path("run", "ending.json"), encoding="utf-8") as file:
            note = json.load(file)
        self.assertEqual(note["rank"], victim)
        self.assertIn(note["text"], ended.err)
        self.leaves_nothing(job)
        return note["text"]

    def test_a_death_is_named(self):
        # Each way over both paths, by 2, 3 and 8 ranks. Not the stray write: MPI's own signal handler may tell the
        # launcher of it before the process ends, and then another rank can end first (docs/endings.md).
        mailbox, mpi = PATHS
        for path, ranks, way, victim in ((mailbox, 2, "kill", 1), (mailbox, 3, "exit", 1), (mailbox, 8, "abort", 4),
                                         (mpi, 2, "exit", 1), (mpi, 2, "abort", 0), (mpi, 3, "kill", 2)):
            with self.subTest(path=path[0], ranks=ranks, way=way, victim=victim):
                subprocess.run(["rm", "-rf", self.path("run")], check=True)
                self.is_named(way, victim, ranks, path)

    def test_the_first_rank_is_named_as_any_other_although_the_watch_is_its_own(self):
        self.is_named("kill", 0, 3, PATHS[0])

    def test_a_process_alone_is_named_without_a_launcher(self):
        job = self.start(None, PATHS[0], "--steps", 10**7)
        job.until(lambda: self.trains(1))
        job.process.kill()
        ended = job.wait()
        end = time.monotonic() + QUIET_S
        while not os.path.exists(self.path("run", "ending.json")) and time.monotonic() < end:
            time.sleep(0.01)
        with open(self.path("run", "ending.json"), encoding="utf-8") as file:
            note = json.load(file)
        self.assertEqual(note["rank"], 0, ended)
        self.leaves_nothing(job)

    def test_the_resume_and_replay_tell_it_once(self):
        saves = ["--cox.checkpoint.directory=" + self.path("saves"), "--cox.checkpoint.every_steps=5"]
        text = self.is_named("abort", 1, 2, PATHS[0], *saves)
        shown = subprocess.run([jobs.programs.cox, "replay", self.path("run")], check=True, capture_output=True, text=True)
        self.assertIn("the job ended by a death: " + text, shown.stdout)
        for is_told in (True, False):
            job = self.start(2, PATHS[0], "--steps", 40, *saves, "--cox.checkpoint.resume=on")
            ended = self.ends_well(job.wait())
            self.assertEqual("the last job ended by a death: " + text in ended.err, is_told, ended)
            self.assertFalse(os.path.exists(self.path("run", "ending.json")))

    def test_an_end_in_order_says_nothing(self):
        for ranks in (None, 3):
            with self.subTest(ranks=ranks):
                subprocess.run(["rm", "-rf", self.path("run")], check=True)
                job = self.start(ranks, PATHS[0], "--steps", 30)
                ended = self.ends_well(job.wait())
                self.says_nothing(job, ended)

    def test_a_stop_that_was_asked_for_says_nothing(self):
        job = self.start(3, PATHS[0], "--steps", 10**7)
        job.until(lambda: self.trains(3))
        job.signal(signal.SIGTERM)
        self.says_nothing(job, self.ends_well(job.wait()))

    def test_an_error_that_a_rank_tells_is_not_told_again(self):
        for flags in (["--throw-on", 1, 20], ["--sleep-on", 1, 25, 600, "--cox.control.wait_seconds=6"]):
            with self.subTest(flags[0]):
                subprocess.run(["rm", "-rf", self.path("run")], check=True)
                job = self.start(3, PATHS[0], "--steps", 10**7, *flags)
                ended = job.wait()
                self.assertNotEqual(ended.code, 0)
                self.assertRegex(ended.err, "rank 1")
                self.says_nothing(job, ended)

    def test_a_rank_that_left_is_told_by_the_others_alone(self):
        job = self.start(3, PATHS[0], "--steps", 10**7, "--leave-on", 1, 40, kind="own")
        ended = job.wait()
        self.assertIn("rank 1 has left its loop after step 40", ended.err)
        self.says_nothing(job, ended)

    def says_nothing(self, job, ended):
        self.assertEqual(LINE.findall(ended.err), [], ended)
        self.assertFalse(os.path.exists(self.path("run", "ending.json")))
        self.leaves_nothing(job)

    def test_many_deaths_of_8_ranks(self):
        chance = random.Random(23)
        named, wrong, silent = 0, 0, 0
        for number in range(settings.times):
            subprocess.run(["rm", "-rf", self.path("run")], check=True)
            victim = chance.randrange(8)
            job, ended, _ = self.dies("kill", victim, 8, PATHS[1 - number % 2])
            found = LINE.findall(ended.err)
            named += len(found) == 1 and int(found[0][1]) == victim
            wrong += len(found) > 0 and int(found[0][1]) != victim
            silent += len(found) == 0
            self.leaves_nothing(job)
        print(f"{named} of {settings.times} deaths at 8 ranks named, {wrong} wrongly, {silent} not at all, "
              f"after {self.seconds:.1f} s at most; "
              f"load average {os.getloadavg()[0]:.1f}")
        self.assertEqual(named, settings.times)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--times", type=int, default=1)
    _, rest = parser.parse_known_args(namespace=settings)
    sys.argv[1:] = rest
    jobs.main()
