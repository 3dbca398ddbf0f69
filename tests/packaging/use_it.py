"""Does what docs/use-it.md says, as it says it: installs the build, writes the page's two files, runs the
page's commands, and expects the page's output.

    use_it.py ROOT BUILD WORK

ROOT is the tree, BUILD a build of it that stands for the page's build/release, WORK an empty place that
stands for the reader's home. The lines that install packages and build the tree are not run again; the
target that they name is looked at instead.
"""

import os
import re
import shutil
import subprocess
import sys

root, build, work = map(os.path.abspath, sys.argv[1:4])
sys.path.insert(0, os.path.join(root, "tests", "docs"))
import pages  # noqa: E402

PAGE = "docs/use-it.md"
RESULT = re.compile(r"(\d) ranks?: loss (\d\.\d{4})")
LARGEST_LOSS = 0.01  # about 1.3 before the first step


def run(command, folder):
    print(f"{folder}$ {command}", flush=True)
    done = subprocess.run(command, shell=True, cwd=folder, env=dict(os.environ, HOME=work), check=False,
                          stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        sys.exit(f"{PAGE}: expected exit code 0 of '{command}', found {done.returncode}")
    return done.stdout


def files_of(text):
    """The blocks that follow a line such as "`train.cc`:", by that name."""
    named = r"^`([\w.]+)`:\n\n<!-- from \S+ -->\n```\w+\n(.*?)^```$"
    return dict(re.findall(named, text, re.MULTILINE | re.DOTALL))


def check_target(line):
    """Whether the target that the page builds has all that is installed."""
    target = re.search(r"--target (\w+)", line).group(1)
    inputs = run(f"ninja -t query {target}", build)
    installed = [name for folder, _, names in os.walk(os.path.join(work, "coxswain"))
                 for name in names if name.endswith((".a", ".so")) or folder.endswith("/bin")]
    missing = [name for name in installed if not re.search(rf"(^|[/ ]){re.escape(name)}$", inputs, re.M)]
    if not installed or missing:
        sys.exit(f"{PAGE}: expected that --target {target} builds what is installed, found that it lacks "
                 f"{missing} of {installed}")


def results_of(text):
    return [(int(ranks), float(loss)) for ranks, loss in RESULT.findall(text)]


def main():
    shutil.rmtree(work, ignore_errors=True)
    project = os.path.join(work, "project")
    os.makedirs(project)
    text = pages.read(root, PAGE)
    for name, body in files_of(text).items():
        with open(os.path.join(project, name), "w", encoding="utf-8") as file:
            file.write(body)
    blocks = pages.parse(PAGE, text).blocks
    tree, own, setting = [b.text.strip().split("\n") for b in blocks if b.language == "sh"]
    shown = next(results_of(b.text) for b in blocks if b.language == "text")

    *made, install = tree
    run(install.replace("build/release", build), root)
    check_target(made[-1])
    printed = results_of("".join(run(line, project) for line in own))
    printed += results_of("".join(run(line, project) for line in setting))
    if [ranks for ranks, _ in shown] != [1, 2] or [ranks for ranks, _ in printed] != [1, 2, 1]:
        sys.exit(f"{PAGE}: expected results of 1 and 2 ranks, shown {shown} and printed {printed}")
    if max(loss for _, loss in shown + printed) > LARGEST_LOSS:
        sys.exit(f"{PAGE}: expected losses of at most {LARGEST_LOSS}, shown {shown} and printed {printed}")
    if not os.path.isfile(os.path.join(project, "runs", "first", "rank0", "run.json")):
        sys.exit(f"{PAGE}: expected a run directory where the setting names it, found none")


if __name__ == "__main__":
    main()
