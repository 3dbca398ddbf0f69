"""Other programs read a journal with nothing but control.proto.

    read_journal.py ROOT --cox PROGRAM --protoc PROGRAM

Runs the Python of docs/journal.md on a journal, with a stand-in for matplotlib that prints the points,
and compares them with what `cox journal` and `protoc --decode` say of each round. The Python needs the
package protobuf, which scripts/bootstrap installs; without it that part is skipped."""

import argparse
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

PACKAGE = os.path.join(
    os.environ.get("COX_CACHE")
    or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "coxswain"),
    "protobuf-4.21.12")
STAND_IN = 'def plot(x, y, style): print(*zip(x, y), sep="\\n")\ndef savefig(name): pass\n'
SKIPPED = 77


def records(journal):
    """The kinds and payloads of a journal."""
    with open(journal, "rb") as file:
        data = file.read()
    at = 16
    while at + 12 <= len(data):
        length, kind = struct.unpack_from("<IH", data, at)
        yield kind, data[at + 12 : at + 12 + length]
        at += 12 + length


class ReadJournal(unittest.TestCase):
    def decoded(self, message, payload):
        """The message as protoc prints it."""
        proto = os.path.join(options.root, "coordinator/wire/control.proto")
        command = [options.protoc, "--proto_path=" + options.root, "--decode=coxswain.v1." + message, proto]
        return subprocess.run(command, input=payload, capture_output=True, check=True).stdout.decode()

    def cox_journal(self, *arguments):
        command = [options.cox, "journal", self.journal(), *arguments]
        return subprocess.run(command, capture_output=True, check=False)

    def journal(self):
        return os.path.join(options.root, "tests/fuzz/corpus/journal/seed1")

    def rounds(self):
        """The number of each round, and the names of its reasons."""
        for kind, payload in records(self.journal()):
            if kind == 2:
                text = self.decoded("JournalRound", payload)
                number = int(re.search(r"^  round: (\d+)$", text, re.MULTILINE).group(1))
                yield number, re.findall(r"^    code: (\w+)$", text, re.MULTILINE), payload

    def test_cox_journal_writes_the_message_of_a_round(self):
        rounds = list(self.rounds())
        self.assertGreater(len(rounds), 2)
        for number, _, payload in rounds:
            done = self.cox_journal("--round", str(number))
            self.assertEqual((done.returncode, done.stdout), (0, payload))

    def test_cox_journal_writes_the_newest_start(self):
        starts = [payload for kind, payload in records(self.journal()) if kind == 1]
        done = self.cox_journal()
        self.assertEqual((done.returncode, done.stdout), (0, starts[-1]))
        self.assertIn('name: "test"', self.decoded("JournalStart", done.stdout))

    def test_a_round_that_is_not_there_is_an_error(self):
        done = self.cox_journal("--round", "999999")
        self.assertEqual((done.returncode, done.stdout), (2, b""))
        self.assertIn(b"expected round 999999 in the journal, found none", done.stderr)

    def test_the_python_of_the_page_finds_the_same_decisions(self):
        with tempfile.TemporaryDirectory() as folder:
            wire = os.path.join(options.root, "coordinator/wire")
            subprocess.run([options.protoc, "--proto_path=" + wire, "--python_out=" + folder,
                            os.path.join(wire, "control.proto")], check=True)
            os.mkdir(os.path.join(folder, "matplotlib"))
            with open(os.path.join(folder, "matplotlib/pyplot.py"), "w", encoding="utf-8") as file:
                file.write(STAND_IN)
            path = os.pathsep.join((folder, PACKAGE))
            done = subprocess.run([sys.executable, "-B", os.path.join(options.root, "docs/plot_decisions.py"),
                                   self.journal()], capture_output=True, text=True, check=False, cwd=folder,
                                  env={**os.environ, "PYTHONPATH": path})
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = [str((number, code)) for number, codes, _ in self.rounds() for code in codes]
        self.assertGreater(len(expected), 0)
        self.assertEqual(done.stdout.splitlines(), expected)


def main():
    if os.path.isdir(PACKAGE):
        return 0 if unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful() else 1
    del ReadJournal.test_the_python_of_the_page_finds_the_same_decisions
    done = unittest.main(argv=sys.argv[:1], exit=False).result.wasSuccessful()
    print(f"skipped the page's Python: no package protobuf in {PACKAGE}; scripts/bootstrap installs it")
    return SKIPPED if done else 1


parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("--cox", required=True)
parser.add_argument("--protoc", required=True)
options = parser.parse_args()
options.root = os.path.abspath(options.root)
sys.exit(main())
