"""Each source and each header compiles without its unity neighbours.

    alone.py ROOT BUILD [--all | --limit N] [FILE...]

A unity build hides names that are ambiguous in a file of their own, and includes that a neighbour brings. This
check asks the compiler to parse files one at a time, with the flags that the build folder has for them. FILE names
them; --all takes all of the tree; otherwise the files that the newest COMMITS commits changed, at most N of them,
newest first. Prints the errors of each file that fails, and exits 1 if there was one.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

import tree

COMMITS = 20
UNITY_INCLUDE = re.compile(r'^#include "(/[^"]+)"', re.MULTILINE)
# Generated beside compile commands, or compiled by other means than the build's own.
SKIPPED = ("tests/packaging/",)


def sources_of(entry):
    """The sources behind one compile command: itself, or what a unity source includes."""
    file = entry["file"]
    if "/Unity/unity_" not in file:
        return [file]
    with open(file, encoding="utf-8") as unity:
        return [path for path in UNITY_INCLUDE.findall(unity.read()) if path.endswith(".cc")]


def flags_of(entry):
    """The compiler and its flags, without ccache, the source, and the object file."""
    words = shlex.split(entry["command"])
    compiler = next(i for i, word in enumerate(words) if re.search(r"(^|/)(c\+\+|g\+\+|clang\+\+)[-.\d]*$", word))
    kept = []
    words = iter(words[compiler:])
    for word in words:
        if word in ("-o", "-c"):
            next(words)
        else:
            kept.append(word)
    return kept + ["-fsyntax-only", "-fno-implicit-templates"]


def flags_by_file(root, build):
    """Path from the root -> (folder to run in, flags), for each source that the build compiles."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        for source in sources_of(entry):
            found[os.path.relpath(source, root)] = (entry["directory"], flags_of(entry))
    return found


def flags_for(path, known):
    """A header is compiled as the source beside it, or as a source of the folder closest to it."""
    if path in known:
        return known[path]
    candidates = [source for source in known if not source.startswith("..")]

    def closeness(source):
        return len(os.path.commonprefix([os.path.dirname(source) + "/", os.path.dirname(path) + "/"]))

    beside = path[: -len(".h")] + ".cc"
    return known[beside] if beside in known else known[max(sorted(candidates), key=closeness)]


def changed_files(root):
    """Files that the newest commits changed, newest first; None without git."""
    command = ["git", "-C", root, "log", f"-{COMMITS}", "--name-only", "--format="]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        return None
    return list(dict.fromkeys(run.stdout.split()))


def compile_alone(root, path, known):
    folder, flags = flags_for(path, known)
    # A header is included by an empty source, because warnings about a main file do not concern it.
    command = flags + (["-x", "c++", "-"] if path.endswith(".h") else [os.path.join(root, path)])
    text = f'#include "{os.path.join(root, path)}"\n' if path.endswith(".h") else ""
    run = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True)
    errors = [line for line in run.stderr.splitlines() if re.search(r"error:|warning:", line)]
    return [] if run.returncode == 0 else errors or run.stderr.splitlines()[:5] or [f"{path}: the compiler failed"]


def part_of(path):
    """The part of the tree that a build has or leaves out: sdk, tests/sdk."""
    folders = path.split("/")[:-1]
    return "/".join(folders[: 2 if folders[:1] == ["tests"] else 1])


def chosen(root, arguments, known):
    files = [path for path in tree.cpp_files(root) if not path.startswith(SKIPPED)]
    parts = {part_of(source) for source in known}
    files = [path for path in files if path in known or (path.endswith(".h") and part_of(path) in parts)]
    if arguments.all:
        return files
    wanted = [os.path.relpath(os.path.join(root, path), root) for path in arguments.file] or changed_files(root)
    if wanted is None:
        print("skipped: git does not know which files changed")
        return []
    existing = [path for path in wanted if path in set(files)]
    if len(existing) > arguments.limit:
        print(f"{len(existing) - arguments.limit} changed files are left out, the oldest; --all takes every file")
    return existing[: arguments.limit]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("build")
    parser.add_argument("file", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--limit", type=int, default=8)
    arguments = parser.parse_args()
    root, build = os.path.abspath(arguments.root), os.path.abspath(arguments.build)
    known = flags_by_file(root, build)
    files = chosen(root, arguments, known)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for path, errors in zip(files, pool.map(lambda path: compile_alone(root, path, known), files)):
            if errors:
                failed += 1
                print(f"{path}: does not compile alone:", *errors[:6], sep="\n  ")
    print(f"{len(files)} files compiled alone, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
