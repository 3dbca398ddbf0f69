"""No text of the libraries depends on the program's locale, which may write numbers with commas, and
no library has a printf of its own.

    locales.py ROOT

Prints each call that breaks a rule and exits 1 if there was one. Texts with numbers are made by
concat() of coordinator/core, or by fmt in metrics; numbers are read by from_chars.
"""

import re
import sys

import tree

LIBRARIES = ("coordinator/", "metrics/", "sdk/include/", "sdk/src/")

DEPENDENT = re.compile(
    r"""\b(v?(?:sn?|f|d)?printf            # numbers with the locale's decimal point
      | v?[sf]?scanf
      | (?:std::)?(?:strto(?:d|f|ld)|ato[fil]|sto(?:d|f|ld|i|l|ul|ll|ull))
      | (?:std::)?[io]?stringstream | std::cout | std::cerr | std::clog
      | setlocale | std::locale | imbue | strftime | std::put_time
      | (?:std::)?(?:to(?:upper|lower)|is(?:alnum|alpha|digit|lower|upper|punct|space|xdigit))
      | (?:std::)?strerror(?:_r)?
      | (?:generic|system)_category\(\)\.message
      )\s*[({\s]""",
    re.VERBOSE,
)

# sentence() was a printf of the coordinator, with 160 lines of its own.
OWN_PRINTF = re.compile(r"\b(sentence)\s*\(|\b(gnu::format)\b|\b(va_start)\s*\(")

# Path -> what it may use, because no text of ours comes of it.
EXCEPTIONS = {
    # The text that modules print of themselves is hashed, in the classic locale.
    "sdk/src/training/equal_ranks.cc": ("std::ostringstream", "imbue", "std::locale"),
}


def violations(root):
    for path in tree.cpp_files(root):
        if not path.startswith(LIBRARIES):
            continue
        clean = tree.blank_comments_and_strings(tree.read(root, path))
        for match in DEPENDENT.finditer(clean):
            if match.group(1) in EXCEPTIONS.get(path, ()):
                continue
            line = clean.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: expected nothing that depends on the locale, found {match.group(1)}"
        for match in OWN_PRINTF.finditer(clean):
            line = clean.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: expected concat() or fmt::format(), found {match.group(0)}"


def main():
    found = list(violations(sys.argv[1]))
    print("\n".join(found) or "no text depends on the locale, no printf of our own")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
