"""Runs tests that were written for the CPU with their tensors on `cuda:0` of the stand-ins, at one and
two ranks, and says of each case what came of it.

    survey.py BUILD [--tests REGEX] [--limit SECONDS] [--out FILE]

A test is run as a whole first. Cases that have no result then, because the program died, raced or was
not at its end within the limit, are run one by one. FILE gets a line for each case, with tabs: test,
ranks, outcome, seconds, case, what failed first. A case that FILE has is not run again. What was built
is what is run: build before.
"""

import argparse
import collections
import html
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
CASE = re.compile(r'<TestCase name="(.*?)"(.*?)(?=<TestCase |</doctest>|\Z)', re.DOTALL)
END = re.compile(r'<OverallResultsAsserts [^>]*test_case_success="(\w+)"')
FAILURE = re.compile(
    r'<Expression success="false".*?filename="([^"]*)" line="(\d+)".*?<Original>(.*?)</Original>'
    r"(.*?)</Expression>|<Exception crash=[^>]*>(.*?)</Exception>",
    re.DOTALL,
)
STOPPED = "SIGTERM - "
RACED = "with-cuda-stand-in: failed: "
FAULT = re.compile(r"\b(race: .*|host access: .*)")


def registered(build, pattern):
    """{name: (launcher, command, environment)} of the tests with LibTorch that run on the CPU."""
    listing = subprocess.run(
        ["ctest", "--test-dir", build, "--show-only=json-v1", "-R", pattern],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = {}
    for test in json.loads(listing.stdout)["tests"]:
        properties = {each["name"]: each["value"] for each in test.get("properties", [])}
        command = test.get("command", [])
        at = next((i for i, word in enumerate(command) if word.endswith("torch_tests")), None)
        if at is None or "cuda" in properties.get("LABELS", []):
            continue
        name = re.sub(r"\.np\d+$", "", test["name"])
        environment = dict(each.split("=", 1) for each in properties["ENVIRONMENT"])
        found[name] = (command[:at], command[at:], environment)
    return found


def finished(command, environment, limit):
    """(exit code or None where it took longer, output) of a command. The limit is of each process's own
    time; the command may wait for the machine ten times as long."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/output", "w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **environment, "TMPDIR": folder},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1)),
        )  # fmt: skip
        try:
            code = process.wait(10 * limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(1)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read()


def first_failure(text):
    match = FAILURE.search(text)
    if not match:
        return ""
    file, line, original, rest, exception = match.groups()
    expanded = re.search(r"<Expanded>(.*?)</Expanded>", rest or "", re.DOTALL)
    thrown = re.search(r"<Exception>(.*?)</Exception>", rest or "", re.DOTALL)
    said = exception or (thrown or expanded or match).group(1)
    where = f"{pathlib.Path(file).name}:{line} {original.strip()}: " if file else ""
    return " ".join(html.unescape(where + said).split())[:400]


def outcomes(text):
    """{case: (whether all ranks passed, first failure)} of the cases that came to their end."""
    found = {}
    for name, body in CASE.findall(text):
        end = END.search(body)
        if not end or STOPPED in body:
            continue
        passed, why = found.get(html.unescape(name), (True, ""))
        found[html.unescape(name)] = (passed and end.group(1) == "true", why or first_failure(body))
    return found


class Survey:
    def __init__(self, arguments):
        self.limit = arguments.limit
        self.runner = [
            str(ROOT / "scripts/with-cuda-stand-in"), "--on-device",
            "--folder", f"{arguments.build}/tests/cuda_stand_in",
        ]  # fmt: skip
        self.out = open(arguments.out, "a+")
        self.out.seek(0)
        self.known = {tuple(line.split("\t")[i] for i in (0, 1, 4)) for line in self.out}
        self.counts = collections.Counter()

    def tell(self, name, ranks, case, outcome, seconds, why=""):
        line = "\t".join([name, str(ranks), outcome, f"{seconds:.1f}", case, why])
        self.out.write(line + "\n")
        self.out.flush()
        self.counts[outcome] += 1
        if outcome != "passed":
            print(line, flush=True)

    def run(self, name, ranks, launcher, command, environment):
        before = [*launcher[:-1], str(ranks)] if launcher else []
        program = [*self.runner, *before, *command, "--reporters=xml"]
        listing = finished([*command, "--list-test-cases", "--reporters=xml"], environment, 60)[1]
        cases = [html.unescape(case) for case in re.findall(r'<TestCase name="(.*?)"', listing)]
        cases = [case for case in cases if (name, str(ranks), case) not in self.known]
        if not cases:
            return
        start = time.monotonic()
        text = finished(program, environment, self.limit)[1]
        done = {} if RACED in text else outcomes(text)
        each = (time.monotonic() - start) / max(1, len(cases))
        for case in cases:
            if case in done:
                passed, why = done[case]
                self.tell(name, ranks, case, "passed" if passed else "failed", each, why)
            else:
                self.run_one(name, ranks, case, program, environment)

    def run_one(self, name, ranks, case, program, environment):
        start = time.monotonic()
        only = "--test-case=" + case.replace(",", "*")
        code, text = finished([*program, only], environment, self.limit)
        seconds = time.monotonic() - start
        passed, why = outcomes(text).get(case, (False, ""))
        fault = FAULT.search(text)
        if code is None or code == 128 + signal.SIGXCPU or "CPU time limit" in text:
            self.tell(name, ranks, case, "too long", seconds, why)
        elif code == 0 and passed:
            self.tell(name, ranks, case, "passed", seconds)
        else:
            last = " ".join(text.split())[-300:]
            outcome = "raced" if RACED in text else "failed"
            self.tell(name, ranks, case, outcome, seconds, why or (fault.group(1) if fault else last))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build")
    parser.add_argument("--tests", default=r"^sdk\.")
    parser.add_argument("--limit", type=int, default=120)
    parser.add_argument("--out", default="survey.tsv")
    arguments = parser.parse_args()
    survey = Survey(arguments)
    for name, (launcher, command, environment) in registered(arguments.build, arguments.tests).items():
        for ranks in (1, 2) if launcher else (1,):
            survey.run(name, ranks, launcher, command, environment)
    print(dict(survey.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
