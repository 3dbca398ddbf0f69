"""Proves from the sources who includes whom: the table below is section 2 of the architecture.

    includes.py ROOT [--compile-commands FILE]

Prints each include that points the wrong way and exits 1 if there was one. With the compile
commands it also proves that LibTorch's include folders, which ship an old google/protobuf, are on
the command line of no source outside the SDK and its tests.
"""

import argparse
import json
import os
import re
import sys

import tree

CORE = "coordinator/core/"
ESTIMATES = "coordinator/estimates/"
DECIDE = "coordinator/decide/"
PLANNER = "coordinator/planner/"
POLICIES = "coordinator/policies/"
IO = "coordinator/io/"
WIRE = "coordinator/wire/"
TRANSPORT = "coordinator/transport/"
RUNTIME = "coordinator/runtime/"
TESTING = "coordinator/testing/"
DECISIONS = (CORE, ESTIMATES, DECIDE, PLANNER, POLICIES)
# Everything that programs are made of: not what tests are made of.
COORDINATOR = DECISIONS + (IO, WIRE, TRANSPORT, RUNTIME)

RECORDS = "metrics/records/"
ANALYSIS = "metrics/analysis/"
PAGES = "metrics/pages/"
COMMAND = "metrics/command/"

# The floors of sdk/src, from the ground up.
SDK = COORDINATOR + ("metrics/", "sdk/include/")
LIBTORCH = "sdk/src/libtorch/"
DEVICE = "sdk/src/device/"
STREAM = "sdk/src/stream/"
CHECKPOINT = "sdk/src/checkpoint/"
BLOCKS = "sdk/src/blocks/"
PARALLEL = "sdk/src/parallel/"
PRECISION = "sdk/src/precision/"
MEMORY = "sdk/src/memory/"
OPTIM = "sdk/src/optim/"
DATA = "sdk/src/data/"
SESSION = "sdk/src/session/"
SHARD = "sdk/src/shard/"
TRAINING = "sdk/src/training/"
GROUND = SDK + (LIBTORCH, DEVICE, STREAM, CHECKPOINT)
ROOMS = GROUND + (BLOCKS, PARALLEL, PRECISION, MEMORY, OPTIM, DATA)

# Folder -> folders of this repository that it may include, beside itself. The longest match counts.
MAY_INCLUDE = {
    CORE: (),
    ESTIMATES: (CORE,),
    DECIDE: (CORE, ESTIMATES),
    PLANNER: (CORE,),
    POLICIES: (CORE, ESTIMATES, DECIDE, PLANNER),
    IO: (CORE,),
    WIRE: (CORE, DECIDE, ESTIMATES),
    TRANSPORT: (CORE, IO),
    RUNTIME: DECISIONS + (IO, WIRE, TRANSPORT),
    TESTING: DECISIONS + (TRANSPORT,),
    RECORDS: (CORE, IO, PLANNER),
    "metrics/analysis/findings/": (CORE, RECORDS),
    "metrics/analysis/whatif/": (CORE, RECORDS),
    "metrics/analysis/timeline/": (CORE, RECORDS),
    PAGES: (CORE,),
    "metrics/": (CORE, ESTIMATES, DECIDE, IO, RECORDS, ANALYSIS, PAGES),
    COMMAND: COORDINATOR + ("metrics/",),
    "sdk/include/coxswain/": (CORE, ESTIMATES, DECIDE),
    LIBTORCH: (CORE,),
    DEVICE: SDK,
    STREAM: SDK + (LIBTORCH,),
    CHECKPOINT: SDK,
    BLOCKS: GROUND,
    PARALLEL: GROUND + (BLOCKS,),
    PRECISION: GROUND + (BLOCKS, PARALLEL),
    MEMORY: GROUND + (BLOCKS, PARALLEL, PRECISION),
    OPTIM: GROUND + (PARALLEL,),
    DATA: GROUND,
    SESSION: ROOMS,
    SHARD: GROUND + (MEMORY, PARALLEL, SESSION),
    TRAINING: ROOMS + (SESSION, SHARD),
    "sdk/examples/": COORDINATOR + ("sdk/include/", "sdk/src/checkpoint/"),  # files, no more
    "tests/": ("coordinator/", "metrics/", "sdk/"),
}

# The headers of C++, not even those of POSIX. All but the analysis build with a compiler alone.
STANDARD_ONLY = DECISIONS + (ANALYSIS, TESTING)

# Stands in for LibTorch's CUDA library and the CUDA runtime.
STANDIN = "tests/support/cuda/"

# What a foreign include looks like -> where it may stand.
FOREIGN = {
    r"mpi\.h": ("coordinator/transport/mpi/", "tests/"),
    r"nccl\.h": ("tests/transport/nccl_abi_test.cc",),  # the coordinator declares what it calls
    r"(cuda|cublas|cudnn|nvtx).*": ("sdk/src/device/cuda", STANDIN),
    r"google/protobuf/.*|.*\.pb\.h": ("tests/wire/",),
    r"prometheus/.*": ("metrics/collectable.h", "tests/metrics/", "tests/sdk/shard/", "tests/bench/"),
    r"boost/.*": ("metrics/http/message.cc", "metrics/http/http_server.cc", "metrics/http/service."),
    r"(torch|ATen|c10|caffe2)/.*": (
        "sdk/",
        "tests/sdk/",
        "tests/e2e/",
        "tests/bench/",
        "tests/packaging/",
        STANDIN,
    ),
    r"nlohmann/.*": ("coordinator/io/json.cc",),
    r"xxhash\.h": ("coordinator/io/content_hash.cc",),
    r"zlib\.h": ("coordinator/io/gzip.cc",),
    # The coordinator and sdk/src have concat() of core/text.h instead: the first includes no foreign
    # header without need, and LibTorch brings another fmt to the second.
    r"fmt/.*": ("metrics/", "sdk/examples/", "tests/"),
    # Files are opened by io::InputFile, which refuses pipes and devices; these read the kernel's.
    r"fstream": ("sdk/src/session/", "sdk/src/memory/", "tests/"),
    r"CLI/.*": (COMMAND, "sdk/examples/", "tests/"),
    r"doctest/doctest\.h": ("tests/",),
}

# What a public SDK header may take from LibTorch. The rest needs a line in public_headers.txt.
PUBLIC_TORCH = "ATen/core/Tensor.h"
PUBLIC = "sdk/include/"
EXCEPTIONS = "tests/layering/public_headers.txt"

# Headers in these folders are installed (cmake/CoxInstall.cmake), and what they include is needed
# by every program that uses them.
INSTALLED = ("coordinator/", "metrics/", PUBLIC)
NOT_IN_INSTALLED = r"fmt/.*"

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)


def longest_folder(path):
    return max((f for f in MAY_INCLUDE if path.startswith(f)), key=len, default=None)


def exceptions(root):
    """Lines `header include # reason` of the public headers that need more than a Tensor."""
    allowed = set()
    if os.path.exists(os.path.join(root, EXCEPTIONS)):
        for line in tree.read(root, EXCEPTIONS).splitlines():
            words = line.split("#")[0].split()
            if len(words) == 2:
                allowed.add((words[0], words[1]))
    return allowed


def own_file(root, target):
    """The file of this repository that an include means, or None for a foreign one."""
    for candidate in (target, "sdk/include/" + target):
        if os.path.isfile(os.path.join(root, candidate)):
            return candidate
    return None


def judge_own(path, target):
    folder = longest_folder(path)
    if folder is None:
        return "stands in a folder that the table in tests/layering/includes.py does not know"
    into = longest_folder(target)
    may = into == folder or target.startswith(MAY_INCLUDE[folder])
    if may and (into != COMMAND or folder in (COMMAND, "tests/")):  # nothing stands on the command
        return None
    allowed = ", ".join((folder,) + MAY_INCLUDE[folder])
    return f"expected an include from {allowed}"


def judge_foreign(path, target, allowed):
    for pattern, places in FOREIGN.items():
        if re.fullmatch(pattern, target):
            if not path.startswith(places):
                return "only allowed in " + ", ".join(places)
            if path.endswith(".h") and path.startswith(INSTALLED) and re.fullmatch(NOT_IN_INSTALLED, target):
                return "not allowed in an installed header"
            excepted = target == PUBLIC_TORCH or (path, target) in allowed
            if path.startswith(PUBLIC) and not excepted:
                return f"a public header takes {PUBLIC_TORCH} and no more (or a line in {EXCEPTIONS})"
            return None
    if re.fullmatch(r"[a-z0-9_]+", target):
        return None  # a header of C++
    if re.fullmatch(r"((sys|netinet|arpa|linux|net)/)?[a-z0-9_]+\.h", target):
        posix_allowed = not path.startswith(STANDARD_ONLY + (PUBLIC,))
        return None if posix_allowed else "expected only headers of standard C++ here"
    return "an include that is neither ours nor known (see FOREIGN in tests/layering/includes.py)"


def judge(root, path, quote, target, allowed):
    own = own_file(root, target)
    if own:
        return judge_own(path, own)
    ours = target.startswith((*MAY_INCLUDE, "coxswain/"))
    if ours and not target.endswith(".pb.h"):
        return "expected a file of this repository, found none"
    reason = judge_foreign(path, target, allowed)
    beside = os.path.join(root, os.path.dirname(path), target)
    if quote == '"' and path.startswith("tests/") and os.path.isfile(beside):
        return None  # a test's helper stands beside it
    if quote == '"' and not target.endswith(".pb.h"):
        return reason or "expected a path from the repository root in quotes, found no such file"
    return reason


def macro_violations(path, text):
    """Public headers leave no macro behind in the user's program."""
    if path.startswith(PUBLIC):
        for match in DEFINE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: expected no macro in a public header, found {match.group(1)}"


def violations(root):
    allowed = exceptions(root)
    for path in tree.cpp_files(root):
        text = tree.read(root, path)
        for match in INCLUDE.finditer(text):
            reason = judge(root, path, match.group(1), match.group(2), allowed)
            if reason:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: includes {match.group(2)}: {reason}"
        yield from macro_violations(path, text)


def visibility_violations(root, commands):
    """Sources outside the SDK that the compiler shows LibTorch's headers."""
    places = FOREIGN[r"(torch|ATen|c10|caffe2)/.*"]
    for command in commands:
        path = os.path.relpath(command["file"], root)
        words = command.get("command", "")
        if path.startswith(("coordinator/", "metrics/", "tests/")) and "/torch/include" in words:
            if not path.startswith(places):
                yield f"{path}: is compiled with LibTorch's include folders"
            elif re.search(r"\.pb\.h|google/protobuf", tree.read(root, path)):
                yield f"{path}: includes protobuf and is compiled with LibTorch's include folders"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--compile-commands")
    arguments = parser.parse_args()
    root = os.path.abspath(arguments.root)
    found = list(violations(root))
    if arguments.compile_commands:
        with open(arguments.compile_commands, encoding="utf-8") as file:
            found += visibility_violations(root, json.load(file))
    print("\n".join(found) if found else f"{len(tree.cpp_files(root))} files: all includes allowed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
