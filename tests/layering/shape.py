"""One class in one source, no circle of rooms, and few private headers with a single user.

    shape.py ROOT

Prints each class whose member functions stand in several sources of the library, each circle of rooms (a
room is a header with its source), and the private headers with one user when there are more of them than
MAX_ONE_USER, and exits 1 if there was one.
A header with one user is one that a single library file includes, besides the header's own source,
and that stands beside that file: a header that another folder includes is its floor's interface.
"""

import collections
import os
import re
import sys

import tree

LIBRARY = ("coordinator/", "metrics/", "sdk/src/")

MAX_ONE_USER = 28

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
CLASS = re.compile(r"^ *(?:class|struct) (?:\[\[\w+\]\] )?([\w:]+)(?: final)?(?: :[^;{]*)? \{", re.MULTILINE)
# A definition outside of its class begins in the first column: its name is what comes before the
# first parenthesis.
MEMBER = re.compile(r"^(?=\S)(?:[\w:<>,&*\[\] ]*[ &*])?((?:\w+::)+)(?:~?\w+|operator[^\s(]+)\(", re.MULTILINE)


def library_files(root, end):
    return [path for path in tree.cpp_files(root) if path.startswith(LIBRARY) and path.endswith(end)]


def classes_of(text):
    """Names of the classes with a member function defined in this text."""
    names = set()
    for match in MEMBER.finditer(tree.blank_comments_and_strings(text)):
        parts = [part for part in match.group(1).split("::") if part and not part[0].islower()]
        if parts:
            names.add("::".join(parts))
    return names


def split_classes(root):
    """Class -> sources, for each class of a header that several sources define members of."""
    declared = set()
    for path in library_files(root, ".h") + tree.files(root, ("sdk/include",)):
        declared.update(name.split("::")[-1] for name in CLASS.findall(tree.read(root, path)))
    sources = collections.defaultdict(list)
    for path in library_files(root, ".cc"):
        for name in classes_of(tree.read(root, path)):
            if name.split("::")[-1] in declared:
                sources[name].append(path)
    return {name: paths for name, paths in sources.items() if len(paths) > 1}


def one_user_headers(root):
    """(header, user) of each header of the library that one file beside it includes."""
    users = collections.defaultdict(set)
    for path in library_files(root, tree.CPP):
        for target in INCLUDE.findall(tree.read(root, path)):
            if path != target[: -len(".h")] + ".cc":
                users[target].add(path)
    for path in library_files(root, ".h"):
        beside = [user for user in users[path] if os.path.dirname(user) == os.path.dirname(path)]
        if len(users[path]) == 1 and beside:
            yield path, beside[0]


def room_of(path):
    return os.path.splitext(path)[0]


def arrows(root):
    """Room of the library -> rooms that it includes."""
    rooms = {room_of(path) for path in library_files(root, tree.CPP)}
    found = {room: set() for room in rooms}
    for path in library_files(root, tree.CPP):
        for target in INCLUDE.findall(tree.read(root, path)):
            if room_of(target) in rooms and room_of(target) != room_of(path):
                found[room_of(path)].add(room_of(target))
    return found


def circles(root):
    """Each set of rooms that include each other, directly or through others."""
    below = arrows(root)

    def reached_from(room):
        seen, open_rooms = set(), [room]
        while open_rooms:
            for other in below[open_rooms.pop()] - seen:
                seen.add(other)
                open_rooms.append(other)
        return seen

    reached = {room: reached_from(room) for room in below}
    return {frozenset(other for other in reached[room] if room in reached[other]) for room in below if room in reached[room]}


def violations(root):
    for circle in sorted(sorted(circle) for circle in circles(root)):
        yield f"rooms in a circle: {', '.join(circle)}: one of them must know less"
    for name, paths in sorted(split_classes(root).items()):
        yield f"{name}: expected one source, found {', '.join(sorted(paths))}: merge them"
    headers = sorted(one_user_headers(root))
    if len(headers) > MAX_ONE_USER:
        yield f"expected at most {MAX_ONE_USER} private headers with one user, found {len(headers)}:"
        yield from (f"  {header}: only for {user}" for header, user in headers)


def main():
    root = sys.argv[1]
    found = list(violations(root))
    print(f"{len(list(one_user_headers(root)))} private headers with one user")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
