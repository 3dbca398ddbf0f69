"""Shows that the records of steps (step_record_mpi_test.cc) notice each call that a step would miss.

    step_mutants.py CLONE [--ranks 2] [--jobs 2]

CLONE is a fresh clone of this tree, which is changed: each statement that is a call, in the files of the protocol,
runs unless the environment's MUTANT is its number. One program is built; the tests of records run once for each
number, and have to fail. Prints the calls whose absence no record notices; the exit code is 0 where there are none
beside those of EXPECTED, which are of calls that change nothing that a record may hold (times, text for people).
"""

import argparse
import os
import re
import subprocess
import sys

FILES = [
    "sdk/src/session/session_state.cc",
    "sdk/src/session/step_engine.cc",
    "sdk/src/training/reducer.cc",
    "sdk/src/training/manual.cc",
    "sdk/src/training/adoption.cc",
    "sdk/src/training/trainer.cc",
    "sdk/src/training/model_changes.cc",
]
# A whole statement on one line that calls something and keeps no value.
CALL = re.compile(r"^(\s+)((?:\(void\)|static_cast<void>\()?[A-Za-z_][\w:]*(?:(?:\.|->)\w+|\([^()]*\)|\[\w+\])*"
                  r"\(.*\);(?: *//.*)?)$")
NOT_A_CALL = re.compile(r"^\s*(return|throw|if|for|while|else|case|using|const|auto|static|delete|refuse)\b")
DECLARATION = re.compile(r"^\s+(?:[\w:]+(?:<.*>)?[&*]*) \w+\(.*\)(?: const)?;|^\s+[\w:<>]+ \w+\([^()]*\);")
BEGINS_A_STATEMENT = re.compile(r"([;{}]|^\s*//.*|^\s*|:|else)\s*$")
HEADER = """namespace {
// Which call is left out.
[[maybe_unused]] bool mutant(int number) {
  static const char* chosen = std::getenv("MUTANT");
  return chosen != nullptr && std::atoi(chosen) == number;
}
}  // namespace
"""
# Calls that a record may miss: FILE: TEXT of the statement, with what they do.
EXPECTED = {}


def mutate(tree, names):
    mutants = []
    for name in names:
        path = os.path.join(tree, name)
        if not os.path.exists(path):
            continue
        lines = open(path, encoding="utf-8").read().split("\n")
        out = []
        for at, line in enumerate(lines):
            found = CALL.match(line)
            before = lines[at - 1] if at else ""
            is_call = (found and not NOT_A_CALL.match(line) and not DECLARATION.match(line)
                       and BEGINS_A_STATEMENT.search(before))
            if is_call:
                mutants.append((name, at + 1, line.strip()))
                line = f"{found.group(1)}if (!mutant({len(mutants)})) {found.group(2)}"
            out.append(line)
        text = "\n".join(out)
        last = [m.end() for m in re.finditer(r"^#include .*\n", text, re.M)][-1]
        text = text[:last] + "#include <cstdlib>\n" + HEADER + text[last:]
        open(path, "w", encoding="utf-8").write(text)
    return mutants


def build(tree, jobs):
    cmake = os.path.join(tree, "tests/sdk/training/CMakeLists.txt")
    text = open(cmake, encoding="utf-8").read()
    text = text.replace("cox_test(NAME sdk.step_record TORCH", "cox_test(NAME sdk.step_record ALONE TORCH")
    open(cmake, "w", encoding="utf-8").write(text)
    subprocess.run(["cmake", "--preset", "quick", "-DCOX_UNITY=OFF"], cwd=tree, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", "--preset", "quick", "-j", str(jobs), "--target",
                    "sdk_step_record_mpi_torch_tests"], cwd=tree, check=True, stdout=sys.stderr)
    return os.path.join(tree, "build/quick/tests/bin/sdk_step_record_mpi_torch_tests")


def runs(program, ranks, mutant):
    environment = {**os.environ, "MUTANT": str(mutant), "OMP_NUM_THREADS": "1", "HYDRA_LAUNCHER": "fork"}
    try:
        done = subprocess.run(["mpiexec.mpich", "-n", str(ranks), program], env=environment, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    mutants = mutate(options.tree, FILES)
    program = build(options.tree, options.jobs)
    if not runs(program, options.ranks, 0):
        sys.exit("step_mutants: expected the records to hold without a mutant, found that they do not")
    survivors = []
    for number, (name, line, text) in enumerate(mutants, 1):
        if runs(program, options.ranks, number):
            survivors.append((name, line, text))
            print(f"unnoticed: {name}:{line}: {text}", flush=True)
    unexpected = [each for each in survivors if f"{each[0]}: {each[2]}" not in EXPECTED]
    print(f"{len(mutants)} calls, {len(mutants) - len(survivors)} noticed, {len(unexpected)} unnoticed beside "
          "those that are expected")
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
