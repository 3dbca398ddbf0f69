"""Proves that the pages say what the tree does.

    check_blocks.py ROOT [--cox PROGRAM] [--write]

For README.md, docs/ and dashboards/: quoted blocks equal the marked regions of their files, commands
name scripts, options, presets and settings that exist, relative links, anchors, images and paths in
backticks lead somewhere, and .ci/run executes README's test command. With the `cox` program it also compares the table of settings with what
`cox config --markdown` prints. Prints each finding and exits 1 if there was one. --write first
brings quoted blocks and the table up to date.

A quoted block follows a line `<!-- from FILE:REGION -->`; in FILE the region lies between the lines
`// [REGION]` and `// [/REGION]` (`#` in CMake and Python). Its common indentation is dropped.
"""

import argparse
import os
import re
import subprocess
import sys
import textwrap

import commands
import pages

QUOTED = ("cpp", "cmake", "proto", "ini", "python")  # always come from a file
PLAIN = ("text", "json")  # output and drawings
TABLE = "docs/configuration.md"
QUOTE = re.compile(r"(^<!-- from (\S+):(\S+) -->\n```\w+\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)
GENERATED = re.compile(r"<!-- begin: cox config --markdown -->\n(.*?)<!-- end -->", re.DOTALL)


def region_of(text, name):
    """The lines between the marks of a region, or None."""
    mark = r"^[ \t]*(?://|#) \[%s\][ \t]*\n"
    begin = re.search(mark % re.escape(name), text, re.MULTILINE)
    end = re.search(mark % ("/" + re.escape(name)), text + "\n", re.MULTILINE)
    if not begin or not end or end.start() < begin.end():
        return None
    return textwrap.dedent(text[begin.end() : end.start()]).strip("\n")


def first_difference(expected, found):
    for number, (a, b) in enumerate(zip(expected, found), 1):
        if a != b:
            return f"line {number} of the block: expected '{a}', found '{b}'"
    return f"expected {len(expected)} lines, found {len(found)}"


def quote_findings(root, block):
    if not block.source:
        yield f"expected `<!-- from FILE:REGION -->` before a {block.language} block, found none"
        return
    path, _, region = block.source.partition(":")
    if not os.path.isfile(os.path.join(root, path)):
        yield f"quotes {path}, which does not exist"
        return
    text = region_of(pages.read(root, path), region)
    if text is None:
        yield f"quotes [{region}] of {path}, which has no such region"
    elif text != block.text:
        difference = first_difference(text.split("\n"), block.text.split("\n"))
        yield f"is not what {path} has between [{region}] marks: {difference}"


def block_findings(root, page, tree):
    for block in page.blocks:
        if block.source or block.language in QUOTED:
            found = quote_findings(root, block)
        elif block.language == "sh":
            found = commands.findings(tree, block.text)
        elif block.language in PLAIN:
            found = ()
        else:
            known = ", ".join(QUOTED + ("sh",) + PLAIN)
            found = (f"block language: expected one of {known}, found '{block.language}'",)
        for finding in found:
            yield f"{page.path}:{block.line}: {finding}"


def link_findings(root, page):
    for line, target in page.links:
        path, _, anchor = target.partition("#")
        whole = os.path.normpath(os.path.join(os.path.dirname(page.path), path)) if path else page.path
        if not os.path.exists(os.path.join(root, whole)):
            yield f"{page.path}:{line}: a link to {target}, which does not exist"
        elif anchor and anchor not in pages.anchors(pages.read(root, whole)):
            yield f"{page.path}:{line}: a link to {target}: no such heading"


def path_findings(root, page):
    for line, path in page.paths:
        if not os.path.exists(os.path.join(root, path)):
            yield f"{page.path}:{line}: names {path}, which does not exist"


def ci_findings(root):
    """Continuous integration runs the test command that README shows a stranger."""
    if not os.path.isfile(os.path.join(root, ".ci/run")):
        return
    page = pages.parse("README.md", pages.read(root, "README.md"))
    lines = "\n".join(block.text for block in page.blocks if block.language == "sh").split("\n")
    shown = [line.split("#")[0].strip() for line in lines if line.startswith("scripts/test")]
    run = pages.read(root, ".ci/run").split("\n")
    if len(shown) != 1 or f"exec {shown[0]}" not in run:
        yield f".ci/run: expected a line 'exec ' with README's test command {shown}"


def printed_table(cox):
    command = [cox, "config", "--markdown"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def table_findings(root, cox):
    match = GENERATED.search(pages.read(root, TABLE))
    if not match:
        yield f"{TABLE}: expected a table between `<!-- begin: cox config --markdown -->` and the end"
        return
    printed = printed_table(cox)
    if match.group(1).strip() != printed.strip():
        difference = first_difference(printed.strip().split("\n"), match.group(1).strip().split("\n"))
        yield f"{TABLE}: run `cox config --markdown` again: {difference}"


def findings(root, cox=None):
    tree = commands.Tree(root)
    for path in pages.page_files(root):
        page = pages.parse(path, pages.read(root, path))
        yield from block_findings(root, page, tree)
        yield from link_findings(root, page)
        yield from path_findings(root, page)
    yield from ci_findings(root)
    if cox:
        yield from table_findings(root, cox)


def rewritten(root, text, cox):
    """The page with its quotes and its table as they should be."""

    def quoted(match):
        file = os.path.join(root, match.group(2))
        region = region_of(pages.read(root, match.group(2)), match.group(3)) if os.path.isfile(file) else None
        return match.group(0) if region is None else match.group(1) + region + "\n" + match.group(5)

    text = QUOTE.sub(quoted, text)
    if not cox:
        return text
    begin, end = "<!-- begin: cox config --markdown -->\n", "<!-- end -->"
    return GENERATED.sub(lambda _: begin + printed_table(cox) + end, text)


def write(root, cox):
    for path in pages.page_files(root):
        text = rewritten(root, pages.read(root, path), cox)
        with open(os.path.join(root, path), "w", encoding="utf-8") as file:
            file.write(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--cox")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    root = os.path.abspath(arguments.root)
    if arguments.write:
        write(root, arguments.cox)
    found = list(findings(root, arguments.cox))
    count = len(pages.page_files(root))
    print("\n".join(found) if found else f"{count} pages: blocks, commands, links and paths are true")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
