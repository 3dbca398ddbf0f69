"""The host timeline of real jobs: each rank writes one, `cox analyze` books idle time on the fault that
was planted, and `cox trace` draws it."""

import json
import os
import subprocess

import jobs

STEPS = 16


class Idle(jobs.Case):
    def run_with(self, *flags):
        """Runs the demo's program on two ranks; returns what `cox analyze` says of idle time."""
        command = [jobs.programs.gpt2, "--text", self.text(), *jobs.TINY, "--steps", STEPS, *flags,
                   "--cox.http.port=0", "--cox.run.directory=" + self.path("run")]
        self.ends_well(jobs.run(command, ranks=2, patience=240))
        return self.analyzed().get("idle")

    def analyzed(self):
        done = subprocess.run([jobs.programs.cox, "analyze", self.path("run"), "--json"],
                              capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def data_seconds(self, rank):
        """Of the steps of a rank: another record of the same time, however busy the machine is."""
        with open(self.path("run", f"rank{rank}", "steps.jsonl"), encoding="utf-8") as file:
            return sum(json.loads(line)["phases"].get("data", 0) for line in file)

    def test_slow_data_is_idle_time_of_data_on_all_ranks(self):
        idle = self.run_with("--slow-data", "0.3")
        for rank in idle["ranks"]:
            planted = self.data_seconds(rank["rank"])
            self.assertGreaterEqual(planted, 0.3 * STEPS)
            self.assertAlmostEqual(rank["seconds"]["data"] / planted, 1, delta=0.2, msg=idle)
        trace = self.path("trace.json")
        subprocess.run([jobs.programs.cox, "trace", self.path("run"), "--out", trace], check=True,
                       capture_output=True)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = {(event["ph"], event["name"]) for event in events}
        self.assertLessEqual({("C", "process: cores in use"), ("C", "node: memory (bytes)"), ("X", "data")},
                             names)
        lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
        self.assertIn("idle time, by its cause", lanes)

    def test_slow_saves_are_idle_time_of_saving_also_where_a_rank_only_waits_for_them(self):
        idle = self.run_with("--slow-save", "1.5", "--saves", self.path("saves"),
                             "--cox.checkpoint.every_steps=8")
        saves = STEPS / 8
        saved, waited = [rank["seconds"]["save"] for rank in idle["ranks"]]
        self.assertGreater(saved, 0.8 * 1.5 * saves, idle)
        # What it did itself meanwhile is no waiting; behind the last step it has nothing to do.
        self.assertGreater(waited, 0.5, idle)

    def test_a_slow_rank_is_whom_the_other_waits_for(self):
        idle = self.run_with("--slow", "1:8")
        self.assertGreater(idle["waiting_for"].get("1", 0), idle["waiting_for"].get("0", 0), idle)

    def test_a_resumed_run_goes_on_in_its_timeline(self):
        saves = ["--saves", self.path("saves"), "--cox.checkpoint.every_steps=8"]
        self.run_with(*saves)
        before = os.path.getsize(self.path("run", "rank0", "host.jsonl"))
        idle = self.run_with(*saves, "--steps", str(2 * STEPS), "--cox.checkpoint.resume=on")
        self.assertGreater(os.path.getsize(self.path("run", "rank0", "host.jsonl")), before)
        self.assertGreater(idle["seconds"]["startup"], 0, idle)

    def test_without_a_period_there_is_no_timeline(self):
        self.assertIsNone(self.run_with("--cox.run.host_seconds=0"))
        self.assertFalse(os.path.exists(self.path("run", "rank0", "host.jsonl")))


if __name__ == "__main__":
    jobs.main()
