"""E4: minutes from a clone to a training demo, minutes of continuous integration, seconds of a rebuild.

    e4.py [--quick] [--parts demo,ci,rebuild]

Each part works in a fresh clone of HEAD in a temporary folder, without compiler cache. `demo` runs scripts/demo and
stops the clock at its first step; `ci` runs .ci/run; `rebuild` builds the dev preset, then changes one source after
the other, drawn at random from the library, and builds the test program of its folder. --quick: three rebuilds in the
quick preset of this tree, which is built already. Prints a JSON line for each figure.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SEED = 539
LIMITS = {"demo": (6, "minutes"), "ci": (25, "minutes"), "rebuild": (15, "seconds")}


def line(part, value, **config):
    limit, unit = LIMITS[part]
    config = {"part": part, **config}
    print(json.dumps({"goal": "E4", "value": round(value, 2), "limit": limit, "unit": unit, "better": "lower",
                      "config": config}), flush=True)


def clone(folder):
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    return folder


def environment():
    return {**os.environ, "CCACHE_DISABLE": "1"}


def measure_demo(scratch):
    began = time.monotonic()
    tree = clone(os.path.join(scratch, "demo"))
    job = subprocess.Popen(["scripts/demo"], cwd=tree, env=environment(), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    trained = None
    for text in job.stdout:
        print(text, end="", file=sys.stderr)
        if trained is None and re.search(r"\] +1/\d+ +loss", text):
            trained = time.monotonic() - began
    if job.wait() != 0 or trained is None:
        sys.exit("E4: expected scripts/demo to train and to succeed; its output is above")
    line("demo", trained / 60, until="first step", whole_minutes=round((time.monotonic() - began) / 60, 2))


def measure_ci(scratch):
    tree = clone(os.path.join(scratch, "ci"))
    began = time.monotonic()
    code = subprocess.run([".ci/run"], cwd=tree, env=environment(), stdout=sys.stderr).returncode
    if code != 0:
        sys.exit(f"E4: expected .ci/run to succeed, found exit code {code}")
    line("ci", (time.monotonic() - began) / 60)


def library_sources(tree):
    listed = subprocess.run(["git", "-C", tree, "ls-files", "coordinator/*.cc", "metrics/*.cc", "sdk/src/*.cc"],
                            check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split() if "_main" not in path]


def test_program(path, targets):
    """The test program of the folder closest to a source."""
    if path.startswith("sdk/"):
        return "sdk_torch_tests"
    parts = os.path.dirname(path).removeprefix("coordinator/").split("/")
    while parts:
        name = "_".join(parts) + "_tests"
        if name in targets:
            return name
        parts.pop()
    return "runtime_tests"


def measure_rebuild(tree, preset, count):
    def build(*more):
        subprocess.run(["cmake", "--build", "--preset", preset, *more], cwd=tree, env=environment(), check=True,
                       stdout=sys.stderr)

    listed = subprocess.run(["ninja", "-C", f"build/{preset}", "-t", "targets", "all"], cwd=tree, check=True,
                            capture_output=True, text=True).stdout
    targets = set(re.findall(r"^(\w+_tests): phony", listed, re.M))
    sources = library_sources(tree)
    random.Random(SEED).shuffle(sources)
    seconds = []
    for path in sources[:count]:
        program = test_program(path, targets)
        build("--target", program)
        with open(os.path.join(tree, path), "a", encoding="utf-8") as file:
            file.write("// Changed.\n")
        began = time.monotonic()
        build("--target", program)
        seconds.append(time.monotonic() - began)
        subprocess.run(["git", "-C", tree, "checkout", "-q", "--", path], check=True)
        print(f"{path}: {program} {seconds[-1]:.1f} s", file=sys.stderr)
    line("rebuild", statistics.median(seconds), preset=preset, files=count, least=round(min(seconds), 1),
         most=round(max(seconds), 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", default="demo,ci,rebuild")
    options = parser.parse_args()
    if options.quick:
        return measure_rebuild(ROOT, "quick", 3)
    scratch = tempfile.mkdtemp(prefix="cox-e4-")
    try:
        parts = options.parts.split(",")
        if "demo" in parts:
            measure_demo(scratch)
        if "ci" in parts:
            measure_ci(scratch)
        if "rebuild" in parts:
            tree = clone(os.path.join(scratch, "dev"))
            subprocess.run(["cmake", "--preset", "dev"], cwd=tree, check=True, stdout=sys.stderr)
            measure_rebuild(tree, "dev", 10)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
