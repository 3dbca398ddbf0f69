"""Ranks that do not do the same: other programs, other loops, late ranks, ranks that leave. Every job
ends by itself, without a crash, with a line that says who is where. Random pairs are drawn by a
seed: --pairs 1000 --seed N --at-once 2 for many; each is told with the command that repeats it."""

import shutil
import tempfile
import unittest
import argparse
import os
import sys

import jobs
import mixed_pairs
import records

arguments = argparse.Namespace(mixed="", pairs=4, seed=6, at_once=2, record="")


def job_of(parts, flags=()):
    """A job of one command a rank, as mpiexec wants it."""
    command = [str(word) for word in parts[0]] + list(flags)
    for part in parts[1:]:
        command += [":", "-n", "1"] + [str(word) for word in part] + list(flags)
    return jobs.run(command, 1)


def quiet(*more):
    return [*mixed_pairs.FLAGS, *more]


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
        self.assertNotIn(ended.code, mixed_pairs.CRASHES, ended)
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

    def test_ranks_that_part_are_told_with_what_each_does(self):
        def beside_the_end(call, rank):
            # The rank that ended is found in the call book, or by what it last told.
            return (f"{call}(: expected every rank in this step, found that rank {rank} has left its loop"
                    f"|.* the end of its session on rank {rank})")

        def both(first, second):
            # Each rank names its own call first, and the words of one of them may be lost.
            return f"{first} on rank 0, {second} on rank 1|{second} on rank 1, {first} on rank 0"

        cases = [
            (mixed("manual"), mixed("idle"), both("a call of ManualParallel.*", "the end of its session.*")),
            (mixed("trainer", "--batch", "4"), mixed("fit", "--batch", "4"),
             both("the start of a Trainer.*", "the start of cox::fit.*")),
            # The Reducer has agreed on the next step's buckets by then.
            (mixed("reducer", "--together-at", "1"), mixed("reducer"),
             both("Session::together.*", "the averaging of a step")),
            # Both have averaged in the step, and one has not closed it yet.
            (mixed("adopted", "--together-at", "20"), mixed("adopted"),
             both("Session::together.*", "the averaging of (?:a step|an adopted loop).*")),
            # The others' last step is behind that of the rank that calls.
            (mixed("watching", "--steps", "40"), mixed("watching", "--together-at", "20"),
             beside_the_end("Session::together", 0)),
            (mixed("scaler"), mixed("scaler", "--leave-at", "1"), beside_the_end("a step of a LossScaler", 1)),
        ]
        jobs.side_by_side(lambda first, second, text: self.ends_with([first, second], text), cases)

    def test_a_save_on_one_rank_alone_is_told(self):
        with tempfile.TemporaryDirectory() as saves:
            ended = job_of([mixed("trainer", "--save-at", "20"), mixed("trainer")],
                           quiet("--cox.checkpoint.directory=" + saves))
            self.assertEqual(ended.code, 1, ended)
            self.assertRegex(ended.err, "a save.* on rank 0.*the averaging of a step on rank 1"
                                        "|the averaging of a step on rank 1.*a save.* on rank 0")

    # The thread's own variables are gone when exit() calls the session.
    def test_an_adopted_loop_that_is_left_by_exit_does_not_crash(self):
        self.ends_with([mixed("adopted"), mixed("adopted", "--leave-at", "20", "--leave-by", "exit")],
                       "the end of the session|rank 1 has left its loop")

    def test_a_rank_that_comes_late_is_named_and_ends_the_job(self):
        ended = job_of([mixed("trainer"), mixed("trainer", "--late", "60")], quiet())
        self.assertEqual(ended.code, 75, ended)
        self.assertRegex(ended.err, "rank 0 has waited . s in the start of a Trainer.*: rank 1 has "
                                    "not made this call")


class RandomPairs(unittest.TestCase):
    def test_every_pair_ends_by_itself_and_says_why(self):
        pairs = mixed_pairs.draw_pairs(arguments.pairs, arguments.seed)
        mixed_pairs.run_pairs(pairs, arguments.mixed, arguments.at_once, self.tell)
        table = mixed_pairs.counts(pairs)
        print("\n".join(table), flush=True)
        if arguments.record:
            with open(arguments.record, "w", encoding="utf-8") as file:
                file.write(mixed_pairs.page(pairs, f"tests/e2e/mixed.py --pairs {arguments.pairs} --seed "
                                            f"{arguments.seed} --at-once {arguments.at_once}", records.place()))
        faulty = [pair for pair in pairs if pair.faults]
        self.assertEqual(faulty, [], f"{len(faulty)} of {len(pairs)} pairs")

    def tell(self, pair):
        for fault in pair.faults:
            print(f"fault: {fault}\n{pair.ended or ''}", flush=True)
        if pair.faults or arguments.pairs > 10:
            print(pair, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed", default="")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--record", default="")
    _, rest = parser.parse_known_args(namespace=arguments)
    sys.argv = [sys.argv[0]] + rest
    jobs.main()
