"""Budgets that cannot be met, tiers that cannot be used, and rules for blocks."""

import os
import re

import jobs
from memory_jobs import BLOCKS, MIB, OFFLOAD, MemoryCase


class Refusal(MemoryCase):
    def test_a_budget_below_the_minimum_ends_the_job_with_one_line_that_says_what_would_do(self):
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                flags = ["--cox.run.log=warning", "--cox.memory.budget=1MiB"]
                ended = jobs.run(self.command(f"run{ranks}", *flags), ranks)
                self.assertNotEqual(ended.code, 0, ended)
                self.assertEqual(len(ended.complaints()), 1, ended)
                line = ended.complaints()[0]
                for part in ("rank 0", "1.0 MiB", "cannot be met", "make the micro-batch smaller",
                             "at that peak: ", " of parameters, gradients, optimizer and buffers",
                             " outside of blocks, ", "its "):
                    self.assertIn(part, line)
                self.feasible(ranks, re.search(r"give it at least ([\d.]+) MiB", line)[1])

    def feasible(self, ranks, mib):
        """The budget that was named is one that works."""
        budget = int(float(mib) * MIB)
        self.train(f"enough{ranks}", ranks, f"--cox.memory.budget={budget}")
        self.within(f"enough{ranks}", 0, budget)

    def test_the_one_rank_whose_budget_is_too_small_is_named(self):
        flags = ["--cox.run.log=warning", "--cox.memory.budget_of_rank=2:2MiB"]
        ended = jobs.run(self.command("run", *flags), 4)
        self.assertNotEqual(ended.code, 0, ended)
        self.assertEqual(len(ended.complaints()), 1, ended)
        self.assertIn("the budget of rank 2, 2.0 MiB", ended.complaints()[0])


class Tier(MemoryCase):
    """Where nothing can be offloaded the plan does without, and the training is the same."""

    RANKS = 2
    BUDGET = "--cox.memory.budget=7MiB"

    def setUp(self):
        super().setUp()
        self.folder_flag = "--cox.memory.tier_directory=" + self.folder

    def check_without(self, name):
        self.same_training(name, self.kept(self.RANKS), self.RANKS)
        for rank in range(self.RANKS):
            recomputed, offloaded = self.mix(name, rank)
            self.assertEqual(offloaded, 0)
            self.assertGreater(recomputed, 0)
            self.within(name, rank, 7 * MIB)

    def said_once(self, ended, part):
        said = self.lines(ended, part)
        ranks = [re.search(r"coxswain\[(\d)\] warning", line)[1] for line in said]
        self.assertEqual(sorted(ranks), ["0", "1"], ended)  # once a rank

    def test_a_folder_that_works_takes_blocks(self):
        self.train("away", self.RANKS, "--cox.memory.force=*=offload", OFFLOAD, self.folder_flag)
        self.same_training("away", self.kept(self.RANKS), self.RANKS)
        for rank in range(self.RANKS):
            self.assertEqual(self.mix("away", rank), (0, BLOCKS))
            self.within("away", rank, self.peak("away", rank))

    def test_a_folder_that_cannot_be_made(self):
        folder = "/proc/none"
        ended = self.train("proc", self.RANKS, self.BUDGET, OFFLOAD, "--cox.memory.tier_directory=" + folder)
        self.check_without("proc")
        self.said_once(ended, folder)

    def test_a_folder_that_is_full(self):
        # A limit on file sizes fails writes as a full disk does, and needs no mount.
        limited = ["prlimit", f"--fsize={8 * MIB}",
                   *self.command("full", self.BUDGET, OFFLOAD, self.folder_flag)]
        ended = self.ends_well(jobs.run(limited, self.RANKS))
        self.check_without("full")
        self.said_once(ended, self.folder)

    def test_a_cap_that_is_too_small_for_a_block(self):
        ended = self.train("cap", self.RANKS, self.BUDGET, OFFLOAD, self.folder_flag,
                           "--cox.memory.tier_bytes=100000")
        self.check_without("cap")
        self.said_once(ended, "offload tier: expected room")


class Rules(MemoryCase):
    LAYERS = 4

    def command(self, name, *flags, saves=None):
        return super().command(name, "--layers", self.LAYERS, "--length", "32", "--batch", "8", *flags)

    def layers(self, name, *flags):
        """Kinds of actions of the layers by name, from the status page's data; all ranks alike."""
        _, (plan,) = self.pages_at_the_end(self.command(name, *flags), 2, "plan")
        for block in plan["blocks"]:
            self.assertEqual(list(block["ranks_by_action"].values()), [2], block)
        # "recompute 2" is recompute at a level.
        return {block["name"]: next(iter(block["ranks_by_action"])).split()[0]
                for block in plan["blocks"] if block["name"].startswith("transformer.h.")}

    def test_forced_actions_are_taken_also_without_a_budget(self):
        rules = "transformer.h.*=recompute,transformer.h.2=keep"
        actions = self.layers("forced", "--cox.memory.force=" + rules)
        self.assertEqual(actions.pop("transformer.h.2"), "keep")
        self.assertEqual(set(actions.values()), {"recompute"})
        self.assertEqual(len(actions), self.LAYERS - 1)
        self.same_training("forced", self.kept(2), 2)

    def test_forbidden_actions_are_not_taken(self):
        actions = self.layers("forbidden", "--cox.memory.budget=5MiB",
                              "--cox.memory.forbid=*.0=recompute,*.2=recompute")
        self.assertEqual(set(actions.values()), {"keep", "recompute"})
        for name in ("transformer.h.0", "transformer.h.2"):
            self.assertEqual(actions[name], "keep")

    def test_a_file_of_rules_as_in_the_pages(self):
        rules = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "sdk",
                             "examples", "memory_rules.conf")
        actions = self.layers("file", "--cox.config=" + rules, "--cox.memory.budget=4.75MiB")
        self.assertEqual(actions["transformer.h.0"], "recompute")
        self.assertEqual(actions["transformer.h.3"], "keep")
        self.assertIn(list(actions.values()).count("recompute"), (2, 3))  # as measured

    def test_a_budget_that_only_a_forbidden_action_would_meet_is_refused(self):
        flags = ["--cox.run.log=warning", "--cox.memory.budget=5MiB", "--cox.memory.recompute=off"]
        ended = jobs.run(self.command("refused", *flags), 2)
        self.assertNotEqual(ended.code, 0, ended)
        self.assertEqual(len(ended.complaints()), 1, ended)
        for part in ("cannot be met", "memory.recompute"):
            self.assertIn(part, ended.complaints()[0])


if __name__ == "__main__":
    jobs.main()
