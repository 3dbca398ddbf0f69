"""Every C++ file is as clang-format leaves it.

    format.py ROOT CLANG_FORMAT
"""

import subprocess
import sys

import tree


def main():
    root, clang_format = sys.argv[1:]
    files = tree.cpp_files(root)
    if not files:
        print("expected C++ files, found none")
        return 1
    run = subprocess.run(
        [clang_format, "--dry-run", "--Werror", *files], cwd=root, capture_output=True, text=True
    )
    wrong = sorted({line.split(":")[0] for line in run.stderr.splitlines() if ": error:" in line})
    for path in wrong:
        print(f"{path}: not formatted; run clang-format-14 -i {path}")
    if run.returncode != 0 and not wrong:
        print(run.stderr)
    return 1 if run.returncode != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
