"""The journal of a run decides the same again, and shows what another threshold would have done."""

import re

import jobs


class Replay(jobs.Case):
    def replay(self, run_directory, *flags):
        return jobs.run([jobs.programs.cox, "replay", self.path(run_directory, "journal.cox"),
                         *flags])

    def counts(self, ended):
        found = re.search(r"(\d+) rounds, (\d+) plans, (\d+) reasons: (.*)", ended.out)
        self.assertIsNotNone(found, ended)
        return [int(found[i]) for i in (1, 2, 3)] + [found[4]]

    def test_a_quiet_run_replays_equal_also_after_a_resume(self):
        for more in ([], ["--cox.checkpoint.resume=on"]):
            steps = 80 if more else 40
            self.ends_well(jobs.run(
                self.gpt2("--steps", steps, *more, run_directory="run", saves="saves"), 2))
        ended = self.ends_well(self.replay("run"))
        rounds, _, _, verdict = self.counts(ended)
        self.assertGreater(rounds, 10)
        self.assertEqual(verdict, "all equal")
        self.assertIn("2 starts", ended.out)

    def test_a_run_in_which_guard_acted_shows_another_threshold_as_a_difference(self):
        self.ends_well(jobs.run(
            [jobs.programs.trainer, "--steps", 80, "--sleep-ms", 3, "--nan-steps", 20, 69,
             "--cox.http.enabled=off", "--cox.run.directory=" + self.path("run")], 2))
        rounds, plans, reasons, verdict = self.counts(self.ends_well(self.replay("run")))
        self.assertEqual(verdict, "all equal")
        self.assertGreaterEqual(min(rounds, plans, reasons), 1)
        other = self.replay("run", "--cox.guard.nonfinite_streak=100")
        self.assertEqual(other.code, 1, other)
        self.assertIn("differ", self.counts(other)[3])
        self.assertGreater(len(other.out.splitlines()), 1, "expected the differences as lines")

    def test_what_is_no_journal_is_an_error_of_one_line(self):
        for name, content in (("none", None), ("empty", b""), ("noise", b"x" * 4096)):
            with self.subTest(name):
                if content is not None:
                    with open(self.path(name), "wb") as file:
                        file.write(content)
                ended = jobs.run([jobs.programs.cox, "replay", self.path(name)])
                self.assertEqual(ended.code, 2, ended)
                self.assertEqual(len(ended.complaints()), 1, ended)


if __name__ == "__main__":
    jobs.main()
