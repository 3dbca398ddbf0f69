"""A small model of blocks in formats that change or overflow, for the tests of numerics. Its
trainer logs, each step, what it really did: `formats` (a digit a block: 1 = fp32, 2 = bf16,
3 = fp16, 4 = fp8), `scale` (what the loss was multiplied with) and `weights` (a checksum before the
update)."""

import re

import jobs

DIGITS = {"fp32": "1", "bf16": "2", "fp16": "3", "fp8": "4"}


def format_flag(name):
    return "--cox.precision.format=" + name


class PrecisionCase(jobs.Case):
    BLOCKS, STEPS = 4, 200

    def command(self, name, *flags, saves=None):
        command = [jobs.programs.trainer, "--blocks", self.BLOCKS, "--steps", self.STEPS,
                   "--cox.http.port=0", "--cox.run.directory=" + self.path(name), *flags]
        if saves:
            command.append("--cox.checkpoint.directory=" + self.path(saves))
        return command

    def train(self, name, ranks, *flags, saves=None):
        return self.ends_well(jobs.run(self.command(name, *flags, saves=saves), ranks))

    def what_was_done(self, name, rank):
        """Of each step that which all ranks must have done alike."""
        return [(row["step"], row["plan"], row["scalars"]["formats"], row["scalars"]["scale"],
                 row.get("loss_scale"), row["scalars"]["weights"], row.get("skipped", False))
                for row in self.rows(name, rank)]

    def all_did_the_same(self, name, ranks, ended):
        """Also the last update: all ranks print the same checksum. Returns what they did."""
        done = self.what_was_done(name, 0)
        self.assertEqual([row[0] for row in done], list(range(len(done))))
        rounds = [row["round"] for row in self.rows(name, 0)]
        for rank in range(1, ranks):
            self.assertEqual(self.what_was_done(name, rank), done, f"rank {rank}")
            self.assertEqual([row["round"] for row in self.rows(name, rank)], rounds)
        sums = re.findall(r"rank (\d+): weights (\d+)", ended.out)
        self.assertEqual(sorted(int(rank) for rank, _ in sums), list(range(ranks)))
        self.assertEqual(len({weights for _, weights in sums}), 1, ended)
        return done

    def scale_is_what_is_said(self, done):
        """The record of a step names the scale that the loss was really multiplied with."""
        for step, _, formats, scale, said, _, _ in done:
            self.assertEqual(scale, said or 1, f"step {step}")
            self.assertEqual(said is not None, "3" in f"{formats:.0f}", f"step {step}")

    def replays(self, name):
        ended = jobs.run([jobs.programs.cox, "replay", self.path(name, "journal.cox")])
        self.assertIn("all equal", self.ends_well(ended).out)
