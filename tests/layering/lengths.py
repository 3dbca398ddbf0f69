"""Files of at most 600 lines, functions of at most 60, and no marks of unfinished work.

    lengths.py ROOT

Prints each file and function that is too long and exits 1 if there was one.
"""

import re
import sys

import tree

MAX_FILE = 600
MAX_FUNCTION = 60
CODE = (".h", ".cc", ".cu", ".py", ".cmake", ".proto", "CMakeLists.txt")
CODE_FOLDERS = ("scripts/", ".ci/")

# Spelled so that this file does not find itself.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|XX[X]|HAC[K])\b|(?i:(not|un) ?implement[e]d)")
MACHINE_PATH = re.compile(r"(?<![A-Za-z0-9_.$}/-])/(work|farm|root)/")
TEXT = CODE + (".md", ".txt", ".json", ".yml", ".yaml", ".html", ".in", ".supp")

# What opens a brace that is not a function's: a type, a namespace, an initialiser, a doctest suite.
NOT_A_FUNCTION = re.compile(
    r"\b(namespace|class|struct|union|enum|extern|concept)\b[^;()]*$|TEST_SUITE(_BEGIN)?\s*\(|=\s*$"
)
PREPROCESSOR_OR_ALIGNAS = re.compile(
    r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|\balignas\s*\([^)]*\)", re.MULTILINE
)


def functions(text):
    """(first line, last line) of each outermost function body with its signature."""
    clean = tree.blank_comments_and_strings(text)
    clean = PREPROCESSOR_OR_ALIGNAS.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), clean)
    found = []
    inside = []  # for each open brace: where its function began, or None
    start = 0
    depth_of_function = None
    for match in re.finditer(r"[{};]", clean):
        at = match.start()
        if match.group(0) == "{":
            head = clean[start:at]
            if depth_of_function is None and "(" in head and not NOT_A_FUNCTION.search(head):
                depth_of_function = len(inside)
                inside.append(start + len(head) - len(head.lstrip()))
            else:
                inside.append(None)
        elif match.group(0) == "}" and inside:
            began = inside.pop()
            if began is not None:
                depth_of_function = None
                if re.match(r"\s*[,{]", clean[at + 1 : at + 200]):
                    continue  # a member's initialiser: the body is still to come
                found.append((clean.count("\n", 0, began) + 1, clean.count("\n", 0, at) + 1))
        if depth_of_function is None:
            start = at + 1
    return found


def is_code(path):
    return path.endswith(CODE) or path.startswith(CODE_FOLDERS)


def length_violations(root, path, text):
    lines = text.count("\n")
    if lines > MAX_FILE:
        yield f"{path}: expected at most {MAX_FILE} lines, found {lines}: split it"
    if path.endswith(tree.CPP):
        for first, last in functions(text):
            if last - first + 1 > MAX_FUNCTION:
                yield (
                    f"{path}:{first}: expected a function of at most {MAX_FUNCTION} lines, "
                    f"found {last - first + 1}: split it"
                )


def mark_violations(path, text):
    for number, line in enumerate(text.splitlines(), 1):
        if is_code(path) and UNFINISHED.search(line):
            yield f"{path}:{number}: a mark of unfinished work: {line.strip()[:80]}"
        if MACHINE_PATH.search(line):
            yield f"{path}:{number}: an absolute path of some machine: {line.strip()[:80]}"


def violations(root):
    for path in tree.files(root):
        if is_code(path) or path.endswith(TEXT):
            text = tree.read(root, path)
            if is_code(path):
                yield from length_violations(root, path, text)
            yield from mark_violations(path, text)


def overview(root):
    """Sizes for people: median and largest of files and functions."""
    sizes = sorted(tree.read(root, path).count("\n") for path in tree.cpp_files(root))
    spans = sorted(
        last - first + 1
        for path in tree.cpp_files(root)
        for first, last in functions(tree.read(root, path))
    )
    for name, values in (("files", sizes), ("functions", spans)):
        if values:
            print(
                f"{len(values)} {name}, lines: median {values[len(values) // 2]}, "
                f"p90 {values[len(values) * 9 // 10]}, max {values[-1]}"
            )


def main():
    root = sys.argv[1]
    found = list(violations(root))
    overview(root)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
