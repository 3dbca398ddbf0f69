"""A job that trains is followed by the events of its status page, by a client of a few lines and in
a headless Chromium, where there is one."""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
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


class Case(jobs.SharedCase):
    def train(self):
        job = jobs.Job(self.gpt2("--steps", 1000000), 2)
        self.addClassCleanup(job.signal, signal.SIGKILL)
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


class ToTheEnd(Case):
    def follow(self, events, value_of, enough):
        """Releases `enough` once four values have come; returns these and the name of the last event.
        A value is what `value_of` makes of an event; one that is as before does not count, for a page
        also counts the seconds."""
        values = []
        for name, data in events:
            value = value_of(name, data)
            if value is not None and value not in values[-1:]:
                values.append(value)
                if len(values) == 4:
                    enough.release()
            if name == "end":
                break
        return values[:4], name

    def test_steps_of_a_real_job_and_its_document_arrive_as_events_and_so_does_its_end(self):
        def time_of(name, data):
            return json.loads(data)["last_round_time"] if name == "status" else None

        job, address = self.train()
        enough = threading.Semaphore(0)
        streams = [(self.events(address + "/status/events"), progress),
                   (self.events(address + "/api/v1/events"), time_of)]
        with concurrent.futures.ThreadPoolExecutor(len(streams)) as pool:
            followed = [pool.submit(self.follow, *stream, enough) for stream in streams]
            self.assertEqual([enough.acquire(timeout=PATIENCE_S) for _ in streams], [True, True])
            job.process.send_signal(signal.SIGTERM)
            self.ends_well(job.wait())
        (seen, seen_last), (times, times_last) = [each.result() for each in followed]
        self.assertEqual((seen_last, times_last), ("end", "end"))
        for values in [*zip(*seen), times]:
            self.assertEqual(sorted(set(values)), list(values))  # each later than the one before
            self.assertEqual(len(values), 4)


class Meanwhile(Case):
    """Of one job, which trains on and ends in order."""

    def trained(self):
        return self.once("job", self.train)

    @classmethod
    def tearDownClass(cls):
        job, _ = cls.ended["job"]
        job.process.send_signal(signal.SIGTERM)
        ended = job.wait()
        if ended.code != 0:
            raise AssertionError(ended)

    def test_fifty_follow_and_one_never_reads_and_it_trains_on(self):
        _, address = self.trained()
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

    def test_its_pages_stay_small(self):
        _, address = self.trained()
        for page in ("/status", "/status/rank?rank=0", "/status/rank?rank=1"):
            size = len(self.body(address + page))
            self.assertGreater(size, 1000)
            self.assertLessEqual(size, MOST_PAGE_BYTES)

    @unittest.skipUnless(chromium.PROGRAM, chromium.MISSING)
    def test_a_page_in_a_browser_follows_it_without_a_reload(self):
        _, address = self.trained()
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


if __name__ == "__main__":
    jobs.main()
