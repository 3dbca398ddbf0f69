"""The pages in a headless Chromium: at the width of a phone and of a desk, in light and dark.

  browser.py --serve cox_metrics_serve --cox cox --own-run cox_own_run --runs FOLDER [--shots FOLDER]
             [unittest's arguments]

Reports are made of the run directories in --runs, which are of another tool's, and of the one that --own-run writes.
--shots keeps a picture of everything that was looked at.
Exit code 77 where there is no Chromium."""
import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import chromium

SIZES = {"phone": (412, 900), "desk": (1280, 900)}
SCHEMES = ("light", "dark")
MOST_PAGE_BYTES = 300_000
options = None

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "audit.js")) as source:
    AUDIT = source.read()
FOCUSABLE = """[...document.querySelectorAll('a[href],button,input,summary')].filter(e => e.checkVisibility())"""


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = chromium.Browser()
        cls.folder = tempfile.mkdtemp(prefix="cox-pages-")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(cls.folder)

    def audit(self, url, name, ready="true"):
        for size, (width, height) in SIZES.items():
            for scheme in SCHEMES:
                with self.subTest(page=name, size=size, scheme=scheme):
                    self.browser.look(width, height, scheme)
                    if scheme == SCHEMES[0]:  # the page that is open follows the other one
                        self.browser.open(url)
                        self.browser.until(ready)
                    if options.shots:
                        self.browser.screenshot(os.path.join(options.shots, f"{name}-{size}-{scheme}.png"))
                    self.assertEqual(self.browser.evaluate(AUDIT), [])

    def reach_all_by_keyboard(self):
        """Tab comes by everything that can be acted on, in the order of the page, and shows where it is."""
        count = self.browser.evaluate(f"(() => {{ window.wanted = {FOCUSABLE}; return wanted.length; }})()")
        self.assertGreater(count, 0)
        for i in range(count):
            self.browser.press("Tab")
            self.assertEqual(self.browser.evaluate("wanted.indexOf(document.activeElement)"), i)
            self.assertNotEqual(self.browser.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "none")


class Audit(Case):
    """The audit itself, on pages with one fault."""

    def found(self, body):
        self.browser.look(800, 600, "light")
        self.browser.open("data:text/html,<meta charset=utf-8><body style='background:%23fff;color:%23000'>" + body)
        return self.browser.evaluate(AUDIT)

    def test_it_takes_the_worst_stop_of_a_gradient(self):
        def on(stops):
            return self.found(f"<p style='background-image:linear-gradient({stops})'>words</p>")
        self.assertEqual(on("white,silver"), [])
        self.assertEqual(on("white,rgba(0,0,0,.4)"), [])
        self.assertEqual(on("white,black,white"), ['"words" has a contrast of 1.00'])
        self.assertRegex(on("transparent 3px,dimgray 3px 7px")[0], "has a contrast of 3.8")

    def test_it_sees_text_upon_text_and_out_of_the_window(self):
        self.assertEqual(self.found("<p>words</p>"), [])
        self.assertIn('"other" lies on "words"', self.found("<p>other</p><p style='margin-top:-2em'>words</p>"))
        self.assertIn('"words" sticks out of the window', self.found("<p style='position:absolute;left:790px'>words</p>"))


class Live(Case):
    """The status page of a job that goes on."""

    def serve(self, *arguments):
        job = subprocess.Popen([options.serve, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(job.wait)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.stdin.close)  # ends it
        return job.stdout.readline().strip()

    def test_it_is_readable_at_every_size(self):
        address = self.serve("2", "14")
        events = "(+document.documentElement.dataset.events || 0) > 12"
        self.audit(address + "/status", "status", events)
        self.audit(address + "/status/rank?rank=2", "rank")
        self.audit(address + "/", "index")

    def test_findings_of_every_severity_come_first(self):
        self.browser.look(1280, 900, "light")
        self.browser.open(self.serve("5") + "/status")
        self.assertEqual(self.browser.evaluate("document.querySelector('.live h2').innerText"), "Findings")
        section = "[...document.querySelectorAll('.live section')].find(s => s.querySelector('h2').innerText === 'Findings')"
        grades = self.browser.evaluate(f"[...{section}.querySelectorAll('td .tag')].map(t => t.innerText)")
        self.assertEqual(set(grades), {"high", "medium", "low"})

    def test_it_follows_the_job_without_a_reload(self):
        self.browser.look(1280, 900, "light")
        self.browser.open(self.serve("5") + "/status")
        rounds = "+document.body.innerText.match(/Round ([\\d,]+)/)[1].replace(',', '')"
        self.browser.evaluate("window.mark = 1")
        first = self.browser.evaluate(rounds)
        self.browser.until(f"{rounds} > {first + 5}")
        self.assertEqual(self.browser.evaluate("window.mark"), 1)

    def test_what_a_reader_has_scrolled_or_focused_stays(self):
        self.browser.look(412, 900, "light")
        self.browser.open(self.serve("5") + "/status")
        self.browser.until("(+document.documentElement.dataset.events || 0) > 12")
        table = "document.querySelector('.live a[href*=rank]').closest('.scroll')"
        self.browser.evaluate(f"{table}.scrollLeft = 8; {table}.querySelectorAll('a')[2].focus(); window.before = {table}")
        self.browser.until("!window.before.isConnected")  # its part came anew
        self.assertEqual(self.browser.evaluate(f"{table}.scrollLeft"), 8)
        self.assertEqual(self.browser.evaluate(f"{table}.querySelectorAll('a')[2] === document.activeElement"), True)

    def test_it_says_when_nobody_answers_any_more(self):
        self.browser.look(412, 900, "dark")
        job = subprocess.Popen([options.serve, "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.browser.open(job.stdout.readline().strip() + "/status")
            self.browser.until("(+document.documentElement.dataset.events || 0) > 12")
        finally:
            job.kill()
            job.wait()
            job.stdin.close()
            job.stdout.close()
        self.browser.until("document.body.innerText.includes('No connection since')")
        self.assertIn("Round", self.browser.evaluate("document.body.innerText"))
        self.assertEqual(self.browser.evaluate(AUDIT), [])

    def test_it_reads_without_javascript_and_asks_for_itself_again(self):
        address = self.serve("5")
        self.browser.call("Emulation.setScriptExecutionDisabled", value=True)
        self.addCleanup(self.browser.call, "Emulation.setScriptExecutionDisabled", value=False)
        self.browser.open(address + "/status")
        self.browser.until("performance.now() > 0 && document.body.innerText.includes('Where a step goes')")
        self.browser.evaluate("window.mark = 1")
        self.browser.until("window.mark === undefined && document.body.innerText.includes('Where a step goes')")

    def test_it_is_usable_by_keyboard(self):
        self.browser.look(1280, 900, "light")
        address = self.serve("0.1")
        self.browser.open(address + "/status/rank?rank=1")
        self.reach_all_by_keyboard()
        self.browser.press("Enter")  # the form's button
        self.browser.until("location.search === '?rank=0'")
        self.browser.open(address + "/status")
        self.browser.until("(+document.documentElement.dataset.events || 0) > 12")
        self.reach_all_by_keyboard()

    def test_it_stays_small(self):
        for blocks in ("14", "300"):
            with urllib.request.urlopen(self.serve("5", blocks) + "/status", timeout=60) as answer:
                self.assertLess(len(answer.read()), MOST_PAGE_BYTES)


class Report(Case):
    """The page of `cox report`, from a disk."""

    def report(self, run):
        """The path of the report on a run directory: the name of one of --runs, or a path."""
        path = os.path.join(self.folder, os.path.basename(run) + ".html")
        subprocess.run([options.cox, "report", os.path.join(options.runs, run), "--out", path], check=True,
                       stdout=subprocess.DEVNULL)
        return path

    def own_run(self):
        run = os.path.join(self.folder, "own")
        subprocess.run([options.own_run, run], check=True)
        return run

    def under(self, title, selector):
        """The texts of what the selector finds in the section of that title."""
        section = f"[...document.querySelectorAll('section')].find(s => s.querySelector('h2')?.innerText === '{title}')"
        return self.browser.evaluate(f"[...{section}.querySelectorAll('{selector}')].map(e => e.innerText.trim())")

    def test_a_record_of_ours_is_shown_with_all_that_it_has(self):
        self.audit("file://" + self.report(self.own_run()), "report-own")
        titles = self.browser.evaluate("[...document.querySelectorAll('section h2')].map(h => h.innerText)")
        self.assertEqual(titles, ["Findings", "Where the time went", "Idle time", "A step of rank 0", "Over the run",
                                  "Ranks over steps", "Timeline", "Ranks", "Plans", "Settings"])
        lines = self.under("Where the time went", ".legend li")
        for name in ("recompute", "waiting", "control", "saving"):
            self.assertTrue(any(line.startswith(name) for line in lines), lines)
        causes = self.under("Idle time", "tr td:first-child")
        self.assertEqual(causes, ["startup", "epoch boundary", "save", "evaluation", "averaging", "data",
                                  "waiting for a rank", "unexplained"])
        plans = self.under("Plans", "tbody tr")
        self.assertGreater(len(plans), 3)
        self.assertTrue(all(self.under("Plans", "tbody td:last-child")), plans)  # the reasons
        self.assertIn("h.0 to h.3 are recomputed: headroom fell", "".join(plans))

    def test_it_is_readable_at_every_size(self):
        for run in sorted(os.listdir(options.runs)):
            self.audit("file://" + self.report(run), "report-" + run)

    def test_its_script_is_the_one_that_it_names(self):
        with open(self.report("healthy")) as file:
            page = file.read()
        script = re.search("<script>(.*?)</script>", page, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self.assertIn(f"script-src 'sha256-{digest}'", page)

    def test_it_asks_for_nothing_but_itself(self):
        url = "file://" + self.report("two-stragglers")
        self.browser.open(url)
        self.assertEqual([r for r in self.browser.requests() if not r.startswith("data:")], [url])

    def test_it_zooms_by_keyboard_and_by_hand(self):
        self.browser.look(1280, 900, "light")
        self.browser.open("file://" + self.report("no-progress"))
        line = "document.querySelector('.curve .line').getAttribute('d')"
        steps = "document.querySelector('.tools output').textContent"
        whole, all_steps = self.browser.evaluate(line), self.browser.evaluate(steps)
        self.browser.press("Tab")
        self.browser.press("Enter")  # Zoom in
        self.assertNotEqual(self.browser.evaluate(steps), all_steps)
        self.assertNotEqual(self.browser.evaluate(line), whole)
        self.browser.evaluate("document.querySelector('button[value=all]').click()")
        self.assertEqual(self.browser.evaluate(line), whole)
        box = self.browser.evaluate("""(() => { const p = document.querySelector('.curve .plot');
            p.scrollIntoView(); const r = p.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()""")
        places = [(box[0] + part * box[2], box[1] + box[3] / 2) for part in (0.25, 0.5)]
        for kind, (x, y) in zip(("mousePressed", "mouseMoved", "mouseReleased"), (places[0], places[1], places[1])):
            self.browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, buttons=1)
        first, last = map(int, re.findall(r"\d+", self.browser.evaluate(steps)))
        begin, end = map(int, re.findall(r"\d+", all_steps))
        self.assertAlmostEqual((first - begin) / (end - begin), 0.25, delta=0.05)
        self.assertAlmostEqual((last - begin) / (end - begin), 0.5, delta=0.05)

    def test_it_is_usable_by_keyboard(self):
        self.browser.look(1280, 900, "light")
        self.browser.open("file://" + self.report("straggler"))
        self.reach_all_by_keyboard()

    def test_it_reads_without_javascript(self):
        self.browser.call("Emulation.setScriptExecutionDisabled", value=True)
        self.addCleanup(self.browser.call, "Emulation.setScriptExecutionDisabled", value=False)
        self.audit("file://" + self.report("straggler"), "report-noscript")
        self.assertTrue(self.browser.evaluate("document.querySelector('.curve .line').getTotalLength() > 100"))
        self.assertTrue(self.browser.evaluate("document.querySelector('.tools').hidden"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--serve", "--cox", "--own-run", "--runs"):
        parser.add_argument(name, required=True)
    parser.add_argument("--shots")
    options, rest = parser.parse_known_args()
    if not chromium.PROGRAM:
        print("skipped: " + chromium.MISSING)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
