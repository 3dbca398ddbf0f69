"""A rank that keeps the others waiting is named on the log, the page and the API: stopped, asleep,
saving, gone from its loop; within a node and between (pretended) nodes. The waiting ones are called
waiting, and a job that goes on ends as if nothing had been."""

import json
import re
import signal
import time
import urllib.request

import jobs

PATHS = [("mailbox", {}, []), ("mpi", {"COX_CONTROL": "mpi"}, []),
         ("nodes", {}, ["--cox.control.ranks_per_node=1"]),
         ("pairs", {}, ["--cox.control.ranks_per_node=2"])]
ENDLESS = ["--steps", 10**7]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


class Stalls(jobs.Case):
    def start(self, ranks, path, flags):
        _, environment, more = path
        command = [jobs.programs.parallel, *flags, *more, "--cox.http.port=0"]
        job = jobs.Job(command, ranks, environment)
        self.addCleanup(job.signal, signal.SIGKILL)
        found = job.until(lambda: re.search(r"status page: (http://\S+)/status", job.errors()))
        job.address = found[1]
        return job

    def stall(self, job):
        return json.loads(get(job.address + "/api/v1/status"))["stall"]

    def trains(self, job):
        return json.loads(get(job.address + "/api/v1/status"))["round"] > 20

    def names(self, job, wanted, patience=jobs.PATIENCE):
        """The stall, once it is there and as wanted, and how long that took."""
        began = time.monotonic()
        found = job.until(lambda: (lambda s: s if s and wanted(s) else None)(self.stall(job)), patience)
        return found, time.monotonic() - began

    def stopped_rank_is_named(self, ranks, path, victim):
        job = self.start(ranks, path, ["trainer", *ENDLESS, "--batch", 4 * ranks, "--no-norm"])
        job.until(lambda: self.trains(job))
        job.signal(signal.SIGSTOP, [victim])

        def wanted(stall):
            named = [c["rank"] for c in stall["culprits"]] or stall["silent"]
            return named == [victim] and sorted(stall["waiting"]) == others
        others = [r for r in range(ranks) if r != victim]
        found, seconds = self.names(job, wanted)
        print(f"{path[0]}, {ranks} ranks, rank {victim} stopped: named after {seconds:.1f} s: {found['text']}")
        if path[0] in ("mailbox", "mpi"):
            self.assertEqual(found["culprits"][0]["process"], "stopped")
        for page in ("/status", "/livez"):
            self.assertIn(f"ank {victim}", get(job.address + page))
        self.assertIn(f"ank {victim}", job.errors())
        job.signal(signal.SIGCONT, [victim])
        job.until(lambda: self.stall(job) is None)
        job.until(lambda: "is over after" in job.errors())
        job.signal(signal.SIGTERM)
        self.ends_well(job.wait())

    def test_a_stopped_rank_is_named(self):
        jobs.side_by_side(self.stopped_rank_is_named, [(2, PATHS[0], 1), (3, PATHS[1], 1)])
        jobs.side_by_side(self.stopped_rank_is_named, [(3, PATHS[2], 2), (4, PATHS[3], 3)])

    def test_a_stopped_rank_0_is_named_by_those_who_wait(self):
        """Its process holds the coordinator, too: there is no page meanwhile. Bucket sizes are not
        searched for: while they are shared, nobody looks at marks."""
        job = self.start(3, PATHS[0], ["trainer", *ENDLESS, "--no-norm",
                                       "--cox.reduction.bucket_bytes=65536"])
        job.until(lambda: self.trains(job))
        job.signal(signal.SIGSTOP, [0])
        job.until(lambda: re.search(r"\[[12]\] warning: .*rank 0 .*its process is stopped", job.errors()))
        job.signal(signal.SIGCONT, [0])
        self.assertTrue(job.until(lambda: self.trains(job)))
        job.signal(signal.SIGTERM)
        self.ends_well(job.wait())

    def test_eight_ranks_on_few_cores(self):
        self.stopped_rank_is_named(8, PATHS[0], 5)

    def test_a_sleeping_rank_is_named_in_its_step_and_the_job_goes_on(self):
        def check(ranks, path, victim):
            job = self.start(ranks, path, ["trainer", "--steps", 120, "--sleep-on", victim, 100, 12])
            job.until(lambda: self.trains(job))
            found, _ = self.names(job, lambda s: [c["rank"] for c in s["culprits"]] == [victim])
            print(f"{path[0]}, {ranks} ranks, rank {victim} asleep: {found['text']}")
            self.assertEqual(found["culprits"][0]["step"], 100)
            self.assertEqual(found["culprits"][0]["phase"], "other")
            self.assertNotIn(victim, found["waiting"])
            ended = self.ends_well(job.wait())
            self.assertRegex(ended.err, rf"the wait for rank {victim} is over after")
        jobs.side_by_side(check, [(2, PATHS[0], 1), (3, PATHS[1], 0), (3, PATHS[2], 1)])

    def test_waiting_in_a_call_of_all_ranks_is_no_work_of_the_waiting_rank(self):
        """Rank 1 sleeps between its steps; rank 0, in a step and in none of its phases, asks all
        ranks whether to stop, and must not be called slow for the wait."""
        job = self.start(2, PATHS[0], ["own", "--steps", 60, "--ask-every", "--sleep-on", 1, 50, 8,
                                       "--cox.run.directory=" + self.path("run")])
        found, _ = self.names(job, lambda s: [c["rank"] for c in s["culprits"]] == [1] and s["waiting"] == [0])
        self.assertEqual(found["culprits"][0]["phase"], "outside")
        self.ends_well(job.wait())
        phases = self.rows("run", 0)[50]["phases"]
        self.assertGreater(phases["comm"], 3, phases)
        self.assertLess(phases.get("other", 0), 3, phases)

    def test_the_limit_on_waiting_ends_the_job_with_the_name(self):
        def check(path, victim):
            job = self.start(2, path, ["trainer", "--sleep-on", victim, 25, 600,
                                       "--cox.control.wait_seconds=6"])
            ended = job.wait()
            self.assertEqual(ended.code, 75, ended)
            self.assertRegex(ended.err, rf"rank {victim} is in step 25.*control.wait_seconds allows 6")
        jobs.side_by_side(check, [(PATHS[2], 1), (PATHS[0], 0)])

    def test_a_rank_that_forgot_to_join_is_an_error_on_all(self):
        def check(ranks, path):
            ended = jobs.run([jobs.programs.parallel, "own", *ENDLESS, "--leave-on", 1, 40,
                              "--cox.http.enabled=off", *path[2]], ranks, path[1])
            self.assertNotEqual(ended.code, 0, ended)
            self.assertIn("rank 1 has left its loop after step 40", ended.err)
            self.assertIn("see docs/data-parallel.md for ranks that end earlier", ended.err)
        jobs.side_by_side(check, [(2, PATHS[0]), (3, PATHS[1])])

    def test_a_rank_that_left_is_an_error_also_in_a_call_of_all_ranks_between_steps(self):
        def check(ranks, path):
            ended = jobs.run([jobs.programs.parallel, "own", *ENDLESS, "--ask-every", "--leave-on", 1, 40,
                              "--cox.http.enabled=off", *path[2]], ranks, path[1])
            self.assertNotEqual(ended.code, 0, ended)
            self.assertRegex(ended.err, "Session::stop_requested_anywhere.* on rank 0, the end of the session.* on "
                                        "rank 1|rank 1 has left its loop after step (39|40)")
        jobs.side_by_side(check, [(2, PATHS[0]), (3, PATHS[2])])


if __name__ == "__main__":
    jobs.main()
