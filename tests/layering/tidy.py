"""Runs clang-tidy, with the checks of .clang-tidy, on the sources of a build folder.

    tidy.py ROOT BUILD [--clang-tidy PROGRAM] [FILE...]

BUILD has one compile command for each source: no unity sources, no precompiled headers. FILE names sources.
Otherwise the program takes every source that does not include LibTorch. Sources with LibTorch take five times as
long, so it takes those that the newest commits changed, and the first one of each folder. Prints each finding once,
and exits 1 if there was one.
"""

import argparse
import concurrent.futures
import functools
import os
import re
import subprocess
import sys

import alone
import tree

INCLUDE = re.compile(r'^#\s*include\s+([<"])([^">]+)[">]', re.MULTILINE)
LIBTORCH = ("torch/", "ATen/", "c10/")
FINDING = re.compile(r"^(/[^:]+:\d+:\d+: (?:warning|error): .*)$", re.MULTILINE)


class Sources:
    """The sources of the tree, with what each includes."""

    def __init__(self, root):
        self.root = root
        self.places = ("", "sdk/include", "tests/support")

    def resolve(self, name, user):
        places = (os.path.dirname(user), *self.places)
        return next((path for path in (os.path.normpath(os.path.join(place, name)) for place in places)
                     if os.path.isfile(os.path.join(self.root, path))), None)

    @functools.lru_cache(maxsize=None)
    def needs_libtorch(self, path):
        for _, name in INCLUDE.findall(tree.read(self.root, path)):
            if name.startswith(LIBTORCH):
                return True
            included = self.resolve(name, path)
            if included and included != path and self.needs_libtorch(included):
                return True
        return False


def chosen(root, build, wanted):
    """Paths of sources from the root. Generated ones, below BUILD, are left out."""
    if wanted:
        return [os.path.relpath(os.path.abspath(path), root) for path in wanted]
    sources = Sources(root)
    changed = set(alone.changed_files(root) or ())
    files, folders = [], set()
    known = alone.flags_by_file(root, build)
    for path in sorted(path for path in tree.cpp_files(root) if path in known):
        is_slow = sources.needs_libtorch(path)
        if not is_slow or path in changed or os.path.dirname(path) not in folders:
            files.append(path)
        if is_slow:
            folders.add(os.path.dirname(path))
    return files


def findings(program, root, build, path):
    command = [program, "-p", build, "--quiet", os.path.join(root, path)]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True)
    found = FINDING.findall(run.stdout)
    if run.returncode != 0 and not found:
        return (run.stderr or run.stdout).splitlines()[-5:] or [f"{path}: {program} failed"]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("build")
    parser.add_argument("file", nargs="*")
    parser.add_argument("--clang-tidy", default="clang-tidy-16")
    arguments = parser.parse_args()
    root, build = os.path.abspath(arguments.root), os.path.abspath(arguments.build)
    files = chosen(root, build, arguments.file)
    told = set()
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for lines in pool.map(lambda path: findings(arguments.clang_tidy, root, build, path), files):
            for line in lines:
                if line not in told:
                    told.add(line)
                    print(line, flush=True)
    print(f"{len(files)} sources, {len(told)} findings")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
