"""Classes of the SDK with one job: at most 15 public functions and 15 fields each.

    classes.py ROOT [-v]

Prints each class of sdk/src that has more, and exits 1 if there was one. Constructors, destructors, deleted and
defaulted functions and operators do not count; overloads, overrides and static functions do. A field is a data
member of an object. Plain values do not count: structs without a private part, a constructor or a virtual function.
KNOWN has the classes that still have more, with their present numbers: they may only become smaller, so an entry that
is too generous, or names a class that does not exist, is a failure as well. -v prints all classes as a table.
"""

import collections
import re
import sys

import tree

FOLDER = "sdk/src/"
LIMIT = 15

# Class -> numbers beyond the limit.
KNOWN = {
}

PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
LABEL = re.compile(r"\s*(public|private|protected)\s*:(?!:)")
# What may stand before or within a declaration and has brackets of its own.
BRACKETED = re.compile(r"\[\[[^\]]*\]\]|\b(?:alignas|decltype|noexcept|requires)\s*\((?:[^()]|\([^()]*\))*\)")
ANGLES = re.compile(r"(?<=[\w\s])<[^<>]*>")
ROUND = re.compile(r"\([^()]*\)")
TYPE = re.compile(r"^(?:template\s*)*(?:class|struct|union)\s+([\w:]+)\s*(?:final\s*)?(?::(?!:).*)?$", re.DOTALL)
OPERATOR = re.compile(r"\boperator\b")
NO_MEMBER = re.compile(r"^(?:using|typedef|friend|static_assert|enum|template\s*friend)\b")
CLOSING = {"(": ")", "{": "}", "[": "]"}

Class = collections.namedtuple("Class", "name path functions fields")
# One declaration: its text without what stands in braces, and the braces' contents.
Item = collections.namedtuple("Item", "head blocks")


def without_angles(text):
    """The text without template arguments, however deep."""
    while ANGLES.search(text):
        text = ANGLES.sub("", text)
    return text


def declaration(text):
    """What declares: without attributes and template arguments, with single spaces."""
    return " ".join(without_angles(BRACKETED.sub(" ", text)).split())


def end_of_block(text, start):
    """Index behind the bracket that closes the one at `start`."""
    open_brackets = []
    for at in range(start, len(text)):
        if text[at] in CLOSING:
            open_brackets.append(CLOSING[text[at]])
        elif open_brackets and text[at] == open_brackets[-1]:
            open_brackets.pop()
            if not open_brackets:
                return at + 1
    return len(text)


def without_initialiser(head):
    """The head up to an `=` outside of brackets: its parentheses are a value's."""
    at = 0
    while at < len(head):
        if head[at] in CLOSING:
            at = end_of_block(head, at)
            continue
        if head[at] == "=" and not OPERATOR.search(head[:at]):
            return head[:at]
        at += 1
    return head


def is_function(head):
    declared = without_initialiser(declaration(head))
    return "(" in declared and not re.search(r"\(\s*\*", declared)


def declarators(head):
    """How many fields a declaration makes: `int a_ = f(1, 2), b_` makes two."""
    while ROUND.search(head):
        head = ROUND.sub("", head)
    return head.count(",") + 1


def items(text):
    """The declarations of a namespace or class; an access label is an item of its own."""
    begin = at = 0
    head, blocks = "", []
    while at < len(text):
        label = LABEL.match(text, begin) if not head and at == begin else None
        if label:
            yield Item(label.group(1) + ":", [])
            begin = at = label.end()
            continue
        if text[at] == ";":
            yield Item(head + text[begin:at], blocks)
            head, blocks = "", []
            begin = at + 1
        elif text[at] == "{":
            head += text[begin:at]
            end = end_of_block(text, at)
            blocks.append(text[at + 1 : end - 1])
            begin = at = end
            if ends_with_block(head, text[end : end + 200]):
                yield Item(head, blocks)
                head, blocks = "", []
            continue
        elif text[at] in CLOSING:
            at = end_of_block(text, at)
            continue
        at += 1


def ends_with_block(head, after):
    """Whether nothing of the declaration follows its block: a function's body, or a namespace."""
    if re.search(r"\bnamespace\b", head) or re.match(r"\s*extern\s*$", head):
        return True
    return is_function(head) and not re.match(r"\s*(?:[,{]|catch\b)", after)


def classes(text, path="", outer=""):
    """All classes with one job to prove, in the order of the text."""
    return list(_classes_in(PREPROCESSOR.sub("", tree.blank_comments_and_strings(text)), path, outer))


def _classes_in(text, path, outer):
    for item in items(text):
        head = declaration(item.head)
        if re.search(r"\bnamespace\b", head) or head == "extern":
            yield from _classes_in(item.blocks[-1] if item.blocks else "", path, outer)
            continue
        named = TYPE.match(head) if item.blocks else None
        if not named:
            continue
        name = outer + named.group(1)
        members = Members(item.blocks[-1], named.group(1).split("::")[-1], is_open="class" not in head.split())
        if members.has_job:
            yield Class(name, path, members.functions, members.fields)
        yield from _classes_in(item.blocks[-1], path, name + "::")


class Members:
    """Public functions and fields of one class's body."""

    def __init__(self, body, name, is_open):
        self.functions = 0
        self.fields = 0
        self.has_job = False
        self._name = name
        self._is_public = is_open
        for item in items(body):
            self._take(item)

    def _take(self, item):
        head = declaration(item.head)
        if head in ("public:", "private:", "protected:"):
            self._is_public = head == "public:"
            return
        if not head or NO_MEMBER.match(head) or TYPE.match(head):
            return
        if not self._is_public or re.match(r"(?:template )?virtual\b|.*\boverride\b", head):
            self.has_job = True
        if is_function(item.head) or OPERATOR.search(head):
            self._take_function(head)
        elif not re.search(r"\bstatic\b", head):
            self.fields += declarators(head)

    def _take_function(self, head):
        name = re.search(r"(~?\w+)\s*\(", head)
        is_made = name is not None and name.group(1).lstrip("~") == self._name
        is_written_elsewhere = re.search(r"=\s*(?:delete|default)$", head)
        if is_made and not is_written_elsewhere and not name.group(1).startswith("~"):
            self.has_job = True
        if self._is_public and not is_made and not is_written_elsewhere and not OPERATOR.search(head):
            self.functions += 1


def all_classes(root):
    for path in tree.cpp_files(root):
        if path.startswith(FOLDER):
            yield from classes(tree.read(root, path), path)


def numbers(found):
    return {"functions": found.functions, "fields": found.fields}


def violations(root, known=None):
    known = KNOWN if known is None else known
    seen = collections.defaultdict(lambda: {"functions": 0, "fields": 0})
    for found in all_classes(root):
        for what, count in numbers(found).items():
            seen[found.name][what] = max(seen[found.name][what], count)
            allowed = max(LIMIT, known.get(found.name, {}).get(what, 0))
            if count > allowed:
                yield f"{found.path}: {found.name}: expected at most {allowed} {what}, found {count}: divide it by jobs"
    for name, entry in known.items():
        if name not in seen:
            yield f"KNOWN: {name}: there is no such class: remove the entry"
            continue
        for what, allowed in entry.items():
            count = seen[name][what]
            if count < allowed:
                yield f"KNOWN: {name}: expected {count} {what}, found {allowed}: make the number smaller, or remove it"


def print_table(root):
    rows = sorted(all_classes(root), key=lambda row: (-max(row.functions, row.fields), row.name))
    print(f"{'class':44} functions fields  file")
    for row in rows:
        print(f"{row.name:44} {row.functions:9} {row.fields:6}  {row.path}")


def main():
    root = sys.argv[1]
    found = list(violations(root))
    if "-v" in sys.argv[2:]:
        print_table(root)
    print(f"{len(list(all_classes(root)))} classes of {FOLDER}, {len(KNOWN)} of them known to be too large")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
