"""A run that is stopped and resumed is the run that was never stopped."""

import os
import signal

import jobs

STEPS = 150


class Gpt2(jobs.Case):
    """Two ranks, dropout on; losses are compared as written, every bit."""

    def command(self, name, *flags):
        return self.gpt2("--steps", STEPS, "--dropout", "0.1", *flags, run_directory=name,
                         saves=name + "-saves")

    def setUp(self):
        super().setUp()
        self.ends_well(jobs.run(self.command("whole"), 2))
        self.whole = [self.losses("whole", rank) for rank in range(2)]
        self.assertEqual(len(self.whole[0]), STEPS)

    def check_resumed(self, name):
        ended = self.ends_well(jobs.run(self.command(name, "--resume"), 2))
        self.assertIn("resumed at step", ended.err)
        for rank in range(2):
            self.assertEqual(self.losses(name, rank), self.whole[rank])

    def interrupt(self, name, number, ranks, *flags):
        # Slowed down, so that rows are there long before the end; that changes no bit.
        job = jobs.Job(self.command(name, "--slow", "0:8", *flags), 2)
        rows = self.path(name, "rank0", "steps.jsonl")
        job.until(lambda: os.path.exists(rows) and len(self.lines(rows)) >= 20)
        if flags:
            job.until(lambda: self.newest_save(name + "-saves") >= 20)
        job.signal(number, ranks)
        return job.wait()

    def lines(self, name):
        with open(name) as file:
            return file.readlines()

    def test_stopped_and_killed_runs_go_on_bit_for_bit(self):
        for name, ranks in (("one", {1}), ("all", None)):
            with self.subTest("SIGTERM to " + name):
                self.ends_well(self.interrupt(name, signal.SIGTERM, ranks))
                self.assertIn(self.newest_save(name + "-saves"), range(20, STEPS))
                self.check_resumed(name)
        with self.subTest("SIGKILL of one rank"):
            ended = self.interrupt("killed", signal.SIGKILL, {1}, "--cox.checkpoint.every_steps=10")
            self.assertNotEqual(ended.code, 0)
            self.assertIn(self.newest_save("killed-saves"), range(20, STEPS))
            self.check_resumed("killed")


class OtherWorldSize(jobs.Case):
    """What was used, by the trainer's own log of sample numbers: two epochs of 500 samples."""

    SIZE, STEPS = 500, 126  # 62 batches of 8 and one of 4 an epoch

    def command(self, *flags):
        return [jobs.programs.trainer, "--steps", self.STEPS, "--size", self.SIZE, "--samples",
                self.path("samples"), "--cox.http.enabled=off", "--cox.checkpoint.directory=" +
                self.path("saves"), "--cox.checkpoint.every_steps=5", *flags]

    def samples(self, folder):
        """{step: samples of all ranks} of the lines that one start wrote."""
        used = {}
        for name in os.listdir(self.path(folder)):
            with open(self.path(folder, name)) as file:
                for line in file:
                    step, _, numbers = line.partition(":")
                    used.setdefault(int(step), []).extend(map(int, numbers.split()))
        return used

    def check(self, number, first_ranks, then_ranks):
        os.mkdir(self.path("samples"))
        job = jobs.Job(self.command("--sleep-ms", 5), first_ranks)
        job.until(lambda: self.newest_save("saves") >= 40)
        job.signal(number)
        job.wait()
        resumed_at = self.newest_save("saves")
        self.assertLess(resumed_at, self.STEPS)
        os.rename(self.path("samples"), self.path("before"))
        os.mkdir(self.path("samples"))
        self.ends_well(jobs.run(self.command("--cox.checkpoint.resume=on"), then_ranks))
        before, after = self.samples("before"), self.samples("samples")
        self.assertEqual(sorted(after), list(range(resumed_at, self.STEPS)))
        used = [s for step, numbers in before.items() if step < resumed_at for s in numbers]
        used += [s for numbers in after.values() for s in numbers]
        self.assertEqual(sorted(used), sorted(2 * list(range(self.SIZE))))

    def test_two_ranks_stopped_then_one_drops_and_repeats_no_sample(self):
        self.check(signal.SIGTERM, 2, 1)

    def test_two_ranks_killed_then_four_drop_and_repeat_no_sample(self):
        self.check(signal.SIGKILL, 2, 4)


if __name__ == "__main__":
    jobs.main()
