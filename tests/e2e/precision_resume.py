"""A run in fp16 that is stopped and resumed is the run that was never stopped: weights, losses and
loss scale, bit for bit. Saves that do not fit are refused."""

import glob
import json
import os
import shutil
import signal
import struct
import subprocess

import jobs
from precision_jobs import PrecisionCase, format_flag

RANKS = 2
RULES = [format_flag("fp16"), "--cox.loss_scale.growth_interval=10",
         "--cox.loss_scale.hysteresis=2"]
RESUME = "--cox.checkpoint.resume=on"
SCALE = "coxswain.loss_scale_bits"


class Resume(PrecisionCase):
    STEPS = 90

    def setUp(self):
        super().setUp()
        # Two overflows in a row cost a backoff, a second pair soon after it a larger one: what a
        # scaler remembers decides.
        self.flags = list(RULES)
        for step, rank in ((20, 0), (21, 1), (24, 1), (25, 0), (55, 0), (56, 1)):
            self.flags += ["--inject", step, rank, rank, "backward", "1e6"]
        self.train("whole", RANKS, *self.flags)
        self.whole = self.done("whole")
        scales = [row[3] for row in self.whole[0]]
        self.assertEqual(scales[21], scales[20])
        self.assertLess(scales[22], scales[21] / 32)
        self.assertGreater(len(set(scales)), 4, scales)
        self.assertGreater(scales[-1], min(scales))

    def done(self, name):
        """What each rank did, and its losses. Plans of these runs stay number 0."""
        rows = [self.what_was_done(name, rank) for rank in range(RANKS)]
        self.assertEqual({row[1] for rank in rows for row in rank}, {0})
        losses = [self.losses(name, rank) for rank in range(RANKS)]
        return [[(*row, loss) for row, loss in zip(*of_rank)] for of_rank in zip(rows, losses)]

    def go_on(self, name):
        again = self.command(name, *self.flags, RESUME, saves=name + "-saves")
        ended = self.ends_well(jobs.run(again, RANKS))
        self.assertIn("resumed at step", ended.err)
        for rank, done in enumerate(self.done(name)):
            for found, expected in zip(done, self.whole[rank]):
                self.assertEqual(found, expected, f"rank {rank}")
            self.assertEqual(len(done), self.STEPS)

    def test_stopped_also_between_two_overflows_or_killed_between_two_saves(self):
        for stop in (21, 25, 56, 70):
            with self.subTest(stop=stop):
                name = f"at{stop}"
                self.train(name, RANKS, *self.flags, "--steps", stop, saves=name + "-saves")
                self.go_on(name)
        with self.subTest("killed"):
            self.kill_between_two_saves()

    def kill_between_two_saves(self):
        job = jobs.Job(self.command("killed", *self.flags, "--sleep-ms", 10,
                                    "--cox.checkpoint.every_steps=7", saves="killed-saves"), RANKS)
        job.until(lambda: self.newest_save("killed-saves") >= 28)
        job.signal(signal.SIGKILL, {1})
        self.assertNotEqual(job.wait().code, 0)
        self.assertIn(self.newest_save("killed-saves"), range(28, self.STEPS))
        self.go_on("killed")


class DelayedFp8(PrecisionCase):
    """Scales come from earlier steps, each rank's own: an outlier shortly before the save is
    remembered after it."""
    STEPS = 32
    STOP = 20
    FLAGS = [format_flag("fp8"), "--cox.precision.fp8_scaling=delayed",
             "--inject", STOP - 2, 0, 1, "backward", "1e6",
             "--inject", STOP - 3, 1, 2, "backward", "1e5"]

    def setUp(self):
        super().setUp()
        self.train("whole", RANKS, *self.FLAGS)
        self.train("part", RANKS, *self.FLAGS, "--steps", self.STOP, saves="saves")

    def resumed(self, name, ranks):
        shutil.copytree(self.path("saves"), self.path(name + "-saves"))
        if name == "forgetful":
            save = self.path(name + "-saves", f"step-{self.STOP:012}")
            for file in glob.glob(os.path.join(save, "numbers*")):
                os.remove(file)
            self.seal(save)
        return self.train(name, ranks, *self.FLAGS, RESUME, saves=name + "-saves").err

    def test_a_resumed_run_goes_on_with_what_each_rank_remembers(self):
        for name in ("mindful", "forgetful"):
            self.resumed(name, RANKS)
            for rank in range(RANKS):
                rest = self.what_was_done("whole", rank)[self.STOP:]
                self.assertEqual(len(rest), self.STEPS - self.STOP)
                self.assertEqual(self.what_was_done(name, rank) == rest, name == "mindful")
        with self.subTest("at another world size it starts anew and says so"):
            self.assertIn("FP8 scaling is not resumed", self.resumed("alone", 1))


class Saves(PrecisionCase):
    """One line on standard error, an exit code other than 0; of one process without mpiexec, and the
    first of each kind on two ranks as well."""
    STEPS = 12

    def setUp(self):
        super().setUp()
        self.rank_counts = (None, 2)
        self.train("run", 1, *RULES, saves="saves")
        self.file = self.path("saves", "step-000000000012", "model.safetensors")
        with open(self.file, "rb") as file:
            self.whole = file.read()

    def resumed(self, ranks, *flags):
        command = [jobs.programs.trainer, "--blocks", self.BLOCKS, "--steps", 20, RESUME,
                   "--cox.http.port=0", "--cox.run.log=warning",
                   "--cox.checkpoint.directory=" + self.path("saves"), *flags]
        return jobs.run(command, ranks)

    def refused(self, parts, *flags):
        rank_counts, self.rank_counts = self.rank_counts, (None,)
        for ranks in rank_counts:
            ended = self.resumed(ranks, *flags)
            self.assertNotEqual(ended.code, 0, ended)
            self.assertEqual(len(ended.complaints()), 1, ended)
            for part in parts:
                self.assertIn(part, ended.complaints()[0])

    def change(self, key, value):
        """Writes the save anew with another value in its metadata; None takes the key out."""
        size = struct.unpack("<Q", self.whole[:8])[0]
        header = json.loads(self.whole[8:8 + size])
        self.assertIn(key, header["__metadata__"])
        if value is None:
            del header["__metadata__"][key]
        else:
            header["__metadata__"][key] = value
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(self.file, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + self.whole[8 + size:])
        self.seal(os.path.dirname(self.file))

    def bits(self, number):
        return str(struct.unpack("<I", struct.pack("<f", number))[0])

    def test_of_another_model(self):
        self.refused(["resume", "block0.in.weight", "[48, 24]", "[32, 16]"], *RULES, "--width", 24)
        self.refused(["resume", "block"], *RULES, "--blocks", 5)
        self.refused(["resume", "block"], *RULES, "--blocks", 3)

    def test_with_a_damaged_loss_scale_is_not_sealed(self):
        """All values and fields: tests/sdk/training/checkpoint_folder_test.cc."""
        for field, value in (("bits", "much"), ("bits", self.bits(float("nan"))),
                             ("clean_steps", None), ("strikes", "-1")):
            with self.subTest(field, value=value):
                with self.assertRaises(subprocess.CalledProcessError) as refused:
                    self.change("coxswain.loss_scale_" + field, value)
                for part in (self.file, "loss"):
                    self.assertIn(part, refused.exception.stderr.decode())

    def test_of_a_run_in_another_format_is_welcome(self):
        for format in ("fp32", "bf16", "fp8"):
            with self.subTest(format):
                self.ends_well(self.resumed(2, format_flag(format), "--cox.checkpoint.keep=9"))
                os.remove(self.path("saves", "step-000000000020", "model-00001-of-00002.safetensors"))
                os.rename(self.path("saves", "step-000000000020"), self.path(format))

    def test_a_scale_outside_of_the_bounds_comes_back_into_them(self):
        self.change(SCALE, self.bits(2.0**20))
        self.ends_well(self.resumed(2, *RULES, "--cox.loss_scale.max=65536",
                                    "--cox.run.directory=" + self.path("bounded")))
        scales = [row["loss_scale"] for row in self.rows("bounded")]
        self.assertLessEqual(max(scales), 65536, scales)


if __name__ == "__main__":
    jobs.main()
