"""Comments begin with the thing that acts.

    prose.py ROOT [--list]

Counts the comment blocks whose first word leaves a reader without a subject, and exits 1 if there are more
than LIMIT, which only falls. --list prints them.
"""

import re
import sys

import tree

LIMIT = 0
OPENING = re.compile(r"(What|Of|Where|How|Who|Whose|Whoever|Nobody|Which|That|It|Its|They|The thing that|This is what)\b")
COMMENT = re.compile(r"\s*//+\s?(.*)")


def blocks(text):
    """(line, text) of each block of comment lines, and of each comment behind code."""
    found, begin = [], None
    for number, line in enumerate(text.split("\n"), 1):
        match = COMMENT.fullmatch(line)
        if match is None:
            begin = None
            behind = re.search(r"\s// (.*)", line)
            if behind and '"' not in line[: behind.start()]:
                found.append([number, behind[1]])
        elif begin is None and match[1]:
            begin = number
            found.append([number, match[1]])
    return found


def violations(root):
    for path in tree.cpp_files(root):
        for line, text in blocks(tree.read(root, path)):
            if OPENING.match(text):
                yield f"{path}:{line}: expected a comment that begins with its subject, found: {text[:60]}"


def main():
    found = list(violations(sys.argv[1]))
    if len(found) > LIMIT or "--list" in sys.argv:
        print("\n".join(found))
    print(f"{len(found)} comments without a subject at their beginning, at most {LIMIT}")
    return 1 if len(found) > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
