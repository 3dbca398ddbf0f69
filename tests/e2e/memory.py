"""Training within memory budgets is the same training, bit for bit; dropout is on."""

import os
import re
import signal

import jobs
from memory_jobs import MIB, MemoryCase


class Budgets(MemoryCase):
    def check_one_budget(self, ranks, flag):
        least, most = self.bounds(ranks)
        budget = (least + most) // 2
        name = f"half{ranks}"
        self.train(name, ranks, f"{flag}={budget}")
        self.same_training(name, self.kept(ranks), ranks)
        for rank in range(ranks):
            self.within(name, rank, budget)
            self.assertGreater(self.mix(name, rank)[0], 0)
        self.answers_alike(name, budget)

    def answers_alike(self, name, budget):
        """`cox plan` says of the run's profile what the run did."""
        profile = self.path(name, "memory_profile.json")
        ended = self.ends_well(jobs.run([jobs.programs.cox, "plan", profile, "--budget", budget]))
        self.assertIn("time against budget", ended.out)
        answer = re.search(r"MiB +yes +([\d.]+) MiB .*\) +\d+ +(\d+)", ended.out)
        self.assertIsNotNone(answer, ended)
        predicted = self.rows(name)[-1]["memory"]["predicted_peak"]
        self.assertEqual(answer[1], f"{predicted / MIB:.3f}")
        self.assertEqual(int(answer[2]), self.mix(name)[0])

    def test_one_rank_trains_within_a_budget_of_the_examples_option_to_the_same_bits(self):
        self.check_one_budget(1, "--memory-budget")

    def test_two_ranks_train_within_a_budget_to_the_same_bits(self):
        self.check_one_budget(2, "--cox.memory.budget")

    def test_four_ranks_with_different_budgets_train_to_the_same_bits(self):
        least, most = self.bounds(4)
        budgets = [least, least + (most - least) // 3, most - (most - least) // 4, 2 * most]
        of_rank = ",".join(f"{rank}:{budget}" for rank, budget in enumerate(budgets))
        self.train("four", 4, "--cox.memory.budget_of_rank=" + of_rank)
        self.same_training("four", self.kept(4), 4)
        for rank, budget in enumerate(budgets):
            self.within("four", rank, budget)
        # How many blocks that takes is no measure: fewer may drop more of what they save.
        recomputed = [self.mix("four", rank)[0] for rank in range(4)]
        self.assertGreater(min(recomputed[:3]), 0, recomputed)
        self.assertEqual(recomputed[3], 0)
        peaks = [self.rows("four", rank)[-1]["memory"]["predicted_peak"] for rank in range(4)]
        self.assertEqual(peaks, sorted(peaks))
        self.assertGreater(len(set(peaks)), 2, peaks)

        replayed = jobs.run([jobs.programs.cox, "replay", self.path("four", "journal.cox")])
        self.assertIn("all equal", self.ends_well(replayed).out)

    def test_a_rank_with_a_larger_share_saves_more_from_the_first_step_on_at_the_same_bits(self):
        shares = "--cox.force.shares=12,4"
        budget = 9 * MIB
        ended = self.train("uneven", 2, f"--cox.memory.budget={budget}", shares)
        self.assertTrue(self.lines(ended, "force.shares: the user sets the shares"), ended)
        self.same_training("uneven", self.kept(2, shares), 2)
        for rank in range(2):
            self.within("uneven", rank, budget)
        self.assertGreater(self.mix("uneven", 0)[0], 0)
        self.assertEqual(self.mix("uneven", 1), (0, 0))
        replayed = jobs.run([jobs.programs.cox, "replay", self.path("uneven", "journal.cox")])
        self.assertIn("all equal", self.ends_well(replayed).out)

    def test_snapshots_for_rollbacks_are_within_the_budget(self):
        self.train("snapshots", 2, "--cox.memory.budget=8.5MiB", "--cox.checkpoint.snapshot_rounds=4")
        self.same_training("snapshots", self.kept(2), 2)
        for rank in range(2):
            for row in self.rows("snapshots", rank):
                self.assertLessEqual(row["memory"]["peak_alloc"], 8.5 * MIB, row)
            self.mix("snapshots", rank)  # one plan from the first step on

    def test_observing_changes_nothing_and_says_what_it_would_do(self):
        name, ended = self.observed(2)
        self.same_training(name, self.kept(2), 2)
        said = self.lines(ended, "cannot be met")
        self.assertTrue(said and "recomputed" in said[0], ended)
        for rank in range(2):
            self.assertEqual(self.mix(name, rank), (0, 0))


class Resume(MemoryCase):
    STEPS = 60

    def start(self, name, *flags):
        return self.command(name, "--cox.checkpoint.every_steps=5", *flags, saves=name + "-saves")

    def test_a_run_that_goes_on_under_another_budget_is_the_run_without_one(self):
        job = jobs.Job(self.start("run", "--cox.memory.budget=8.75MiB"), 2)
        rows = self.path("run", "rank0", "steps.jsonl")
        job.until(lambda: os.path.exists(rows) and os.path.getsize(rows) > 0)
        job.until(lambda: self.newest_save("run-saves") >= 10)
        job.signal(signal.SIGTERM, {1})
        self.ends_well(job.wait())
        stopped_at = self.newest_save("run-saves")
        self.assertIn(stopped_at, range(10, self.STEPS))
        again = self.start("run", "--cox.memory.budget=5.5MiB", "--cox.checkpoint.resume=on")
        ended = self.ends_well(jobs.run(again, 2))
        self.assertIn("resumed at step", ended.err)
        self.same_training("run", self.kept(2), 2)
        for row in self.rows("run")[stopped_at:]:
            self.assertLessEqual(row["memory"]["peak_alloc"], 5.5 * MIB)
        mixes = [row["recomputed_blocks"] for row in self.rows("run")]
        self.assertGreater(mixes[0], 0)
        self.assertGreater(mixes[-1], mixes[0])
        replayed = jobs.run([jobs.programs.cox, "replay", self.path("run", "journal.cox")])
        self.assertIn("all equal", self.ends_well(replayed).out)


if __name__ == "__main__":
    jobs.main()
