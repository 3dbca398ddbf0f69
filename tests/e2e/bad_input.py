"""Bad input: one clear line on standard error, an exit code other than 0, and nothing hangs. The first
of each kind is asked of two ranks, which must not both say it, the others of one process alone. Notes
of level `info` are off here, so that every line on standard error counts."""

import json
import os
import re
import signal
import socket
import struct
import subprocess

import jobs


class BadInput(jobs.Case):
    QUIET = "--cox.run.log=warning"

    def one_line(self, command, parts, ranks=2, env=None):
        ended = jobs.run([*command, self.QUIET], ranks, env)
        self.assertNotEqual(ended.code, 0, ended)
        self.check_line(ended, parts)

    def check_line(self, ended, parts):
        complaints = ended.complaints()
        self.assertEqual(len(complaints), 1, ended)
        for part in parts:
            self.assertIn(part, complaints[0])
        self.assertLess(len(complaints[0]), 700)

    def short(self, *flags, **folders):
        return self.gpt2("--steps", 5, *flags, **folders)

    def write(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def test_text(self):
        for name, content, ranks in (("missing", None, 2), ("empty", b"", None), ("short", b"ab", None)):
            with self.subTest(name):
                text = self.path(name)
                if content is not None:
                    self.write(name, content)
                self.one_line(self.short() + ["--text", text], [text], ranks)

    def test_options(self):
        for ranks, flags in ((2, ["--steps", "0"]), (None, ["--steps", "many"]), (None, ["--lr", "nan"]),
                             (None, ["--batch"]), (2, ["--no-such-option"]), (None, ["--heads", "3"]),
                             (2, ["--batch", "1"])):
            with self.subTest(flags=flags):
                self.one_line(self.short() + flags, ["expected"], ranks)

    def test_config_file(self):
        lines = {"unknown key": "run.seed = 3\nguard.mood = on\n",
                 "out of range": "# a comment\nguard.spike_ratio = 0.1\n",
                 "no value": "run.seed = 3\nnonsense\n"}
        for name, text in lines.items():
            with self.subTest(name):
                file = self.write("cox.conf", text.encode())
                for ranks in (None, 2) if name == "unknown key" else (None,):
                    self.one_line(self.short("--cox.config=" + file), [file, "2"], ranks)
        self.one_line(self.short("--cox.config=" + self.path("none")), [self.path("none")], None)
        self.one_line(self.short(), ["COX_GUARD_MOOD"], env={"COX_GUARD_MOOD": "on"})

    def test_config_on_one_rank_only(self):
        good = self.short(self.QUIET)
        bad = [jobs.programs.mpiexec, "-n", "1", *good, ":", "-n", "1", *good,
               "--cox.guard.spike_ratio=0"]
        ended = jobs.run(bad)
        self.assertNotEqual(ended.code, 0, ended)
        self.check_line(ended, ["rank 1", "guard.spike_ratio"])

    def test_different_configs_and_models(self):
        good = self.short(self.QUIET)
        other = self.write("other", b"another text of another size. " * 300)
        for flag, part in (("--cox.run.seed=9", "configuration"), ("--width=32", "parameters"),
                           ("--cox.checkpoint.directory=" + self.path("saves"), "configuration"),
                           ("--batch=16", "TrainerOptions"),
                           ("--text=" + other, "data set")):
            with self.subTest(flag):
                both = [jobs.programs.mpiexec, "-n", "1", *good, ":", "-n", "1", *good, flag]
                ended = jobs.run(both)
                self.assertNotEqual(ended.code, 0, ended)
                self.check_line(ended, [part, "rank 1"])

    def test_launcher(self):
        env = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
        self.one_line(self.short(), ["Open MPI", "mpiexec.mpich"], None, env)
        env["OMPI_COMM_WORLD_RANK"] = "1"  # rank 0 has said it
        ended = jobs.run(self.short(self.QUIET), None, env)
        self.assertNotEqual(ended.code, 0, ended)
        self.assertEqual(ended.complaints(), [])

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            command = [w for w in self.short() if w != "--cox.http.port=0"]
            for ranks in (None, 2):
                self.one_line(command + ["--cox.http.port=" + port], [port], ranks)

    def test_pages_for_other_machines_without_a_token(self):
        for ranks in (None, 2):
            self.one_line(self.short("--cox.http.host=0.0.0.0"),
                          ["0.0.0.0", "COX_HTTP_TOKEN=", "COX_HTTP_OPEN=on"], ranks)

    def test_directories_that_cannot_be_written(self):
        self.write("file", b"")
        for key in ("run.directory", "checkpoint.directory"):
            for ranks, folder in ((None, self.path("file", "below")), (2, "/proc/nowhere")):
                with self.subTest(key, folder=folder, ranks=ranks):
                    self.one_line(self.short(f"--cox.{key}={folder}"), [folder], ranks)

    def test_resume_without_anything_to_resume(self):
        resume = "--cox.checkpoint.resume=on"
        self.one_line(self.short(resume), ["checkpoint.directory"], None)
        self.one_line(self.short(resume, saves="saves"), ["found none"])

    def test_damaged_and_foreign_saves(self):
        self.ends_well(jobs.run(self.short(saves="saves"), 2))
        resume = "--cox.checkpoint.resume=on"
        self.one_line(self.short("--width=32", resume, saves="saves"), ["resume"])
        longer = self.gpt2("--steps", 9, resume, saves="saves")
        self.one_line(longer + ["--cox.run.seed=9"], ["resume", "run.seed="], None)
        other = self.write("other", b"another text of another size. " * 300)
        self.one_line(longer + ["--text", other], ["resume", "data set"], None)
        self.one_line(self.short(saves="saves"), ["checkpoint.resume=on"], None)
        name = self.path("saves", "step-000000000005", "optimizer-00002-of-00002.safetensors")
        with open(name, "r+b") as file:
            file.truncate(1000)
        self.one_line(self.gpt2("--steps", 9, resume, saves="saves"), [name])

    def test_models(self):
        model = self.path("model")
        self.ends_well(jobs.run(self.short("--save-model", model)))
        weights = os.path.join(model, "model.safetensors")
        with open(weights, "rb") as file:
            whole = file.read()
        size = struct.unpack("<Q", whole[:8])[0]
        header = json.loads(whole[8:8 + size])
        first = next(name for name in header if name != "__metadata__")
        header[first]["data_offsets"] = [0, 2**62]
        hostile = json.dumps(header).encode()
        bad = {"truncated": whole[:len(whole) // 2], "empty": b"", "a header": whole[:8],
               "huge header": struct.pack("<Q", 2**63) + whole[8:], "noise": os.urandom(4096),
               "deep": struct.pack("<Q", 200000) + b"[" * 200000,
               "offsets": struct.pack("<Q", len(hostile)) + hostile + whole[8 + size:]}
        load = self.short("--load-model", model)
        for name, content in bad.items():
            with self.subTest(name):
                self.write("model/model.safetensors", content)
                self.one_line(load, [weights], 2 if name == "truncated" else None)
        os.remove(weights)
        self.one_line(load, [weights], None)
        self.write("model/model.safetensors", whole)
        self.one_line(load + ["--length", "4096"], ["--length"], None)
        self.ends_well(jobs.run(load, 2))
        os.remove(os.path.join(model, "config.json"))
        self.one_line(load, ["config.json"], None)


class FullDisk(jobs.Case):
    """A disk too small for a save: a small tmpfs where one may be mounted, else a limit on the size
    of files (without mpiexec, whose own shared memory it would count)."""

    def setUp(self):
        super().setUp()
        os.mkdir(self.path("disk"))
        mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", self.path("disk")]
        self.is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        if self.is_mounted:
            self.addCleanup(subprocess.run, ["umount", self.path("disk")], check=True)

    def run_on_full_disk(self, command):
        if self.is_mounted:
            free = os.statvfs(self.path("disk"))
            with open(self.path("disk", "ballast"), "wb") as file:
                file.write(b"x" * (free.f_bavail * free.f_frsize - 200000))
            return jobs.run(command, 2)
        limited = ["bash", "-c", "trap '' XFSZ; ulimit -f 200; exec \"$@\"", "bash", *command]
        return jobs.run(limited)

    def end_full_disk(self):
        if self.is_mounted:
            os.remove(self.path("disk", "ballast"))

    def test_a_save_that_does_not_fit_leaves_the_one_before(self):
        self.ends_well(jobs.run(self.gpt2("--steps", 5, saves="disk/saves"), 2))
        resume = self.gpt2("--steps", 9, "--cox.checkpoint.resume=on", "--cox.run.log=warning",
                           saves="disk/saves")
        ended = self.run_on_full_disk(resume)
        self.assertGreater(ended.code, 0, ended)
        self.assertEqual(len(ended.complaints()), 1, ended)
        self.assertIn("step-000000000009", ended.complaints()[0])
        self.assertEqual(self.entries("disk/saves"), ["step-000000000005"])
        self.end_full_disk()
        self.ends_well(jobs.run(resume, 2))
        self.assertEqual(self.newest_save("disk/saves"), 9)

    def test_a_save_on_the_way_that_does_not_fit_is_reported_and_training_goes_on(self):
        ended = self.run_on_full_disk(
            self.gpt2("--steps", 9, "--cox.checkpoint.every_steps=4", "--cox.run.log=warning",
                      saves="disk/saves"))
        self.assertGreater(ended.code, 0, ended)
        steps = re.findall(r"checkpoint \S+step-0+(\d+)", "\n".join(ended.complaints()))
        self.assertEqual(steps, ["4", "8", "9"], ended)
        self.assertEqual(self.entries("disk/saves"), [])


class OneRankFails(jobs.Case):
    """The others must not wait for ever, and the message names the rank."""

    def test_an_exception_on_one_rank_ends_the_job_and_names_it(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                ended = jobs.run([jobs.programs.trainer, "--steps", 100000, "--throw-on", rank,
                                  "--throw-at", 10, "--cox.http.enabled=off"], 2)
                self.assertNotEqual(ended.code, 0, ended)
                self.assertIn(f"rank {rank}: the user's own code failed", ended.err)

    def test_models_of_a_trainer_that_differ_are_named(self):
        ended = jobs.run([jobs.programs.trainer, "--odd-model-on", 1, "--cox.http.enabled=off",
                          "--cox.run.log=warning"], 2)
        self.assertNotEqual(ended.code, 0, ended)
        self.assertEqual(len(ended.complaints()), 1, ended)
        self.assertIn("on rank 1", ended.complaints()[0])

    def test_a_rank_that_is_killed_ends_the_job(self):
        job = jobs.Job([jobs.programs.trainer, "--steps", 100000, "--samples", self.folder,
                        "--cox.http.enabled=off"], 2)
        job.until(lambda: os.path.exists(self.path("rank1.txt")))
        job.signal(signal.SIGKILL, {1})
        ended = job.wait()
        self.assertNotEqual(ended.code, 0, ended)


if __name__ == "__main__":
    jobs.main()
