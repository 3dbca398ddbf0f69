"""Sources give the templates of metrics/pages the names that they use, and no others.

    names.py ROOT

Reads the templates and the C++ sources of pages that no section of a topic makes; sections are checked by
metrics.pages, on the values themselves. Prints each name that is given and not used, or used and not given, and exits 1
if there was one.
"""
import os
import re
import sys

PAGES = {
    "report.html": ("metrics/command/analysis_page.cc", "metrics/command/analysis_charts.cc"),
    "whatif.html": ("metrics/command/whatif_page.cc",),
    "rank.html": ("metrics/rank_page.cc",),
    "status.html": ("metrics/status_page.cc",),
}
# Values of parts that several pages share, which metrics.pages checks, and lists of words in braces.
SHARED = ("metrics/pages/values.cc", "metrics/sparkline.cc", "metrics/topics/heat_map.cc", "metrics/topics/findings.cc",
          "metrics/topics/ranks_section.cc")
WORDS = {"data", "forward", "backward", "compute", "other", "optimizer", "part"}
OTHER_FILES = {"status.html": ("status_head.html", "notes.html", "pair.html", "index.html", "title.html")}


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def used_by(folder, page):
    marks = re.findall(r"\{\{([#^/>]?)([^}]+)\}\}", read(folder, page))
    names = {name for kind, name in marks if kind != ">"}
    for part in {name for kind, name in marks if kind == ">"} - {"status.css", "report.css", "report.js", "whatif.css"}:
        names |= used_by(folder, part)
    return names


def given_in(text):
    return set(re.findall(r'(?:\{|\.add\()"([a-z_0-9]+)",\s', text))


def main(root):
    folder = os.path.join(root, "metrics", "pages")
    shared = set().union(*(given_in(read(root, path)) for path in SHARED))
    faults = 0
    for page, sources in PAGES.items():
        used = set().union(*(used_by(folder, file) for file in (page, *OTHER_FILES.get(page, ()))))
        given = set().union(*(given_in(read(root, path)) for path in sources))
        for name in sorted(given - used - WORDS):
            print(f"{page}: {name} is given and not used")
            faults += 1
        for name in sorted(used - given - shared):
            print(f"{page}: {name} is used and not given")
            faults += 1
    return faults


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1]) else 0)
