"""One place of the library opens files for writing: coordinator/io/open_to_write.

    writers.py ROOT

That place follows no link in the last component of a path, and io::OutputFile on top of it changes no file that has
other names. Prints each line of the library and the examples that opens, cuts or copies a file by other means, and
exits 1 if there was one.
"""

import re
import sys

import tree

FOLDERS = ("coordinator/", "metrics/", "sdk/")
PLACE = "coordinator/io/open_to_write."
INCLUDE = re.compile(r"^ *#include.*$", re.MULTILINE)
WRITES = re.compile(
    r"\bO_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b"
    r"|\bw?(?:ofstream|fstream|filebuf)\b"
    r"|\b(?:fopen|freopen|creat|mko?stemps?|tmpfile|truncate|resize_file|copy_file)(?= *\()"
)


def violations(root):
    for path in tree.cpp_files(root):
        if not path.startswith(FOLDERS) or path.startswith(PLACE):
            continue
        text = INCLUDE.sub("", tree.blank_comments_and_strings(tree.read(root, path)))
        for match in WRITES.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match.group()}: files are opened for writing by {PLACE}h"


def main():
    found = list(violations(sys.argv[1]))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
