"""Whether the commands that a page shows exist: scripts and their options, presets, programs,
settings, subcommands of cox. Nothing is run."""

import json
import os
import re
import shlex

import pages

# Programs of other projects that pages may show; their arguments are theirs.
FOREIGN = {"cd", "curl", "kill", "prometheus", "ctest", "git", "python3", "export"}
SETTING = re.compile(r"--cox\.([\w.]+)")
VARIABLE = re.compile(r"(?<!\w)(COX_\w+)=")
OPTION = re.compile(r"-D(COX_\w+)=")  # of CMake
SHORT = {"COX_CONTROL", "COX_LOG", "COX_CONFIG", "COX_CACHE", "COX_SHM_DIR"}


class Tree:
    """What commands may name."""

    def __init__(self, root):
        self.root = root
        self.settings = set(re.findall(r"^\| `([\w.]+)` \|", self._read("docs/configuration.md"), re.M))
        own_policy = re.findall(r'name\(\).*return "(\w+)"', self._read("sdk/examples/speed_shares.h"))
        self.settings |= {name + ".mode" for name in own_policy}
        self.subcommands = set(
            re.findall(r'add_subcommand\(\s*"(\w+)"', self._read("metrics/command/cox_main.cc"))
        )
        self.gpt2_options = set(
            re.findall(r'"(--[\w-]+)"', self._read("sdk/examples/gpt2/options.cc"))
        )
        self.build_options = set(re.findall(r"option\((COX_\w+)", self._read("CMakeLists.txt")))
        self.build_options |= {"COX_TORCH_ROOT", "COX_MPICXX"}
        presets = self._read("CMakePresets.json")
        self.presets = {p["name"] for p in json.loads(presets)["configurePresets"]} if presets else set()
        self.programs = self._programs()

    def _read(self, path):
        return pages.read(self.root, path) if os.path.isfile(os.path.join(self.root, path)) else ""

    def _programs(self):
        found = set(re.findall(r"cox_executable\((\w+)", self._read("metrics/command/CMakeLists.txt")))
        for example in ["gpt2", "models"]:
            path = f"sdk/examples/{example}/CMakeLists.txt"
            found |= set(re.findall(r"cox_executable\((\w+)", self._read(path)))
        for names in re.findall(r"foreach\(example ([\w ]+)\)", self._read("sdk/CMakeLists.txt")):
            found |= set(names.split())
        return found

    def script_text(self, path):
        full = os.path.join(self.root, path)
        return pages.read(self.root, path) if os.access(full, os.X_OK) else None


def findings(tree, text):
    joined = re.sub(r"\\\n\s*", "", text)
    for line in joined.split("\n"):
        words = shlex.split(line, comments=True)
        yield from setting_findings(tree, line)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words:
            yield from command_findings(tree, words)


def setting_findings(tree, line):
    for key in SETTING.findall(line):
        if key != "config" and key not in tree.settings:
            yield f"the setting --cox.{key} does not exist"
    names = {"COX_" + key.upper().replace(".", "_") for key in tree.settings} | SHORT
    for option in OPTION.findall(line):
        if option not in tree.build_options:
            yield f"the build has no option {option}"
    for variable in VARIABLE.findall(line):
        if variable not in names:
            yield f"the variable {variable} does not exist"


def command_findings(tree, words):
    name, arguments = words[0], words[1:]
    if name.startswith("mpiexec"):
        rest = arguments[2:] if arguments[:1] == ["-n"] else arguments
        if rest:
            yield from command_findings(tree, rest)
    elif name.startswith("scripts/"):
        yield from script_findings(tree, name, arguments)
    elif name.startswith("build/"):
        yield from program_findings(tree, name, arguments)
    elif name == "cox":
        if not arguments or arguments[0] not in tree.subcommands:
            yield f"cox has no command '{' '.join(arguments[:1])}'"
    elif name == "cmake":
        yield from preset_findings(tree, arguments)
    elif name not in FOREIGN and not name.startswith("./"):  # a program of the reader's
        yield f"a command that tests/docs/commands.py does not know: {name}"
    if name == "ctest":
        yield from preset_findings(tree, arguments)


def options_of(arguments):
    return [a.split("=")[0] for a in arguments if re.match(r"--\w", a) and not a.startswith("--cox.")]


def script_findings(tree, name, arguments):
    text = tree.script_text(name)
    if text is None:
        yield f"{name} does not exist or is not executable"
        return
    known = tree.gpt2_options if name == "scripts/demo" else set()
    for option in options_of(arguments):
        if option not in known and not re.search(re.escape(option) + r"\b", text):
            yield f"{name} knows no option {option}"
    yield from preset_findings(tree, arguments)


def program_findings(tree, name, arguments):
    match = re.fullmatch(r"build/([\w-]+)/bin/(\w+)", name)
    if not match or match.group(1) not in tree.presets or match.group(2) not in tree.programs:
        yield f"{name}: expected build/PRESET/bin/PROGRAM of this tree"
        return
    if match.group(2) == "cox":
        yield from command_findings(tree, ["cox", *arguments])
    elif match.group(2) == "gpt2":
        for option in options_of(arguments):
            if option not in tree.gpt2_options:
                yield f"gpt2 knows no option {option}"


def preset_findings(tree, arguments):
    for flag, value in zip(arguments, arguments[1:]):
        if flag == "--preset" and value not in tree.presets:
            yield f"there is no preset {value}"
