"""The files that the layering tests read, and C++ text without its comments and strings."""

import os
import re

SOURCE_FOLDERS = ("coordinator", "metrics", "sdk", "tests")
CPP = (".h", ".cc")
SKIPPED_FOLDERS = {".git", "build", "runs", "__pycache__"}


def files(root, folders=("",)):
    """Paths relative to root, sorted, of all files below the given folders."""
    found = []
    for folder in folders:
        for base, names, leaves in os.walk(os.path.join(root, folder)):
            names[:] = sorted(name for name in names if name not in SKIPPED_FOLDERS)
            found += [os.path.relpath(os.path.join(base, leaf), root) for leaf in sorted(leaves)]
    return found


def cpp_files(root):
    return [path for path in files(root, SOURCE_FOLDERS) if path.endswith(CPP)]


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


_TOKENS = re.compile(
    r"""//[^\n]*
      | /\*.*?\*/
      | R"(?P<tag>[^(\s]{0,16})\(.*?\)(?P=tag)"
      | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'
    """,
    re.DOTALL | re.VERBOSE,
)


def blank_comments_and_strings(text):
    """The same text, line for line, with comments and literals turned into spaces."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    return _TOKENS.sub(blank, text)
