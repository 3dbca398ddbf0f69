"""Checks what benchmarks say, not how fast they are.

    check_bench.py list SCRIPT           the list of goals on stdout of SCRIPT, nothing built
    check_bench.py lines GOAL COMMAND... every line that COMMAND prints is a figure of GOAL
"""

import json
import os
import subprocess
import sys

KEYS = {"goal", "value", "limit", "unit", "better", "config"}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def faults_of(line, goal):
    if set(line) != KEYS:
        return f"expected the keys {sorted(KEYS)}, found {sorted(line)}"
    if line["goal"] != goal or not isinstance(line["config"], dict):
        return f"expected goal {goal} and a config, found {line['goal']}"
    if not is_number(line["value"]) or not (line["limit"] is None or is_number(line["limit"])):
        return "expected a number as value, and a number or null as limit"
    if line["better"] not in ("lower", "higher") or not line["unit"]:
        return "expected better = lower or higher, and a unit"
    if not all(is_number(v) or isinstance(v, str) for v in line["config"].values()):
        return "expected numbers and texts in config"
    return None


def check_lines(goal, command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    texts = done.stdout.splitlines()
    judged = 0
    for text in texts:
        line = json.loads(text)
        fault = faults_of(line, goal)
        if fault:
            sys.exit(f"{text}\n{fault}")
        judged += line["limit"] is not None
    if judged == 0:
        sys.exit(f"expected at least one line of {goal} with a limit, found {len(texts)} lines")
    print(f"{len(texts)} lines, {judged} of them with a limit")


def check_list(script):
    done = subprocess.run([script], capture_output=True, text=True, check=True)
    goals = [text.split()[0] for text in done.stdout.splitlines()]
    notes = os.path.join(os.path.dirname(os.path.abspath(__file__)), "notes")
    described = sorted(name.removesuffix(".md") for name in os.listdir(notes))
    if goals != described:
        sys.exit(f"expected the goals that have notes ({described}), found {goals}")
    refused = subprocess.run([script, "no-such-goal"], capture_output=True, text=True, check=False)
    if refused.returncode != 2 or refused.stdout or "no-such-goal" not in refused.stderr:
        sys.exit(f"expected exit code 2 and a message for an unknown goal, found {refused}")


if __name__ == "__main__":
    if sys.argv[1] == "list":
        check_list(sys.argv[2])
    else:
        check_lines(sys.argv[2], sys.argv[3:])
