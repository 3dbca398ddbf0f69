"""What the examples of the pages print: checked where they run and where pages show it.

    results.py run CASE COMMAND...       COMMAND ends well and prints the lines of CASE, no others
    results.py refused CASE COMMAND...   COMMAND ends with an error of one line: that of CASE
    results.py pages ROOT                so do pages that show output under `<!-- prints: CASE -->`

A number in a line is given as the range in which it has to lie: {least..most}.
"""

import os
import re
import subprocess
import sys

import pages

# A case is an example or, where its ranks or settings matter, EXAMPLE.alone and the like.
CASES = {
    "quick_start": ["loss {0..0.1}"],  # 0.5 before the first step
    "watch_only.alone": ["rank 0: loss {0..0.05}"],
    "watch_only.np2": ["rank 0: loss {0..0.05}", "rank 1: loss {0..0.05}"],
    "own_loop": ["loss {0..0.2} over all ranks"],  # about 8 before the first step
    "custom_policy.alone": ["0 plans; "],
    "custom_policy.np2": ["{1..20} plans; shares follow the speed of the ranks; the largest one "
                          "changes by {10..1000} %"],
    "custom_policy.observe": ["0 plans; shares follow the speed of the ranks; the largest one "
                              "changes by {10..1000} %"],
    # Kept, all blocks take 17 MiB and more on one rank; half of it, within the budget, on two.
    "memory_budget.alone": ["loss {0..0.1}; peak {0..10} MiB, {7..13} MiB less than with every block "
                            "kept, +{0..400} % time"],
    "memory_budget.np2": ["loss {0..0.1}; peak {0..10} MiB, {0..5} MiB less than with every block "
                          "kept, +{0..400} % time"],
    "memory_budget.refused": ["error: rank 0: the budget of rank 0, 2.0 MiB, cannot be met: the smallest "
                              "peak is {3..8} MiB, {1..6} MiB more; give it at least {3..8} MiB or make "
                              "the micro-batch smaller"],
    "mixed_precision": ["loss {0..0.05}, with averaged weights {0..0.05}; scale {4096..1048576}, "
                        "{1..10} steps skipped"],
    "micro_batches": ["loss {0..0.15}"],  # 2 before the first step
    "gan": ["mean of the generated samples {2.8..3.2}"],
    "adopt.alone": ["rank 0: loss {0..0.35}"],  # 0.7 before the first step
    "adopt.np2": ["rank 0: loss {0..0.35}", "rank 1: loss {0..0.35}"],
    # 0.7 before the first step
    "keep.alone": ["rank 0: loss {0..0.5}"],
    "keep.np2": ["rank 0: loss {0..0.5}", "rank 1: loss {0..0.5}"],
    "fit": ["8 epochs, loss {0.0001..0.005} on the held-out data"],
}
RANGE = re.compile(r"\{([\d.]+)\.\.([\d.]+)\}")
SHOWN = re.compile(r"^<!-- prints: (\S+) -->\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def lines_of(case):
    return CASES.get(case) or CASES[case.partition(".")[0]]


def line_finding(expected, found):
    """Why `found` is not the line that is expected, or None."""
    ranges = RANGE.findall(expected)
    pattern = r"([\d.e+-]+)".join(re.escape(part) for part in RANGE.split(expected)[::3])
    match = re.fullmatch(pattern, found)
    numbers = match and zip(map(float, match.groups()), ranges)
    if match and all(float(least) <= number <= float(most) for number, (least, most) in numbers):
        return None
    return f"expected '{expected}', found '{found}'"


def findings(case, text):
    expected, found = lines_of(case), sorted(text.splitlines())  # ranks print in any order
    if len(found) != len(expected):
        return [f"{case}: expected {len(expected)} lines, found {len(found)}: {found}"]
    pairs = map(line_finding, expected, found)
    return [f"{case}: {finding}" for finding in pairs if finding]


def page_findings(root):
    """Also where no page shows or quotes an example that has a case."""
    texts = {path: pages.read(root, path) for path in pages.page_files(root)}
    for path, text in texts.items():
        for case, shown in SHOWN.findall(text):
            yield from (f"{path}: {finding}" for finding in findings(case, shown))
    for case in CASES:
        example = case.partition(".")[0]
        if not any(f"sdk/examples/{example}.cc" in text for text in texts.values()):
            yield f"{case}: expected a page that names sdk/examples/{example}.cc, found none"


def run(case, command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode != 0:
        return [f"{case}: expected exit code 0, found {done.returncode}"]
    return findings(case, done.stdout)


def refused(case, command):
    """A clause that says which plan comes nearest follows a semicolon and depends on times."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stderr, end="")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    if done.returncode == 0 or done.stdout or len(errors) != 1:
        return [f"{case}: expected an error of one line and no result, found {done}"]
    return findings(case, ";".join(errors[0].split(";")[:2]))


def main():
    what, argument, *command = sys.argv[1:]
    if what == "pages":
        found = list(page_findings(os.path.abspath(argument)))
    else:
        found = {"run": run, "refused": refused}[what](argument, command)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
