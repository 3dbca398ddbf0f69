"""Faults that were mended together, from outside the programs, so that programs of before can be asked
as well: docs/results/faults_before.md. The tests beside the code look closer."""

import glob
import html
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest
import urllib.request

import jobs

RESUME = "--cox.checkpoint.resume=on"
# In a frame of each width: how many pieces of the legend's text lie outside of the legend.
WIDTHS = (240, 320, 400, 600, 900)
COUNT_OUTSIDE = """<script>addEventListener("load", () => {
  const legend = document.querySelector("ul.legend"), all = document.createRange();
  all.selectNodeContents(legend);
  const edge = legend.getBoundingClientRect().right + 1;
  const outside = [...all.getClientRects()].filter(text => text.right > edge).length;
  parent.document.title += innerWidth + ":" + outside + ";";
})</script>"""


def file_of(save, kind):
    """The last of the files that ranks wrote of a kind."""
    return max(glob.glob(os.path.join(save, kind + "*.safetensors")))


def flip_bit(file, chance):
    with open(file, "r+b") as both:
        data = bytearray(both.read())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        both.seek(0)
        both.write(data)


class Saves(jobs.Case):
    def resumed_after(self, damage):
        """Ends the resume of a job of 2 ranks whose newest save was damaged."""
        if not os.path.isdir(self.path("good")):
            self.ends_well(jobs.run(self.gpt2("--steps", 12, "--cox.checkpoint.every_steps=6", saves="good"), 2))
        shutil.rmtree(self.path("saves"), ignore_errors=True)
        shutil.copytree(self.path("good"), self.path("saves"))
        damage(self.path("saves", "step-000000000012"), self.path("saves", "step-000000000006"))
        return jobs.run(self.gpt2("--steps", 13, RESUME, saves="saves"), 2)

    def is_told(self, damage):
        ended = self.resumed_after(damage)
        self.ends_well(ended)
        self.assertRegex(ended.err, r"step-000000000012\.damaged")
        self.assertIn("step-000000000012.damaged", self.entries("saves"))

    def test_no_flipped_bit_is_loaded_silently(self):
        """1,000 damages: tests/sdk/training/checkpoint_folder_test.cc."""
        chance = random.Random(17)
        for name in ("model", "optimizer", "reducer"):
            with self.subTest(name):
                self.is_told(lambda save, _: flip_bit(file_of(save, name), chance))

    def test_a_file_of_another_save_is_not_loaded_silently(self):
        self.is_told(lambda save, older: shutil.copy(file_of(older, "optimizer"), save))

    def test_a_missing_file_is_not_passed_over_silently(self):
        self.is_told(lambda save, _: os.remove(file_of(save, "reducer")))

    def test_a_job_that_wakes_removes_no_save_of_a_job_that_went_on_meanwhile(self):
        endless = self.gpt2("--steps", 10**6, "--cox.checkpoint.every_steps=5", saves="saves")
        first = jobs.Job(endless, 1)
        self.addCleanup(first.signal, signal.SIGKILL)
        first.until(lambda: self.newest_save("saves") >= 10)
        first.signal(signal.SIGSTOP)
        last = self.newest_save("saves") + 200
        second = jobs.run(self.gpt2("--steps", last, "--cox.checkpoint.every_steps=20", RESUME, saves="saves"), 1)
        first.signal(signal.SIGCONT)
        time.sleep(1)
        first.signal(signal.SIGTERM)
        first.wait()
        if second.code == 0:
            self.assertIn(f"step-{last:012}", self.entries("saves"))
        else:
            self.assertRegex(second.err, "saves.*host .* process")


class RunFiles(jobs.Case):
    def test_a_pipe_or_a_device_as_a_file_of_a_run_is_refused_at_once(self):
        """Other files and kinds: tests/metrics/records/run_files_test.cc."""
        for name, kind in (("run.json", "device"), ("steps.jsonl", "pipe")):
            with self.subTest(name, kind=kind):
                shutil.rmtree(self.path("run"), ignore_errors=True)
                os.makedirs(self.path("run", "rank0"))
                file = self.path("run", "rank0", name)
                os.mkfifo(file) if kind == "pipe" else os.symlink("/dev/zero", file)
                ended = jobs.run(self.gpt2("--steps", 3, run_directory="run"), 1)
                self.assertNotEqual(ended.code, 0, ended)
                self.assertIn("expected a regular file, found a", ended.err)


class Endings(jobs.Case):
    def start(self, command, ranks):
        job = jobs.Job(command, ranks)
        self.addCleanup(job.signal, signal.SIGKILL)
        return job

    def ends_by_two_requests(self, job):
        for _ in range(2):
            time.sleep(2)  # one that follows at once is the same request
            job.signal(signal.SIGTERM, [0])
        self.assertNotEqual(job.wait().code, 0)

    def test_a_loop_that_never_asks_ends_by_the_second_sigterm(self):
        job = self.start([jobs.programs.parallel, "own", "--steps", 10**7, "--cox.http.enabled=off",
                          "--cox.run.directory=" + self.path("run")], 1)
        job.until(lambda: os.path.exists(self.path("run", "rank0", "steps.jsonl")))
        self.ends_by_two_requests(job)

    def test_a_rank_beside_a_frozen_one_ends_by_the_second_sigterm(self):
        job = self.start(self.gpt2("--steps", 10**6, run_directory="run"), 2)
        job.until(lambda: os.path.exists(self.path("run", "rank1", "steps.jsonl")))
        job.signal(signal.SIGSTOP, [1])
        self.ends_by_two_requests(job)

    def test_sigterm_ends_a_program_that_is_stuck_in_mpi_init(self):
        job = self.start(self.gpt2("--steps", 3) + [":", "-n", "1", "sleep", "600"], 1)
        job.until(lambda: len(job.pids()) == 2)
        time.sleep(1)
        job.signal(signal.SIGTERM, [0])
        self.assertNotEqual(job.wait().code, 0)

    def test_ctrl_c_saves_and_sums_up(self):
        job = self.start(self.gpt2("--steps", 10**6, "--cox.checkpoint.every_steps=1000000", saves="saves"), 2)
        job.until(lambda: "loss" in job.output())
        job.signal(signal.SIGINT)
        ended = self.ends_well(job.wait())
        self.assertIn("stopped early, as asked", ended.out)
        self.assertGreater(self.newest_save("saves"), 0)

    def test_a_job_without_a_finite_step_ends(self):
        ended = jobs.run([jobs.programs.trainer, "--steps", 300, "--nan-steps", 20, 10**6, "--cox.http.enabled=off"], 2)
        self.assertEqual(ended.code, 74, ended)
        self.assertRegex(ended.err, "since step 20.*rank 0")


class EqualRanks(jobs.Case):
    def apart(self, *flags_of_rank_1):
        command = self.gpt2("--steps", 20, "--cox.http.enabled=off")
        return jobs.run(command + [":", "-n", "1"] + command + list(flags_of_rank_1), 1)

    def test_another_learning_rate_is_an_error(self):
        ended = self.apart("--lr", "0.01")
        self.assertNotEqual(ended.code, 0, ended)
        self.assertRegex(ended.err, "rank 1.*learning rate")

    def test_another_text_of_the_same_size_is_an_error(self):
        with open(self.text()) as file:
            turned = file.read()[::-1]
        with open(self.path("other.txt"), "w") as file:
            file.write(turned)
        ended = self.apart("--text", self.path("other.txt"))
        self.assertNotEqual(ended.code, 0, ended)
        self.assertIn("a data set with the same samples", ended.err)


class FirstUse(jobs.Case):
    def test_progress_lines_are_no_wider_than_the_terminal(self):
        ended = self.ends_well(jobs.run(self.gpt2("--steps", 30), 1, {"COLUMNS": "40"}))
        lines = [line for line in ended.out.splitlines() if re.search(r"\d+/30", line)]
        self.assertGreater(len(lines), 0)
        self.assertLess(max(map(len, lines)), 40, lines)

    @unittest.skipUnless(shutil.which("chromium"), "expected chromium (scripts/bootstrap --browser installs it), found none")
    def test_the_legend_of_a_step_stays_in_its_place_on_a_narrow_screen(self):
        job = jobs.Job([jobs.programs.parallel, "trainer", "--steps", 10**7, "--slow", 1, 30, 0, 10**7,
                        "--cox.http.port=0"], 2)
        self.addCleanup(job.signal, signal.SIGKILL)
        address = job.until(lambda: re.search(r"status page: (http://\S+)", job.errors()))[1]

        def page():
            with urllib.request.urlopen(address, timeout=60) as answer:
                text = answer.read().decode()
            return text if 'class="legend"' in text else None
        inner = re.sub("<meta http-equiv[^>]*>", "", job.until(page)) + COUNT_OUTSIDE
        with open(self.path("frames.html"), "w") as file:
            file.write("<title></title>" + "".join(
                f'<iframe style="width:{w}px;height:900px;border:0" srcdoc="{html.escape(inner)}"></iframe>' for w in WIDTHS))
        shown = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000",
                                "--user-data-dir=" + self.path("profile"), "--dump-dom", "file://" + self.path("frames.html")],
                               check=True, capture_output=True, text=True).stdout
        found = re.findall(r"(\d+):(\d+)", shown[:shown.index("</title>")])
        self.assertEqual(sorted((int(w), int(n)) for w, n in found), [(w, 0) for w in WIDTHS])


if __name__ == "__main__":
    jobs.main()
