"""A block that overflows on one rank is named with its pass and rank, and no other is; the step is
skipped on all ranks, and training goes on, at a smaller loss scale where there is one."""

import math
import re

import jobs
from precision_jobs import DIGITS, PrecisionCase, format_flag

BLOCKS = 4


class Overflow(PrecisionCase):
    STEPS = 130

    def cases(self, ranks):
        """[(step, rank, block, pass)]: first, last and inner blocks, both passes, all ranks; in the
        last step two ranks are at fault."""
        return [(20, 2 % ranks, 1, "forward"), (35, 0, 3, "backward"),
                (50, 3 % ranks, 0, "backward"), (65, 1 % ranks, 2, "backward"),
                (80, 1 % ranks, 0, "forward"), (95, ranks - 1, 3, "forward")]

    def flags(self, format, cases):
        factor = "1e6" if format == "fp16" else "inf"  # 1e6 is no overflow with the range of fp32
        flags = [format_flag(format), "--cox.loss_scale.growth_interval=10", "--sleep-ms", 2]
        for step, rank, block, name in cases:
            flags += ["--inject", step, rank, block, name, factor]
        return flags

    def check_rows(self, name, ranks, cases):
        """Of all rows of all ranks, those at fault name block and pass; in all others, nothing."""
        expected = {(step, rank): (f"block{block}", which) for step, rank, block, which in cases}
        for rank in range(ranks):
            for row in self.rows(name, rank):
                found = (row["overflow_block"], row["overflow_pass"]) \
                    if "overflow_pass" in row else None
                self.assertEqual(found, expected.get((row["step"], rank)), row)
                self.assertEqual(row["overflow"] > 0, found is not None, row)

    def check_numerics(self, numerics, format, cases):
        """The status page's data, newest first, and of a step forward passes before backward ones.
        A report may cover a few steps; it tells the newest of them."""
        told = list(reversed(numerics["overflows"]))
        self.assertEqual([(one["rank"], one["block"], one["pass"]) for one in told],
                         [(rank, f"block{block}", which) for _, rank, block, which in cases])
        for one, (step, rank, block, which) in zip(told, cases):
            self.assertIn(one["step"], range(step, step + 15))
            self.assertTrue(one["skipped"])
            self.assertEqual(one["loss_scale"] is not None, format == "fp16", one)
            self.assertIn(f"block block{block}, {which}, rank {rank}: ", one["text"])
        steps = {step for step, _, _, _ in cases}
        self.assertEqual(numerics["skipped_rounds"], len(steps))
        for b, block in enumerate(numerics["blocks"]):
            for which in ("forward", "backward"):
                times = sum(case[2:] == (b, which) for case in cases)
                self.assertEqual(block["overflow_rounds"][which], times, block)

    def check_training(self, done, format, steps):
        """Only in a step that overflowed weights stay; the scale falls with it, for all."""
        for before, after in zip(done, done[1:]):
            is_bad = before[0] in steps
            self.assertEqual(before[6], is_bad, before)
            self.assertEqual(before[5] == after[5], is_bad, before)
            if format == "fp16" and is_bad and before[3] > 1:
                self.assertLess(after[3], before[3], before)
            if format != "fp16":
                self.assertEqual((after[3], after[4]), (1, None))

    def check(self, format, ranks):
        cases = self.cases(ranks)
        if ranks > 1:
            cases += [(110, 1, 1, "backward"), (110, 0, 2, "forward")]
        steps = {case[0] for case in cases}
        command = self.command("run", *self.flags(format, cases))
        ended, (numerics,) = self.pages_at_the_end(command, ranks, "numerics")
        done = self.all_did_the_same("run", ranks, ended)
        self.assertEqual({f"{row[2]:.0f}" for row in done}, {DIGITS[format] * BLOCKS})
        self.scale_is_what_is_said(done)
        self.check_training(done, format, steps)
        self.check_rows("run", ranks, cases)
        self.check_numerics(numerics, format, cases)
        self.check_log(ended, format, cases)
        losses = [row["scalars"]["loss"] for row in self.rows("run")]
        self.assertTrue(all(math.isfinite(loss) for loss in losses[115:]), losses)

    def check_log(self, ended, format, cases):
        named = re.findall(r"block (\w+) overflowed in its (\w+) pass on rank (\d+): .* in (\w+)",
                           ended.err)
        allowed = {(f"block{block}", which, str(rank), format) for _, rank, block, which in cases}
        self.assertLessEqual(set(named), allowed, ended)
        # A block that overflows again soon is not named again.
        self.assertEqual({name for name, _, _, _ in named}, {f"block{b}" for b in range(BLOCKS)})

    def test_in_fp16_on_four_ranks(self):
        self.check("fp16", 4)

    def test_in_fp16_on_one_rank(self):
        self.check("fp16", 1)

    def test_in_bf16_on_two_ranks(self):
        self.check("bf16", 2)

    def test_in_fp8_on_two_ranks(self):
        self.check("fp8", 2)

    def test_in_fp32_too_where_nothing_was_asked_for(self):
        case = (20, 1, 2, "backward")
        command = self.command("run", "--steps", 40, "--inject", *case, "inf")
        _, (numerics,) = self.pages_at_the_end(command, 2, "numerics")
        self.check_rows("run", 2, [case])
        self.assertEqual([(o["block"], o["pass"], o["rank"]) for o in numerics["overflows"]],
                         [("block2", "backward", 1)])

    def test_what_is_not_finite_in_the_loss_counts_to_the_last_block_which_ends_there(self):
        command = self.command("run", "--steps", 40, "--nan-steps", 20, 20, format_flag("bf16"))
        _, (numerics,) = self.pages_at_the_end(command, 2, "numerics")
        self.assertEqual([(o["block"], o["pass"]) for o in numerics["overflows"]],
                         [("block3", "forward")])
        for rank in range(2):
            bad = [row for row in self.rows("run", rank) if "overflow_pass" in row]
            self.assertEqual([(row["step"], row["overflow_block"]) for row in bad], [(20, "block3")])


if __name__ == "__main__":
    jobs.main()
