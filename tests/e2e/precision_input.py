"""Bad settings of numerics: one clear line on standard error, an exit code other than 0, nothing
hangs; of one process without mpiexec, and the first of each kind on two ranks as well."""

import jobs

BLOCK = "transformer.h."


class BadSettings(jobs.Case):
    def setUp(self):
        super().setUp()
        self.rank_counts = (None, 2)

    def refused(self, parts, *flags):
        command = self.gpt2("--steps", 5, "--cox.run.log=warning", *flags)
        rank_counts, self.rank_counts = self.rank_counts, (None,)
        for ranks in rank_counts:
            with self.subTest(flags=flags, ranks=ranks):
                ended = jobs.run(command, ranks)
                self.assertGreater(ended.code, 0, ended)
                self.assertEqual(len(ended.complaints()), 1, ended)
                for part in parts:
                    self.assertIn(part, ended.complaints()[0])
                self.assertLess(len(ended.complaints()[0]), 400)

    def test_formats_that_do_not_exist(self):
        known = "fp32|bf16|fp16|fp8"
        for name in ("fp4", "BF16", "", "float16"):
            self.refused(["precision.format", "auto", known, f"'{name}'"], "--precision", name)
        for key in ("force", "forbid"):
            name = f"--cox.precision.{key}="
            self.refused(["precision." + key, known, "int8"], name + BLOCK + "0=int8")
            self.refused(["precision." + key, "BLOCK=FORMAT", "bf16"], name + "bf16")
            self.refused(["precision." + key], name + "=bf16")

    def test_blocks_that_do_not_exist(self):
        for key in ("force", "forbid"):
            for block in (BLOCK + "2", "decoder.*", BLOCK):
                self.refused(["precision." + key, block + "=bf16", BLOCK + "0"], "--precision",
                             "auto", f"--cox.precision.{key}={block}=bf16")
        # A rule that fits must not hide one that does not.
        self.refused(["precision.force", "head=bf16"], "--cox.precision.force=*=bf16,head=bf16")

    def test_rules_that_contradict_each_other(self):
        self.refused(["precision.forbid", "*=fp32", "always possible"],
                     "--cox.precision.forbid=*=fp32")
        self.refused(["precision.force", "precision.forbid", BLOCK + "0=fp8"],
                     f"--cox.precision.force={BLOCK}0=fp8", f"--cox.precision.forbid={BLOCK}0=fp8")
        self.refused(["precision.leave_noise_ratio", "precision.enter_noise_ratio"],
                     "--cox.precision.leave_noise_ratio=3")

    def test_loss_scales_out_of_range(self):
        for flags in (["initial=0"], ["initial=-8"], ["initial=1e40"], ["initial=nan"],
                      ["initial=many"], ["growth_factor=0.5"], ["backoff_factor=1"],
                      ["growth_interval=0"], ["min=-1"], ["max=inf"], ["hysteresis=0"],
                      ["headroom_bits=16"]):
            name = flags[0].split("=")[0]
            self.refused(["loss_scale." + name], "--precision", "fp16",
                         *["--cox.loss_scale." + flag for flag in flags])
        # Each by itself is in its range.
        self.refused(["loss_scale", "initial"], "--cox.loss_scale.initial=4",
                     "--cox.loss_scale.min=8")
        self.refused(["loss_scale", "max"], "--cox.loss_scale.min=8", "--cox.loss_scale.max=4",
                     "--cox.loss_scale.initial=4")

    def test_settings_of_one_rank_only(self):
        good = self.gpt2("--steps", 5, "--cox.run.log=warning", "--precision", "bf16")
        for flag in ("--cox.precision.format=fp16", "--cox.precision.force=*=fp8",
                     "--cox.loss_scale.initial=1024"):
            both = [jobs.programs.mpiexec, "-n", "1", *good, ":", "-n", "1", *good, flag]
            ended = jobs.run(both)
            self.assertGreater(ended.code, 0, ended)
            self.assertEqual(len(ended.complaints()), 1, ended)
            self.assertIn("configuration", ended.complaints()[0])
            self.assertIn("rank 1", ended.complaints()[0])

    def test_wishes_of_the_program_while_it_runs(self):
        requests = {("nowhere", "force", "bf16"): "nowhere", ("block1", "force", "fp8"): "fp8"}
        for (block, what, format), part in requests.items():
            for ranks in (None, 2):
                with self.subTest(block, format=format, ranks=ranks):
                    # In fp32, where nothing was asked for, no other format can be had.
                    ended = jobs.run(
                        [jobs.programs.trainer, "--blocks", 2, "--steps", 100, "--request", 5, 0,
                         block, what, format, 0, "--cox.http.port=0", "--cox.run.log=warning"],
                        ranks)
                    self.assertNotEqual(ended.code, 0, ended)
                    said = [line for line in ended.complaints() if "precision: expected" in line]
                    self.assertEqual(len(said), 1, ended)
                    self.assertIn(part, said[0])


if __name__ == "__main__":
    jobs.main()
