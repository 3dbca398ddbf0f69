"""The demo's program, run with a planted fault, ends with the finding that names it before all
others, and `cox analyze` says the same of the run directory."""

import json
import re
import subprocess

import jobs

SHAPE = ["--layers", "2", "--width", "64", "--heads", "2", "--length", "32", "--batch", "8"]


class Findings(jobs.Case):
    STEPS = 40

    def found_by(self, *flags, ranks=2):
        """Returns the rows of the closing table, as (grade, code), and all of the output."""
        command = [jobs.programs.gpt2, "--text", self.text(), *SHAPE, "--steps", self.STEPS, "--verbose", *flags,
                   "--cox.http.port=0", "--cox.run.directory=" + self.path("run")]
        ended = self.ends_well(jobs.run(command, ranks, patience=240))
        table = ended.out[ended.out.index("losses of the newest steps"):]
        rows = re.findall(r"^ *(high|med|low)  .{12} ([A-Z_.]+) ", table, re.M)
        self.assertTrue(rows, ended)
        return rows, ended

    def afterwards(self):
        """Codes that `cox analyze` finds, in its order."""
        done = subprocess.run([jobs.programs.cox, "analyze", self.path("run"), "--json"],
                              capture_output=True, text=True, check=True)
        return [finding["code"] for finding in json.loads(done.stdout)["findings"]]

    def check(self, code, *flags, grade="high"):
        rows, ended = self.found_by(*flags)
        self.assertEqual(rows[0], (grade, code), ended)
        self.assertEqual(self.afterwards()[0], code, ended)
        return ended

    def test_a_slow_rank(self):
        ended = self.check("DIST.STRAGGLER", "--slow", "1:6")
        self.assertIn("Rank 1 is slower than the others", ended.out)

    def test_slow_data(self):
        self.check("TIMING.DATALOADER_BOUND", "--slow-data", "0.15", "--steps", "30")

    def test_slow_saves(self):
        self.check("SAVE.STALLS", "--slow-save", "1.5", "--saves", self.path("saves"),
                   "--cox.checkpoint.every_steps=10", "--steps", "30")

    def test_a_leak(self):
        # Fresh pages may cost one rank more than the other, which is a finding of its own.
        rows, ended = self.found_by("--leak", "16")
        self.assertIn(("high", "MEMORY.GROWTH"), rows, ended)
        self.assertIn("MEMORY.GROWTH", self.afterwards(), ended)

    def test_a_burst_of_overflows(self):
        self.check("PRECISION.SKIPPED_STEPS", "--overflow", "10-29")

    def test_a_tight_budget(self):
        rows, ended = self.found_by("--memory-budget", "5.25MiB", "--length", "64", "--steps", "20", ranks=1)
        self.assertEqual(rows[0][1], "BUDGET.TOO_TIGHT", ended)
        self.assertEqual(self.afterwards()[0], "BUDGET.TOO_TIGHT", ended)

    def test_no_fault_is_none_of_these(self):
        command = [jobs.programs.gpt2, "--text", self.text(), *SHAPE, "--steps", self.STEPS,
                   "--cox.http.port=0", "--cox.run.directory=" + self.path("run")]
        self.ends_well(jobs.run(command, ranks=2, patience=240))
        planted = {"TIMING.DATALOADER_BOUND", "SAVE.STALLS", "MEMORY.GROWTH", "PRECISION.SKIPPED_STEPS",
                   "BUDGET.TOO_TIGHT", "CONVERGENCE.DIVERGED"}
        self.assertEqual(planted & set(self.afterwards()), set())


if __name__ == "__main__":
    jobs.main()
