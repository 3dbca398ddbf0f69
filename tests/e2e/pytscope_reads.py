"""pytscope, as it comes from PyPI, opens the run directories of our jobs: its loader finds every rank and every
step, each of its rules takes them, and its figures and findings are those of `cox analyze --rules pytscope`.

scripts/bootstrap installs the package; without it the test is skipped."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import jobs

STEPS = 40
FLOPS_PER_STEP, PEAK_TFLOPS = 5e7, 0.05
PACKAGE = jobs.package("pytscope-0.2.1")

sys.path.insert(0, PACKAGE)
try:
    import pytscope
    from pytscope.diagnosis import engine
except ImportError:
    pytscope = None


def context_of(stores):
    """What pytscope's command line makes of a run of several ranks."""
    first = stores[min(stores)]
    return pytscope.DiagnosisContext(
        timing=pytscope.analyze_timing(first.steps), memory=pytscope.analyze_memory(first.steps),
        convergence=pytscope.analyze_convergence(first.steps), steps=first.steps,
        distributed=pytscope.analyze_distributed(stores),
        efficiency=pytscope.analyze_efficiency(first.steps, flops_per_step=FLOPS_PER_STEP,
                                               peak_flops=PEAK_TFLOPS * 1e12))


class Pytscope(jobs.SharedCase):
    def run_of(self, name):
        """The directory of a job of two ranks, which trains within a memory budget and saves, or some of whose
        losses are not finite."""
        self.ends_well(self.once(name, lambda: jobs.run(self.command(name), ranks=2, patience=240)))
        return self.path(name)

    def command(self, name):
        if name == "trained":
            return self.gpt2("--steps", STEPS, "--memory-budget", "12MiB", "--cox.checkpoint.every_steps=10",
                             run_directory=name, saves="saves")
        return [jobs.programs.trainer, "--steps", STEPS, "--nan-steps", 20, 21, "--cox.http.enabled=off",
                "--cox.run.directory=" + self.path(name)]

    def ours(self, run):
        done = subprocess.run(
            [jobs.programs.cox, "analyze", run, "--rules", "pytscope", "--json", f"--flops-per-step={FLOPS_PER_STEP}",
             f"--peak-tflops={PEAK_TFLOPS}"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def same(self, ours, theirs, where):
        """All that ours has of a summary of theirs, whose members may also be properties."""
        if dataclasses.is_dataclass(theirs):
            theirs = {name: getattr(theirs, name) for name in ours}
        if isinstance(ours, dict):
            self.assertEqual(set(ours), set(theirs), where)
            for name, value in ours.items():
                self.same(value, theirs[name], f"{where}.{name}")
        elif isinstance(ours, list):
            self.assertEqual(len(ours), len(theirs), where)
            for number, (one, other) in enumerate(zip(ours, theirs)):
                self.same(one, other, f"{where}[{number}]")
        elif isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
            self.assertTrue(math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12), f"{where}: {ours}, {theirs}")
        else:
            self.assertEqual(ours, theirs, where)

    def test_its_loader_finds_every_rank_and_every_step(self):
        stores = pytscope.load_multirank(self.run_of("trained"))
        self.assertEqual(sorted(stores), [0, 1])
        for rank, store in stores.items():
            self.assertEqual((store.meta["rank"], store.meta["world_size"], store.meta["n_steps"]), (rank, 2, STEPS))
            self.assertEqual([step.step for step in store.steps], list(range(STEPS)))
            self.assertTrue(all(step.timestamp > 0 and "loss" in step.scalars and "alloc" in step.memory
                                for step in store.steps))
        self.assertEqual(pytscope.analyze_distributed(stores).n_steps, STEPS)

    def test_its_seconds_of_phases_are_those_of_the_record(self):
        run = self.run_of("trained")
        for rank, store in pytscope.load_multirank(run).items():
            timing = pytscope.analyze_timing(store.steps)
            rows = self.rows(run, rank)
            self.assertLessEqual({"forward", "backward", "comm", "optimizer"}, set(timing.phase_order))
            self.assertLessEqual(set(timing.phase_order), set(pytscope.core.CANONICAL_ORDER))
            for phase in timing.phase_order:
                recorded = math.fsum(row["phases"].get(phase, 0) for row in rows)
                self.assertAlmostEqual(timing.phase_seconds[phase] * STEPS, recorded, places=9)
            self.assertLess(timing.total_time, store.meta["wall_time"])  # seconds, and none of them counted twice

    def test_none_of_its_rules_throws(self):
        for name in ("trained", "not finite"):
            context = context_of(pytscope.load_multirank(self.run_of(name)))
            self.assertGreaterEqual(len(engine._RULES), 12)
            found = [finding.code for rule in engine._RULES for finding in rule(context) or []]
            self.assertEqual("CONVERGENCE.DIVERGED" in found, name == "not finite", found)

    def test_its_figures_and_findings_are_those_of_cox_analyze(self):
        for name in ("trained", "not finite"):
            run = self.run_of(name)
            context, ours = context_of(pytscope.load_multirank(run)), self.ours(run)
            found = pytscope.run_diagnosis(context)
            self.assertEqual([(f["code"], f["severity"]) for f in ours["findings"]],
                             [(f.code, f.severity) for f in found], name)
            for part in ("timing", "memory", "distributed", "convergence", "efficiency"):
                self.same(ours[part], getattr(context, part), f"{name}: {part}")

    def test_its_command_line_reports_on_a_run_and_compares_its_ranks(self):
        run = self.run_of("trained")
        for arguments, wanted in ((["analyze", run], f"2 ranks, {STEPS} aligned steps"),
                                  (["diff", run + "/rank0", run + "/rank1"], "final_loss")):
            done = subprocess.run([sys.executable, "-B", "-m", "pytscope.cli", *arguments], check=True, text=True,
                                  capture_output=True, env={**os.environ, "PYTHONPATH": PACKAGE})
            self.assertIn(wanted, done.stdout)
            self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    if pytscope is None:
        jobs.skip("expected the package pytscope of PyPI (scripts/bootstrap installs it), found none")
    jobs.main()
