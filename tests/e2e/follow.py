"""A job that trains is followed by the events of its status page, by a client of a few lines and in
a headless Chromium, where there is one."""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
import urllib.request

import jobs

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "pages"))
import chromium  # noqa: E402

FOLLOWERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support", "followers.py")
PATIENCE_S = 60
MOST_PAGE_BYTES = 300_000
PROGRESS = re.compile(r"Round ([\d,]+), step ([\d,]+)")


def number(text):
    return int(text.replace(",", ""))


def progress(name, data):
    """Round and step, where the event has them."""
    found = PROGRESS.search(data) if name == "part" and data.startswith("part-head\n") else None
    return (number(found[1]), number(found[2])) if found else None


class Events:
    """Server-sent events, as (name, data), until the server ends them."""

    def __init__(self, url):
        self.answer = urllib.request.urlopen(url, timeout=PATIENCE_S)

    def close(self):
        self.answer.close()

    def __iter__(self):
        name, data = "", []
        for line in self.answer:
            field, _, value = line.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif not field and name:
                yield name, "\n".join(data)
                name, data = "", []


class Follow(jobs.Case):
    def train(self):
        job = jobs.Job(self.gpt2("--steps", 1000000), 2)
        self.addCleanup(job.signal, signal.SIGKILL)
        found = job.until(lambda: re.search(r"status page: (http://\S+)/status", job.errors()))
        job.until(lambda: b"Round " in self.body(found[1] + "/status"))
        return job, found[1]

    def body(self, url):
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.read()

    def events(self, url):
        events = Events(url)
        self.addCleanup(events.close)
        return events

    def end(self, job):
        job.process.send_signal(signal.SIGTERM)

    def follow(self, job, events, value_of):
        """Ends the job once four values have come, and returns them. A value is what `value_of` makes
        of an event; one that is as before does not count, for a page also counts the seconds."""
        values = []
        for name, data in events:
            value = value_of(name, data)
            if value is not None and value not in values[-1:]:
                values.append(value)
                if len(values) == 4:
                    self.end(job)
            if name == "end":
                break
        self.assertEqual(name, "end")
        self.ends_well(job.wait())
        return values[:4]

    def test_steps_of_a_real_job_arrive_as_events_and_so_does_its_end(self):
        job, address = self.train()
        seen = self.follow(job, self.events(address + "/status/events"), progress)
        self.assertEqual(len(seen), 4)
        for values in zip(*seen):
            self.assertEqual(sorted(set(values)), list(values))  # each later than the one before

    def test_programs_get_the_document_whenever_it_changes(self):
        def time_of(name, data):
            return json.loads(data)["last_round_time"] if name == "status" else None

        job, address = self.train()
        times = self.follow(job, self.events(address + "/api/v1/events"), time_of)
        self.assertEqual(sorted(set(times)), times)
        self.assertEqual(len(times), 4)

    def test_fifty_follow_and_one_never_reads_and_it_trains_on(self):
        job, address = self.train()
        command = [sys.executable, "-B", FOLLOWERS, address.rpartition(":")[2], "--read=50", "--deaf=1"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            self.addCleanup(clients.kill)
            self.assertEqual(clients.stdout.readline(), "ready\n")
            seen = set()
            for name, data in self.events(address + "/status/events"):
                seen.add(progress(name, data))
                if len(seen - {None}) == 4:
                    break
            clients.stdin.close()
            outcome = json.loads(clients.stdout.readline())
        self.assertEqual(outcome["dropped"], 0)
        self.assertGreaterEqual(outcome["least_pieces"], 3)
        self.end(job)
        self.ends_well(job.wait())

    def test_its_pages_stay_small(self):
        job, address = self.train()
        for page in ("/status", "/status/rank?rank=0", "/status/rank?rank=1"):
            size = len(self.body(address + page))
            self.assertGreater(size, 1000)
            self.assertLessEqual(size, MOST_PAGE_BYTES)
        self.end(job)
        self.ends_well(job.wait())

    @unittest.skipUnless(chromium.PROGRAM, "expected chromium (Debian's package of that name), found none")
    def test_a_page_in_a_browser_follows_it_without_a_reload(self):
        job, address = self.train()
        browser = chromium.Browser()
        self.addCleanup(browser.close)
        browser.look(1280, 900, "light")
        browser.open(address + "/status")
        browser.until("(+document.documentElement.dataset.events || 0) > 0")
        browser.evaluate("window.mark = 1")
        step = "+document.getElementById('part-head').innerText.match(/step ([\\d,]+)/)[1].replaceAll(',', '')"
        for _ in range(3):
            before, events = browser.evaluate(f"[{step}, +document.documentElement.dataset.events]")
            browser.until(f"{step} > {before} && +document.documentElement.dataset.events > {events}")
        self.assertEqual(browser.evaluate("window.mark"), 1)
        self.assertEqual([r for r in browser.requests() if r.endswith("/status")], [address + "/status"])
        self.end(job)
        self.ends_well(job.wait())


if __name__ == "__main__":
    jobs.main()
