"""Data parallel from outside: what ranks, shares and timing may and may not change, and what happens
when ranks differ or fail."""

import re
import shutil
import tempfile
import unittest

import jobs

QUIET = ["--cox.http.enabled=off", "--cox.run.log=warning"]
EXACT = ["--cox.reduction.reproducible=on", "--micro-batch", "2"]


def run(arguments, ranks, env=None):
    return jobs.run([jobs.programs.parallel] + QUIET + arguments, ranks=ranks, env=env)


def weights(ended):
    """Checksums by rank."""
    return dict(re.findall(r"rank (\d+): weights (\d+)", ended.out))


def loss(ended):
    return float(re.search(r"^loss (\S+)$", ended.out, re.M).group(1))


def plain_samples(steps, batch, size):
    """Samples of that many steps: the last batch of an epoch is what is left of it."""
    whole, left = divmod(steps, -(-size // batch))
    return whole * size + left * batch


class Parallel(unittest.TestCase):
    def ends_well(self, arguments, ranks, env=None):
        ended = run(arguments, ranks, env)
        self.assertEqual(ended.code, 0, ended)
        found = weights(ended)
        self.assertEqual(len(found), ranks, ended)
        self.assertEqual(len(set(found.values())), 1, f"ranks differ: {ended}")
        return ended

    def test_reproducible_weights_do_not_depend_on_ranks_shares_or_timing(self):
        first = self.ends_well(["trainer"] + EXACT, 1)
        for ranks, extra in [(1, ["--jitter-us", "500"]), (2, []), (2, ["--random-shares", "7"]),
                             (4, ["--random-shares", "8", "--jitter-us", "2000"]),
                             (2, ["--cox.reduction.shared_memory=off", "--random-shares", "9"]),
                             (4, ["--cox.control.ranks_per_node=2", "--random-shares", "10"])]:
            with self.subTest(ranks=ranks, extra=extra):
                other = self.ends_well(["trainer"] + EXACT + extra, ranks)
                self.assertEqual(weights(other)["0"], weights(first)["0"])

    def test_reproducible_runs_resume_at_another_number_of_ranks_with_the_same_bits(self):
        whole = self.ends_well(["trainer", "--steps", "30"] + EXACT, 2)
        with tempfile.TemporaryDirectory() as folder:
            saves = [f"--cox.checkpoint.directory={folder}/saves", "--cox.checkpoint.every_steps=10"]
            self.ends_well(["trainer", "--steps", "12"] + EXACT + saves, 2)
            resumed = self.ends_well(["trainer", "--steps", "30", "--cox.checkpoint.resume=on"] +
                                     EXACT + saves + ["--random-shares", "3"], 4)
        self.assertEqual(weights(resumed)["0"], weights(whole)["0"])

    def test_an_adopted_loop_that_is_kept_ends_with_weights_that_are_compared(self):
        ended = self.ends_well(["adopted", "--steps", "20", "--no-norm"], 2)
        self.assertNotIn("changed after the last step", ended.err, ended)

    def test_an_adopted_loop_goes_on_at_another_number_of_ranks(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks), tempfile.TemporaryDirectory() as folder:
                kept = ["adopted", "--no-norm", f"--cox.checkpoint.directory={folder}/saves",
                        "--cox.checkpoint.every_steps=4"]
                self.ends_well(kept + ["--steps", "12"], 2)
                ended = jobs.run([jobs.programs.parallel, "--cox.http.enabled=off", *kept, "--steps", "20",
                                  "--cox.checkpoint.resume=on"], ranks=ranks)
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(len(set(weights(ended).values())), 1, ended)
                self.assertIn("resumed at step 12", ended.err, ended)
                self.assertIn("the stream of random numbers is not resumed: it was saved at another",
                              ended.err, ended)

    def test_the_same_layout_gives_the_same_bits_whatever_the_timing(self):
        steps = ["trainer", "--micro-batch", "2"]
        for mode in [steps, steps + ["--cox.force.shares=1,3"], ["own"]]:
            first = self.ends_well(mode, 2)
            again = self.ends_well(mode + ["--jitter-us", "3000"], 2)
            self.assertEqual(weights(again)["0"], weights(first)["0"])

    def test_paths_and_bucket_sizes_change_no_bit(self):
        first = self.ends_well(["own"], 4)
        for extra in [["--cox.reduction.shared_memory=off"], ["--cox.reduction.bucket_bytes=1024"]]:
            other = self.ends_well(["own"] + extra, 4)
            self.assertEqual(weights(other)["0"], weights(first)["0"], extra)

    def test_losses_of_any_number_of_ranks_and_shares_agree(self):
        steps = ["trainer", "--no-norm", "--micro-batch", "2"]
        one = loss(self.ends_well(steps, 1))
        for ranks, extra in [(2, []), (4, []), (2, ["--cox.force.shares=1,3"]),
                             (2, ["--random-shares", "5"])]:
            other = loss(self.ends_well(steps + extra, ranks))
            self.assertAlmostEqual(other, one, delta=1e-4 * abs(one), msg=(ranks, extra))

    def test_steps_take_more_samples_where_synchronising_is_dear(self):
        # The model is tiny: far more than a hundredth of a step is synchronising.
        ended = self.ends_well(["trainer", "--steps", "120", "--micro-batch", "2",
                                "--cox.accumulation.mode=on",
                                "--cox.accumulation.target_ratio=0.01"], 2)
        samples = int(re.search(r"^samples (\d+)$", ended.out, re.M).group(1))
        self.assertGreater(samples, 120 * 16, ended)
        plain = self.ends_well(["trainer", "--steps", "60", "--micro-batch", "2"], 2)
        self.assertIn(f"samples {plain_samples(60, 16, 250)}\n", plain.out)

    def test_a_rank_that_ends_early_joins_the_others(self):
        for rank, step in [(0, 3), (1, 0), (1, 29)]:
            self.ends_well(["own", "--stop-on", rank, step], 2)
        self.ends_well(["own", "--stop-on", "2", "5"], 4)

    def test_a_rank_that_only_joins_adds_nothing(self):
        alone = self.ends_well(["own"], 1)
        joined = self.ends_well(["own", "--stop-on", "1", "0"], 2)
        self.assertEqual(weights(joined)["0"], weights(alone)["0"])

    def test_a_rank_that_throws_is_named_by_the_others(self):
        for mode in [["own"], ["trainer", "--micro-batch", "2"]]:
            ended = run(mode + ["--throw-on", "1", "6"], 2)
            self.assertNotEqual(ended.code, 0, ended)
            self.assertIn("the user's own code failed", ended.err)
            self.assertRegex(ended.err, r"rank 0: .*rank 1 ", ended)

    def test_a_rank_that_is_slow_for_a_while_is_waited_for(self):
        self.ends_well(["own", "--slow", "1", "10", "5", "8"], 2)

    def test_memory_does_not_grow_over_a_thousand_steps(self):
        for mode in [["own"], ["trainer"] + EXACT]:
            ended = self.ends_well(mode + ["--steps", "1300"], 2)
            growth = [int(kib) for kib in re.findall(r"grew by (-?\d+) KiB", ended.out)]
            self.assertEqual(len(growth), 2, ended)
            self.assertLess(max(growth), 1500, ended)  # 1.5 KiB a step

    def test_more_ranks_than_micro_batches_leave_some_without_work(self):
        first = self.ends_well(["trainer", "--batch", "4"] + EXACT, 1)
        other = self.ends_well(["trainer", "--batch", "4"] + EXACT, 4)
        self.assertEqual(weights(other)["0"], weights(first)["0"])

    def test_settings_that_cannot_be_met_are_one_line(self):
        for arguments, words in [
                (["trainer", "--cox.reduction.reproducible=on"], "micro_batch"),
                (["trainer", "--batch", "1"], "global_batch"),
                (["trainer", "--cox.force.shares=1,2,3"], "force.shares"),
                (["trainer", "--cox.shares.hint=7=2"], "shares.hint"),
                (["trainer", "--swap-on", "1"], "names"),
                (["own", "--cox.reduction.bucket_bytes=7"], "reduction.bucket_bytes")]:
            with self.subTest(arguments=arguments):
                ended = run(arguments, 2)
                self.assertNotEqual(ended.code, 0, ended)
                self.assertEqual(len(ended.complaints()), 1, ended)
                self.assertIn(words, ended.complaints()[0])


class Blocks(jobs.Case):
    def model(self, name, ranks, *flags):
        """The bytes of the model that the example ends with in reproducible mode."""
        command = [jobs.programs.gpt2, *jobs.TINY, "--text", self.text(), "--steps", "6",
                   "--micro-batch", "2", "--save-model", self.path(name),
                   "--cox.reduction.reproducible=on", *QUIET, *flags]
        self.ends_well(jobs.run(command, ranks))
        with open(self.path(name, "model.safetensors"), "rb") as file:
            return file.read()

    def test_measuring_blocks_before_the_first_step_leaves_no_trace_in_exact_sums(self):
        plain = self.model("plain", 1)
        self.assertEqual(self.model("recomputed", 1, "--cox.memory.force=*=recompute"), plain)
        self.assertEqual(self.model("at_two", 2, "--cox.memory.force=*=recompute"), plain)

    def test_the_same_holds_after_a_resume(self):
        saves = [f"--cox.checkpoint.directory={self.path('saves')}", "--cox.checkpoint.every_steps=3"]
        plain = self.model("plain", 1, *saves)
        shutil.rmtree(self.path("saves", "step-000000000006"))
        resumed = self.model("resumed", 2, "--cox.checkpoint.resume=on",
                             "--cox.memory.force=*=recompute", *saves)
        self.assertEqual(resumed, plain)


if __name__ == "__main__":
    jobs.main()
