"""Gradient buckets in the record of a real job, and in the picture that `cox trace` draws of it."""

import json
import subprocess

import jobs

STEPS, EVERY = 40, 9
ROUNDING = 2e-3  # microseconds: the picture has whole nanoseconds


class Buckets(jobs.Case):
    def run_with(self, *flags):
        command = self.gpt2("--steps", STEPS, "--cox.reduction.bucket_bytes=64KiB", *flags, run_directory="run")
        self.ends_well(jobs.run(command, ranks=2, patience=240))

    def slices(self):
        """Of each rank's process: its slices by lane, as (name, begin, end)."""
        trace = self.path("trace.json")
        subprocess.run([jobs.programs.cox, "trace", self.path("run"), "--out", trace], check=True,
                       capture_output=True)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        ranks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        found = {}
        for e in events:
            if e["ph"] == "X" and ranks[e["pid"]].startswith("rank"):
                lane = found.setdefault(ranks[e["pid"]], {}).setdefault(lanes[e["pid"], e["tid"]], [])
                lane.append((e["name"], e["ts"], e["ts"] + e["dur"]))
        return found

    def with_buckets(self, rank):
        rows = self.rows("run", rank)
        told = [row for row in rows if "buckets" in row]
        self.assertEqual([row["round"] for row in told], [row["round"] for row in rows if row["round"] % EVERY == 0])
        return told

    def check_lane(self, lanes):
        """Slices that are hidden lie within a backward phase, and exposed ones begin behind one."""
        phases = [s for s in lanes["steps and their phases"] if s[0] == "backward"]
        lane = lanes["gradient buckets under way"]
        for name, begin, end in lane:
            if name == "hidden by backward":
                self.assertTrue(any(b - ROUNDING <= begin < end <= e + ROUNDING for _, b, e in phases), (begin, end))
            elif name == "exposed":
                self.assertFalse(any(b + ROUNDING < begin < e - ROUNDING for _, b, e in phases), (begin, end))
        return [name for name, _, _ in lane]

    def test_those_that_are_summed_while_backward_runs_are_drawn_inside_of_it(self):
        self.run_with("--cox.precision.sample_every=0")
        for rank, lanes in self.slices().items():
            rows = self.with_buckets(int(rank.split()[1]))
            self.assertGreater(len(rows), 3)
            for row in rows:
                spans = row["buckets"]
                self.assertGreater(len(spans), 1)
                self.assertTrue(all(begin <= end for _, _, begin, end in spans), spans)
                # This rank's part of the first one is there before the pass ends.
                self.assertLess(spans[0][2], 0)
                self.assertGreater(sum(size for _, size, _, _ in spans), 64 << 10)
            names = self.check_lane(lanes)
            self.assertGreaterEqual(names.count("hidden by backward"), len(rows))
            self.assertIn("bucket 0", names)

    def test_where_gradients_are_looked_at_first_all_of_them_are_exposed(self):
        self.run_with("--cox.precision.format=bf16", "--cox.precision.emulate=on", "--cox.precision.sample_every=1")
        for rank, lanes in self.slices().items():
            for row in self.with_buckets(int(rank.split()[1])):
                self.assertGreaterEqual(row["buckets"][0][2], 0)
                self.assertAlmostEqual(row["reduction_exposed"], row["reduction"], delta=1e-6)
            self.assertNotIn("hidden by backward", self.check_lane(lanes))


if __name__ == "__main__":
    jobs.main()
