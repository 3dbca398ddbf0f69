"""Number formats with several ranks and with memory budgets. A budget changes no bit in any format;
the number of ranks changes the order of sums, and so what rounding makes of them."""

import math

import jobs
from memory_jobs import BLOCKS, LAYERS, MemoryCase


def enough(least, _):
    """What the run that only observes says to be enough is enough in the next run."""
    return least


class Budgets(MemoryCase):
    STEPS = 10  # so that one of them, the ninth, samples gradients, which is what peaks are predicted for

    def check(self, format, *budget_of_bounds):
        """On two ranks, within a budget that each function makes of the least and the largest peak;
        returns how many blocks each recomputes."""
        recomputed = []
        chosen = ["--precision", format]
        least, most = self.bounds(2, *chosen)
        for number, budget_of in enumerate(budget_of_bounds):
            name, budget = f"{format}-{number}", budget_of(least, most)
            self.train(name, 2, *chosen, "--memory-budget", str(budget))
            self.same_training(name, self.kept(2, *chosen), 2)
            for rank in range(2):
                self.within(name, rank, budget)
            for row in self.rows(name):
                self.assertEqual(row["precision"], {format: BLOCKS})
            recomputed.append(self.mix(name)[0])
        return recomputed

    def test_in_bf16_two_ranks_train_to_the_same_bits(self):
        half, tight = self.check("bf16", lambda least, most: (least + most) // 2, enough)
        self.assertGreater(half, 0)
        self.assertGreaterEqual(tight, LAYERS)

    def test_in_fp8_two_ranks_train_to_the_same_bits(self):
        [tight] = self.check("fp8", enough)
        self.assertGreaterEqual(tight, LAYERS)


class Ranks(jobs.SharedCase):
    STEPS = 40
    # The last of bf16's 8 bits is 0.4 %: a mean over many tokens keeps well below that.
    TOLERANCE = {"fp32": 5e-6, "bf16": 5e-4, "fp8": 5e-3}

    def train(self, format, ranks):
        name = f"{format}-{ranks}"
        command = self.gpt2("--steps", self.STEPS, "--dropout", "0", "--precision", format,
                            run_directory=name)
        self.once(name, lambda: self.ends_well(jobs.run(command, ranks)))
        return self.mean_losses(name, ranks)

    def mean_losses(self, name, ranks):
        losses = [self.losses(name, rank) for rank in range(ranks)]
        return [sum(of_step) / ranks for of_step in zip(*losses)]

    def test_losses_do_not_depend_on_the_number_of_ranks(self):
        for format, tolerance in self.TOLERANCE.items():
            with self.subTest(format):
                one, two = self.train(format, 1), self.train(format, 2)
                self.assertEqual(len(one), self.STEPS)
                worst = max(abs(a - b) / a for a, b in zip(one, two))
                print(f"{format}: losses of 1 and 2 ranks differ by {worst:.2g} at most")
                self.assertLess(worst, tolerance)
                self.assertLess(one[-1], 0.8 * one[0])

    def test_losses_of_formats_are_near_each_other(self):
        last = {format: self.train(format, 2)[-1] for format in self.TOLERANCE}
        for format in ("bf16", "fp8"):
            self.assertFalse(math.isclose(last[format], last["fp32"], rel_tol=0), format)
            self.assertLess(abs(last[format] - last["fp32"]) / last["fp32"], 0.03, last)


if __name__ == "__main__":
    jobs.main()
