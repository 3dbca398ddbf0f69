"""Predicted against counted peaks, for all that gradients go through while a step runs."""

import jobs
from memory_jobs import MemoryCase


class Gradients(MemoryCase):
    """Where blocks are recomputed, the peak is where most gradients are there."""

    def check(self, name, ranks, *flags, actions=("recompute",)):
        for action in actions:
            for count in ranks:
                with self.subTest(action=action, ranks=count):
                    run = f"{name}-{action}{count}"
                    self.train(run, count, f"--cox.memory.force=*={action}", *flags)
                    for rank in range(count):
                        self.within(run, rank, self.peak(run, rank))

    def test_they_move_to_buckets(self):
        self.check("buckets", (1, 2), actions=("keep", "recompute"))

    def test_they_move_to_buckets_where_micro_batches_are_one_a_rank(self):
        self.check("one", (2,), "--micro-batch", "8")

    def test_they_add_up_over_micro_batches(self):
        self.check("several", (2,), "--micro-batch", "2")

    def test_they_add_up_in_buckets_and_come_back_as_averages(self):
        self.check("exact", (2,), "--micro-batch", "4", "--cox.reduction.reproducible=on")

    def test_they_are_sampled_before_they_move(self):  # in one of the steps
        self.check("sampled", (2,), "--precision", "bf16")

    def test_they_are_never_sampled(self):
        self.check("unsampled", (2,), "--precision", "bf16", "--cox.precision.sample_every=0")

    def test_they_are_scaled(self):
        self.check("scaled", (2,), "--precision", "fp16")


if __name__ == "__main__":
    jobs.main()
