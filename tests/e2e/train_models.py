"""Models as tutorials have them in a plain loop: with the two lines the weights are those of the loop
without them, to the last bit, also within a memory budget."""

import os
import re

import jobs


def budget(kibibytes):
    return [f"--cox.memory.budget={kibibytes}KiB"]


# Budgets between the least plan and what keeping every block takes. An LSTM of one block has no lighter
# plan: its peak is where its own backward pass needs what it saved. Nor has the field, nearly, nor a GAN
# whose blocks are one layer each and hold little beside their results.
SETTINGS = {
    "resnet": budget(580),
    "dcgan": ["--cox.memory.force=*=recompute"],
    "unet": budget(740),
    "lstm": [],
    "gpt2": budget(920),
    "scripted": ["--cox.memory.force=*=recompute"],
    "field": ["--cox.memory.force=*=recompute"],
    "script": budget(1450),
}

# So small that a budget's margin is more than what plans differ in: it gets 64 times the batch.
LARGER = {"script"}


class TrainModels(jobs.Case):
    def setUp(self):
        super().setUp()
        self.script = os.path.join(self.folder, "net.pt")
        ended = jobs.run([jobs.programs.models, "write_script", self.script, "--cox.http.enabled=off"])
        self.assertEqual(ended.code, 0, ended)

    def train(self, model, *arguments, ranks=None):
        words = [model] + ([self.script] if model == "script" else [])
        words += ["--times", "64"] if model in LARGER else []
        return jobs.run([jobs.programs.models, *words, *arguments, "--cox.http.port=0"], ranks)

    def result(self, model, *arguments, ranks=None):
        """The lines that the ranks print, in their order."""
        ended = self.train(model, *arguments, ranks=ranks)
        self.assertEqual(ended.code, 0, ended)
        lines = sorted(re.findall(r"rank \d+: \d+ steps, loss \S+, weights \S+", ended.out))
        self.assertEqual(len(lines), ranks or 1, ended)
        return lines, ended

    def test_within_a_budget_the_two_lines_change_no_bit(self):
        for model, settings in SETTINGS.items():
            with self.subTest(model):
                alone, _ = self.result(model, "--alone")
                adopted, ended = self.result(model, *settings)
                self.assertEqual(adopted, alone)
                steers = re.search(r"[1-9]\d* of \d+ blocks recomputed", ended.err)
                self.assertEqual(bool(steers), bool(settings), ended)

    def test_two_ranks_end_with_equal_weights_and_other_losses(self):
        for model, settings in SETTINGS.items():
            with self.subTest(model):
                lines, ended = self.result(model, *settings, ranks=2)
                weights = {line.split("weights ")[1] for line in lines}
                losses = {line.split("loss ")[1].split(",")[0] for line in lines}
                self.assertEqual((len(weights), len(losses)), (1, 2), ended)
                self.assertNotIn("found the same batch on all", ended.err)

    def test_what_an_operator_of_a_script_throws_is_told_in_one_line(self):
        ended = self.train("script", "--cox.memory.budget=1KiB")
        self.assertNotEqual(ended.code, 0, ended)
        told = [line for line in ended.err.splitlines() if line.startswith("error: ")]
        self.assertEqual(len(told), 1, ended)
        self.assertIn("cannot be met", told[0])

    def test_a_model_that_does_not_exist_is_named(self):
        ended = self.train("resnet152")
        self.assertNotEqual(ended.code, 0, ended)
        self.assertIn("found 'resnet152'", ended.err)


if __name__ == "__main__":
    jobs.main()
