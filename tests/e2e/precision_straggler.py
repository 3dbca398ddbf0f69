"""One of two ranks becomes slow in a model whose first block computes on a device that is faster the
narrower the format: all ranks take that block to 8 bits until the rank has recovered. The device is
a wait in the block's forward pass. That its times are measured by format, the rank is found, steps
get shorter and the format goes again is the product's."""

import jobs
from precision_jobs import DIGITS, PrecisionCase, format_flag

WITHIN = [format_flag("auto"), "--cox.precision.emulate=on", "--cox.precision.sample_every=1",
          "--cox.precision.sample_blocks=block0",
          "--cox.precision.enter_noise_ratio=0", "--cox.precision.leave_noise_ratio=0",
          "--cox.precision.enter_underflow_ratio=1", "--cox.precision.leave_underflow_ratio=1"]
DEVICE = ["--device-ms", 40, 30, 30, 10]  # in fp32, bf16, fp16 and fp8


class Straggler(PrecisionCase):
    SLOW_FROM = 120
    # Good signals alone bring 8 bits after that many rounds, for a straggler after half of them.
    PATIENCE = 2 * 150
    SLOW_IN_8_BITS = 80  # steps: more than a change is measured for
    STEPS = 1500         # at most: the job ends when the block has left 8 bits

    def test_a_faster_format_for_a_straggler_helps_and_ends_with_it(self):
        command = self.command(
            "run", *WITHIN, *DEVICE, f"--cox.precision.patience_rounds={self.PATIENCE}",
            "--slow", 1, 3, self.SLOW_FROM, self.SLOW_IN_8_BITS)
        ended, pages = self.pages_at_the_end(command, 2, "effects", "decisions", patience=240)
        effects, decisions = pages[0]["effects"], pages[1]["decisions"]
        done = self.all_did_the_same("run", 2, ended)
        self.replays("run")
        formats = [f"{row[2]:.0f}" for row in done]
        first = [found[0] for found in formats]
        changes = [(step, now) for step, (before, now) in enumerate(zip(first, first[1:]), 1)
                   if before != now]
        # There while the rank was slow, back when it no longer was: what all gain is no recovery.
        self.assertEqual([now for _, now in changes], [DIGITS["fp8"], DIGITS["bf16"]], ended)
        self.assertGreater(changes[0][0], self.SLOW_FROM)
        self.assertGreater(changes[1][0] - changes[0][0], self.SLOW_IN_8_BITS)
        told = [d["text"] for d in decisions if d["policy"] == "stragglers" and d["rank"] == 1]
        self.assertIn("most of it in forward", " ".join(told))
        moves = [e for e in effects if e["code"] == "precision_straggler" and e["plan"] is not None]
        there, back = moves[0], moves[-1]
        self.assertRegex(there["text"], r"block0 goes from bf16 to fp8: .* instead of .* in bf16; "
                         r"rank 1 is \d+ % slow, most of it computing")
        self.assertLess(there["predicted"]["step_ratio"], 1, there)
        self.assertFalse(there["taken_back"], there)
        # How surely it is measured is a matter of the machine; that it surely took longer is a fault.
        self.assertLess(there["measured"]["step_ratio_low"], 1, there)
        self.assertIn(there["verdict"], ("helped", "not sure"), there)
        self.assertRegex(back["text"], "block0 goes from fp8 to bf16: the slow rank .* has recovered")
        self.assertEqual(len(moves), 2, moves)  # once there and once back


if __name__ == "__main__":
    jobs.main()
