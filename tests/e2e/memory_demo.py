"""scripts/demo tells its story, and takes a memory budget. It runs in a tree of its own, in which bootstrap
and cmake do nothing, because everything is built already."""

import os
import re
import shutil

import jobs
from memory_jobs import MIB, NONE, SHAPE, MemoryCase

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")


class Demo(MemoryCase):
    def program(self, text, *parts):
        name = self.path(*parts)
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "w") as file:
            file.write(text)
        os.chmod(name, 0o755)

    def setUp(self):
        jobs.Case.setUp(self)  # a tree for each test
        for parts in (("tree", "scripts", "bootstrap"), ("tools", "cmake")):
            self.program("#!/bin/sh\nexit 0\n", *parts)
        for name in ("demo", "dictionary"):
            shutil.copy(os.path.join(SCRIPTS, name), self.path("tree", "scripts", name))
        release = self.path("tree", "build", "release")
        os.makedirs(os.path.join(release, "bin"))
        os.symlink(os.path.realpath(jobs.programs.gpt2), os.path.join(release, "bin", "gpt2"))
        mpiexec = shutil.which(jobs.programs.mpiexec)
        with open(os.path.join(release, "CMakeCache.txt"), "w") as file:
            file.write(f"COX_MPIEXEC:FILEPATH={mpiexec}\n")

    def demo(self, *arguments):
        path = self.path("tools") + os.pathsep + os.environ["PATH"]
        command = ["bash", self.path("tree", "scripts", "demo"), *arguments]
        return jobs.run(command, env={"PATH": path, "COX_RUN_DIRECTORY": self.path("demo")})

    def test_it_trains_within_the_budget_by_counted_bytes(self):
        self.train("none", 2, *NONE)
        model = [*jobs.TINY, *SHAPE, "--steps", self.STEPS, "--cox.http.port=0",
                 "--save-model", self.path("demo-model"), "--text", self.text()]
        for budget in (["--memory-budget", "7.5MiB"], ["--memory-budget=7MiB"]):
            with self.subTest(budget):
                shutil.rmtree(self.path("demo"), ignore_errors=True)
                ended = self.ends_well(self.demo("--plain", *budget, *model))
                told = re.search(r"memory: at most ([0-9.]+) MiB on a rank \(measured\)\n  the last plan saves "
                                 r"up to [0-9.]+ MiB of a rank's blocks", ended.out)
                self.assertTrue(told, ended)
                self.assertLessEqual(float(told[1]), 7.5)
                self.same_training("demo", "none", 2)
                for rank in range(2):
                    self.within("demo", rank, 7.5 * MIB)
                    self.assertGreater(self.mix("demo", rank)[0], 0)

    def test_its_default_form_keeps_the_budget_and_ends_with_a_table_of_decisions(self):
        """The whole story in 60 steps in place of 600; who is found slow in so few hangs on the machine."""
        path = self.path("tools") + os.pathsep + os.environ["PATH"]
        command = ["bash", self.path("tree", "scripts", "demo"), "--steps", "60"]
        ended = self.ends_well(jobs.run(command, env={"PATH": path}, patience=300))
        for words in (r"status page: http", r"step  decision +effect", r"would peak at [0-9.]+ MiB, .* budget of 40\.0 MiB",
                      r"loss [0-9.]+ -> [0-9.]+ in 60 steps", r"run directory: .*runs/demo-"):
            self.assertRegex(ended.out + ended.err, words)
        decisions = [line for line in ended.err.splitlines() if line.startswith("coxswain: ")]
        self.assertEqual([line for line in decisions if len(line.encode()) > 100], [])
        self.assertTrue(any(line.endswith(" ...") for line in decisions), decisions)
        first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+) in", ended.out).groups())
        self.assertLess(last, first)
        most = re.search(r"memory: at most ([0-9.]+) MiB on a rank \(measured\)", ended.out)
        self.assertLessEqual(float(most[1]), 40.0)
        runs = os.listdir(self.path("tree", "runs"))
        self.assertEqual(len(runs), 1, runs)
        self.assertTrue(os.path.exists(self.path("tree", "runs", runs[0], "rank1", "steps.jsonl")))

    def test_its_help_has_the_option(self):
        ended = self.ends_well(self.demo("--help"))
        self.assertIn("--memory-budget 96MiB", ended.out)
        self.assertIn("run directory", ended.out)

    def test_wrong_sizes_end_it_with_one_line(self):
        ended = self.demo("--text", self.text(), "--cox.run.log=warning", "--memory-budget")
        self.assertNotEqual(ended.code, 0, ended)
        self.assertEqual(len(ended.complaints()), 1, ended)
        self.assertIn("--memory-budget", ended.complaints()[0])
        ended = self.demo("--text", self.text(), "--memory-budget", "much", "--cox.run.log=warning")
        self.assertNotEqual(ended.code, 0, ended)
        self.assertEqual(len(ended.complaints()), 1, ended)
        self.assertIn("found 'much'", ended.complaints()[0])


if __name__ == "__main__":
    jobs.main()
