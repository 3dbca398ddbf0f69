"""Ranks that do not do the same: other programs, other loops, late ranks, ranks that leave. Every job
ends by itself, without a crash, with a line that says who is where. Random pairs are drawn by a
seed: --pairs 1000 --seed N for many."""

import random
import shutil
import tempfile
import unittest
import argparse
import os
import sys

import jobs

LOOPS = ["trainer", "reducer", "manual", "adopted", "watching", "together", "idle"]
CRASHES = {-11, -6, -7, -8, 139, 134, 135, 136}
arguments = argparse.Namespace(mixed="", pairs=4, seed=1)


def job_of(parts, flags=()):
    """A job of one command a rank, as mpiexec wants it."""
    command = [str(word) for word in parts[0]] + list(flags)
    for part in parts[1:]:
        command += [":", "-n", "1"] + [str(word) for word in part] + list(flags)
    return jobs.run(command, 1)


def quiet(*more):
    return ["--cox.control.wait_seconds=3", "--cox.http.enabled=off", *more]


def mixed(*words):
    return [arguments.mixed, *words]


class Programs(unittest.TestCase):
    def test_another_program_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "another")
            shutil.copy(arguments.mixed, other)
            ended = job_of([mixed("trainer"), [other, "trainer"]], quiet())
            self.assertNotEqual(ended.code, 0, ended)
            self.assertIn("expected the same program on all ranks, found e2e_mixed on rank 0 and "
                          "another on rank 1", ended.err)

    def test_another_program_takes_part_where_it_may(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "another")
            shutil.copy(arguments.mixed, other)
            ended = job_of([mixed("together"), [other, "together"]],
                           quiet("--cox.run.allow_other_programs=on"))
            self.assertEqual(ended.code, 0, ended)
            self.assertNotIn("another build", ended.err)


class Calls(unittest.TestCase):
    def ends_with(self, parts, *texts):
        ended = job_of(parts, quiet())
        self.assertNotEqual(ended.code, 0, ended)
        self.assertNotIn(ended.code, CRASHES, ended)
        self.assertLess(ended.seconds, 25, ended)
        for text in texts:
            self.assertRegex(ended.err, text, ended)

    def test_a_trainer_beside_a_loop_of_ones_own(self):
        self.ends_with([mixed("trainer"), mixed("watching")], "the start of a Trainer.* on rank 0",
                       "the first step of a loop of the program's own.* on rank 1")

    def test_a_trainer_beside_an_adopted_loop(self):
        self.ends_with([mixed("trainer"), mixed("adopted")], "the start of a Trainer")

    def test_a_rank_that_asks_while_the_others_average(self):
        self.ends_with([mixed("trainer"), mixed("trainer", "--together-at", "20")],
                       "the averaging of a step on rank 0", "Session::together.* on rank 1")

    def test_a_rank_that_comes_late_is_named_and_ends_the_job(self):
        ended = job_of([mixed("trainer"), mixed("trainer", "--late", "60")], quiet())
        self.assertEqual(ended.code, 75, ended)
        self.assertRegex(ended.err, "rank 0 has waited . s in the start of a Trainer.*: rank 1 has "
                                    "not come to it")


class RandomPairs(unittest.TestCase):
    def test_every_pair_ends_by_itself(self):
        draw = random.Random(arguments.seed)
        for number in range(arguments.pairs):
            parts = [self.draw_rank(draw) for _ in range(draw.choice([2, 2, 3]))]
            with self.subTest(number=number, parts=parts):
                ended = job_of([mixed(*part) for part in parts], quiet())
                self.assertNotIn(ended.code, CRASHES, ended)
                self.assertLess(ended.seconds, 40, ended)
                if len({tuple(part) for part in parts}) > 1 and ended.code not in (0,):
                    self.assertRegex(ended.err, r"rank \d", ended)

    def draw_rank(self, draw):
        part = [draw.choice(LOOPS)]
        what = draw.randrange(5)
        if what == 0:
            part += ["--late", str(draw.choice([1, 5]))]
        elif what == 1:
            part += ["--leave-at", str(draw.choice([0, 1, 20]))]
        elif what == 2:
            part += ["--together-at", str(draw.choice([0, 1, 20]))]
        elif what == 3:
            part += ["--width", str(draw.choice([3, 64]))]
        return part


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed", default="")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    _, rest = parser.parse_known_args(namespace=arguments)
    sys.argv = [sys.argv[0]] + rest
    jobs.main()
