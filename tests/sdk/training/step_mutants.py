"""Shows that the records of steps (step_record_*_test.cc) notice each call that a step would miss.

    step_mutants.py CLONE [--ranks 2] [--jobs 2] [--calls REGEX]

CLONE is a fresh clone of this tree, which is changed: each statement that is a call, in the files of the protocol,
runs unless the environment's MUTANT is its number. One program is built; the tests of records run once for each
number, and have to fail. Prints the calls whose absence no record notices; the exit code is 0 where there are none
beside those of EXPECTED. --calls leaves out only calls that match, as FILE:LINE: STATEMENT.
"""

import argparse
import concurrent.futures
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
NOT_A_CALL = re.compile(r"^\s*(return|throw|if|for|while|else|case|using|const|auto|static|delete|refuse|std::abort)\b")
DECLARATION = re.compile(r"^\s+(?:[\w:]+(?:<.*>)?[&*]*) \w+\(.*\)(?: const)?;|^\s+[\w:<>]+ \w+\([^()]*\);")
BEGINS_A_STATEMENT = re.compile(r"([;{}]|^\s*//.*|^\s*|:|else)\s*$")
HEADER = """#ifndef MUTANT_SWITCH  // one source of several in a unity build has it
#define MUTANT_SWITCH
namespace {
// Which call is left out.
[[maybe_unused]] bool mutant(int number) {
  static const char* chosen = std::getenv("MUTANT");
  return chosen != nullptr && std::atoi(chosen) == number;
}
}  // namespace
#endif
"""
# Calls that a record may miss, by a pattern in their statement, with what they are for.
EXPECTED = [
    (r"recorder_|add_host|waits_\.begin_round|all_arrived|merge_into\(latest|pump\(|attend\(|times_|stages_\.change"
     r"|leave_out|queueing|move_mark|do_between|read\(figures|step\.loss|tokens\(|scope\(\)\.log|part_\.unread|add_loss"
     r"|observe\(|averages->clear", "times, marks, and figures for people"),
    (r"configure_heap|send_off|give_back|look\(\)|look\.wait", "when a process waits, and memory that it keeps"),
    (r"move\(StepEvent::conclude", "a stage from which a step may end as well, as after an exception"),
    (r"sets\.|std::erase_if\(sets", "gradients of parameters that are gone"),
    (r"shard\(|sharding_?->|sharding_\.|\*sharding|shards\.", "shards, which have tests of their own"),
    (r"log\(\)\.|tell_|warnings_|telemetry|show_|explain_end", "words for people"),
    (r"^(detail::)?require\(|check_|compare\(\"|compare\(\{CallKind::refused|declare_|hash\.add", "refusals, which have tests of their own"),
    (r"calibrat|measure\(sample|forget_run|step_\.restart|first_\.|growth_|follow\(|make_room|read_parameter|listener|saving_|stream_"
     r"|visits_|install_saved|holder_|gradients\.add", "calibration, blocks and visits"),
    (r"save|masters|numerics|noise|health|loss_scale|count_nonfinite|sample_gradients|weights_->take",
     "saves, numbers and formats"),
    (r"averaging_\.settle|loop_is_kept", "the state and the save at the end, which have tests of their own"),
    (r"^state\(\)\.ensure_started", "a start that the first step makes as well"),
    (r"data\.forget", "memory of the data set"),
    (r"start_after", "a false warning in a job that resumes after a rollback"),
    (r"exit_watch|watch_finalize|leave_after|finish\(\)|end\(\)|leave\(|raise|signal|abort|leave_loop|reset\(\)", "ends"),
]


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
    subprocess.run(["cmake", "--preset", "quick"], cwd=tree, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", "--preset", "quick", "-j", str(jobs), "--target", "sdk_mpi_torch_tests"],
                   cwd=tree, check=True, stdout=sys.stderr)
    return [os.path.join(tree, "build/quick/tests/bin/sdk_mpi_torch_tests"),
            "--source-file=*/tests/sdk/training/step_record_*mpi_test.cc"]


def runs(program, ranks, mutant):
    environment = {**os.environ, "MUTANT": str(mutant), "OMP_NUM_THREADS": "1", "HYDRA_LAUNCHER": "fork"}
    try:
        done = subprocess.run(["mpiexec.mpich", "-n", str(ranks), *program], env=environment, timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--calls", type=re.compile, default=re.compile(""))
    options = parser.parse_args()
    mutants = mutate(options.tree, FILES)
    program = build(options.tree, options.jobs)
    if not runs(program, options.ranks, 0):
        sys.exit("step_mutants: expected the records to hold without a mutant, found that they do not")
    survivors = []
    chosen = [at for at, each in enumerate(mutants) if options.calls.search("{}:{}: {}".format(*each))]
    with concurrent.futures.ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for at, goes_on in zip(chosen, pool.map(lambda at: runs(program, options.ranks, at + 1), chosen)):
            if goes_on:
                survivors.append(mutants[at])
                print("unnoticed: {}:{}: {}".format(*mutants[at]), flush=True)
    unexpected = [each for each in survivors if not any(re.search(pattern, each[2]) for pattern, _ in EXPECTED)]
    for name, line, text in unexpected:
        print(f"not expected: {name}:{line}: {text}")
    print(f"{len(chosen)} calls, {len(chosen) - len(survivors)} noticed, "
          f"{len(survivors) - len(unexpected)} unnoticed as expected, {len(unexpected)} not expected")
    sys.exit(1 if unexpected else 0)


if __name__ == "__main__":
    main()
