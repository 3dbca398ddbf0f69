"""Formats change while four ranks train, by the signals of the run and because ranks ask for it: in
every step all ranks compute in the same formats at the same loss scale, to the same weights."""

import jobs
from precision_jobs import DIGITS, PrecisionCase, format_flag

QUICK = [format_flag("auto"), "--cox.precision.emulate=on", "--cox.precision.patience_rounds=2",
         "--cox.precision.dwell_rounds=6", "--cox.precision.cooldown_rounds=10",
         "--cox.precision.sample_every=1", "--cox.precision.enter_noise_ratio=0.1",
         "--cox.precision.leave_noise_ratio=0.05", "--sleep-ms", 3]


class Agreement(PrecisionCase):
    RANKS = 4

    def check(self, name, *flags):
        """Returns the formats in force, one text a step."""
        ended = self.train(name, self.RANKS, *flags)
        done = self.all_did_the_same(name, self.RANKS, ended)
        self.assertEqual(len(done), self.STEPS)
        self.scale_is_what_is_said(done)
        self.replays(name)
        for row, step in zip(self.rows(name), done):
            counts = {DIGITS[format]: count for format, count in row["precision"].items()}
            for digit in DIGITS.values():  # what was found in force is what the plan says
                self.assertEqual(f"{step[2]:.0f}".count(digit), counts.get(digit, 0), row)
        return [f"{step[2]:.0f}" for step in done]

    def changes(self, formats):
        return sum(a != b for a, b in zip(formats, formats[1:]))

    def test_formats_that_follow_the_signals(self):
        overflows = ["--inject", 60, 2, 1, "forward", "inf",
                     "--inject", 120, 3, 0, "backward", "inf"]
        formats = self.check("signals", *QUICK, *overflows)
        self.assertEqual(formats[0], "2222")
        self.assertGreaterEqual(self.changes(formats), 6, formats)  # 4 to fp8, 2 back
        for step, block in ((60, 1), (120, 0)):
            self.assertEqual(formats[step][block], "4")
            self.assertIn("2", [now[block] for now in formats[step + 1:step + 20]])
        self.assertEqual({now[-1] for now in formats}, {"2", "4"})

    def test_formats_that_any_rank_asks_for(self):
        requests = []
        for rank, step in enumerate(range(10, 170, 40)):
            requests += ["--request", step, rank, f"block{rank}", "force", "fp16", 25]
            requests += ["--request", step + 20, 3 - rank, "*", "forbid", "fp8", 15]
        requests += ["--request", 95, 1, "block0", "force", "fp32", 0]
        requests += ["--request", 150, 2, "block0", "release", "fp32", 0]
        formats = self.check("requests", *QUICK, *requests)
        self.assertGreaterEqual(self.changes(formats), 12, formats)
        for block in range(self.BLOCKS):  # each was in fp16 for a while
            self.assertIn("3", [now[block] for now in formats])
        self.assertEqual({now[0] for now in formats[115:150]}, {"1"})
        self.assertNotEqual(formats[-1][0], "1")

    def test_four_ranks_that_ask_for_different_formats_of_one_block(self):
        requests, formats = [], ["fp16", "fp32", "fp8", "bf16"]
        for step in range(20, 180, 16):
            formats = formats[1:] + formats[:1]  # of requests in one round the highest rank's stands
            for rank, format in enumerate(formats):
                requests += ["--request", step, rank, "block1", "force", format, 8]
        found = self.check("quarrel", format_flag("bf16"), "--cox.precision.mode=on", *requests)
        self.assertGreaterEqual(self.changes(found), 8, found)
        self.assertEqual({now[1] for now in found}, {"1", "2", "3", "4"})
        self.assertEqual({now[0] + now[2:] for now in found}, {"222"})

    def test_a_resumed_job_starts_with_the_formats_that_it_had(self):
        saves = "--cox.checkpoint.directory=" + self.path("saves")
        requests = ["--request", 10, 1, "block2", "force", "fp16", 0, "--request", 10, 0, "block1", "force",
                  "fp32", 500]
        self.train("run", 2, *QUICK, saves, *requests, "--steps", 60)
        before = self.all_formats("run")
        self.assertEqual(before[-1], "4134", before)
        ended = self.train("run", 2, *QUICK, saves, "--cox.checkpoint.resume=on", "--steps", 100)
        self.all_did_the_same("run", 2, ended)
        self.assertEqual(set(self.all_formats("run")[60:]), {"4134"})
        self.replays("run")

    def all_formats(self, name):
        return [f"{row[2]:.0f}" for row in self.what_was_done(name, 0)]


if __name__ == "__main__":
    jobs.main()
