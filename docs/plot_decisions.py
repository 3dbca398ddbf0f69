"""Plots which decisions of a journal came in which rounds. docs/journal.md quotes it.

    protoc --proto_path=coordinator/wire --python_out=. coordinator/wire/control.proto
    python3 docs/plot_decisions.py runs/my-run/journal.cox
"""

# [decisions]
import struct, sys
from control_pb2 import JournalRound, ReasonCode
from matplotlib import pyplot
data, at, rows = open(sys.argv[1], "rb").read(), 16, []  # behind the header of the file
while at + 12 <= len(data):
    length, kind = struct.unpack_from("<IH", data, at)
    at += 12 + length
    if kind == 2 and at <= len(data):  # a round that is whole
        message = JournalRound.FromString(data[at - length : at])
        rows += [(message.signals.round, ReasonCode.Name(reason.code)) for reason in message.decision.reasons]
pyplot.plot(*zip(*rows), "."), pyplot.savefig("decisions.svg")
# [/decisions]
