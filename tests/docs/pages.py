"""Markdown pages as data: fenced blocks, links, paths in backticks, anchors of headings."""

import os
import re
import textwrap
from dataclasses import dataclass, field

FOLDERS = ("docs", "dashboards")
TOP = ("coordinator", "sdk", "metrics", "dashboards", "tests", "scripts", "cmake", "docs")

FENCE = re.compile(r"^ *(`{3,})([\w+-]*)\s*$")
SOURCE = re.compile(r"^<!-- from (\S+) -->\s*$")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:%s)(?:/[\w.-]+)+/?" % "|".join(TOP))


@dataclass
class Block:
    line: int
    language: str
    source: str  # "FILE:REGION", or empty
    text: str


@dataclass
class Page:
    path: str
    blocks: list = field(default_factory=list)
    links: list = field(default_factory=list)  # (line, target), relative ones
    paths: list = field(default_factory=list)  # (line, path)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def page_files(root):
    found = ["README.md"] if os.path.isfile(os.path.join(root, "README.md")) else []
    for folder in FOLDERS:
        for base, _, leaves in sorted(os.walk(os.path.join(root, folder))):
            found += [
                os.path.relpath(os.path.join(base, leaf), root)
                for leaf in sorted(leaves)
                if leaf.endswith(".md")
            ]
    return found


def parse(path, text):
    page = Page(path)
    source = ""
    fence = None  # the open block
    body = []
    for number, line in enumerate(text.split("\n"), 1):
        match = FENCE.match(line)
        if fence:
            if match and match.group(1) == fence[1] and not match.group(2):
                text = textwrap.dedent("\n".join(body))
                page.blocks.append(Block(fence[0], fence[2], source, text))
                fence, body, source = None, [], ""
            else:
                body.append(line)
        elif match:
            fence = (number, match.group(1), match.group(2))
        else:
            read_line(page, number, line)
            source = SOURCE.match(line).group(1) if SOURCE.match(line) else ""
    if fence:
        page.blocks.append(Block(fence[0], "a block that is not closed", "", ""))
    return page


def read_line(page, number, line):
    for match in LINK.finditer(line):
        target = match.group(1)
        if not re.match(r"[a-z]+:", target):
            page.links.append((number, target))
    for match in CODE.finditer(line):
        if PATH.fullmatch(match.group(1)):
            page.paths.append((number, match.group(1)))


def anchors(text):
    """As GitHub makes them: lower case, without punctuation, blanks as hyphens."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(plain.strip().replace(" ", "-"))
    return found
