"""A GPT-2 with two blocks whose activations outweigh its parameters, for the tests of memory."""

import os
import re

import jobs

MIB = 1 << 20
LAYERS = 2
BLOCKS = LAYERS + 3  # two embeddings before them and a norm behind
HELD_BY_TRIAL = 2 * 5056  # bytes: two copies of the generator's state, which no step holds
SHAPE = ["--layers", str(LAYERS), "--length", "64", "--batch", "16", "--dropout", "0.1"]
OFFLOAD = "--cox.memory.smallest_bytes=4KiB"  # its tensors are small
NONE = ["--cox.memory.mode=off"]


class MemoryCase(jobs.SharedCase):
    STEPS = 10

    def command(self, name, *flags, saves=None):
        return self.gpt2(*SHAPE, "--steps", self.STEPS, "--save-model", self.path(name + "-model"),
                         *flags, run_directory=name, saves=saves)

    def train(self, name, ranks, *flags):
        """Trains to the end. The run's folder is called `name`."""
        return self.ends_well(jobs.run(self.command(name, *flags), ranks))

    def kept(self, ranks, *flags):
        """The name of the run in which every block is kept."""
        name = f"none{ranks}" + "".join(flags)
        self.once(name, lambda: self.train(name, ranks, *NONE, *flags))
        return name

    def observed(self, ranks, *flags):
        """(name, how it ended) of the run that only says what it would plan."""
        name = f"observed{ranks}" + "".join(flags)
        observe = ["--cox.memory.mode=observe", "--cox.memory.budget=1MiB"]
        return name, self.once(name, lambda: self.train(name, ranks, *observe, *flags))

    def bounds(self, ranks, *flags):
        """Bytes of a rank's peak: with the least memory (the budget that a run which only observes
        says to be enough), and with every block kept."""
        name, ended = self.observed(ranks, *flags)
        least = re.search(r"cannot be met: .* give it at least ([\d.]+) MiB", ended.err)
        self.assertIsNotNone(least, ended)
        return int(float(least[1]) * MIB), self.peak(name)

    def peak(self, name, rank=0):
        return max(row["memory"]["peak_alloc"] for row in self.rows(name, rank))

    def mix(self, name, rank=0):
        """(recomputed, offloaded) blocks, which are the same in all steps of these runs."""
        mixes = {(row["recomputed_blocks"], row["offloaded_blocks"])
                 for row in self.rows(name, rank)}
        self.assertEqual(len(mixes), 1, mixes)
        return mixes.pop()

    def weights(self, name):
        with open(os.path.join(self.path(name + "-model"), "model.safetensors"), "rb") as file:
            return file.read()

    def same_training(self, name, other, ranks):
        """Every loss of every rank, and every weight at the end, bit for bit."""
        for rank in range(ranks):
            found = self.losses(name, rank)
            self.assertEqual(len(found), self.STEPS)
            self.assertEqual(found, self.losses(other, rank), f"rank {rank}")
        self.assertEqual(self.weights(name), self.weights(other))

    def within(self, name, rank, budget):
        """Peaks are within the budget and the prediction, which is little above them."""
        for row in self.rows(name, rank):
            memory = row["memory"]
            self.assertLessEqual(memory["peak_alloc"], budget, row)
            self.assertLessEqual(memory["peak_alloc"], memory["predicted_peak"], row)
        predicted = self.rows(name, rank)[-1]["memory"]["predicted_peak"]
        self.assertLessEqual(predicted - self.peak(name, rank), 0.002 * predicted + HELD_BY_TRIAL)

    def lines(self, ended, part):
        return [line for line in ended.err.splitlines() if part in line]
