"""F4: what a save beside the steps costs them, and how fast saves and loads are beside the disk.

    f4.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --scratch DIR [--quick]

One job of two ranks times blocks of steps in turn, with a save at the beginning of every other one. Then
saves and loads take turns with dd, torch.save and torch.distributed.checkpoint of as many bytes; a
save counts until it is on the disk, and what is loaded is not in memory before.
"""

import argparse
import json
import os
import shutil
import subprocess
import time

from figures import centre, line, quantile

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 64 << 20


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3600).stdout


def rows_of(options, ranks, mode, folder, *flags):
    quick = ["--quick"] if options.quick else []
    found = output_of([options.mpiexec, "-n", str(ranks), options.bench, mode, *quick, "--cox.run.log=error",
                       "--cox.http.enabled=off", "--cox.checkpoint.directory=" + folder, *flags])
    return [json.loads(text) for text in found.splitlines() if text.startswith("{")]


def time_steps(options):
    rows = rows_of(options, 2, "steps", os.path.join(options.scratch, "steps"), "--cox.checkpoint.keep=1")
    rank = next(row for row in rows if row["rank"] == 0)
    plain, saving = rank["plain_s"], rank["saving_s"]
    growth, low, high = centre([100 * (b / a - 1) for a, b in zip(plain, saving, strict=True)])
    config = {"parameters": rank["parameters"], "ranks": 2, "pairs": len(plain)}
    line("F4", growth, "% growth of the mean step", "a save beside the steps", limit=1, low_95=low, high_95=high, **config)
    line("F4", sum(plain) / len(plain), "s", "mean step without saves", **config)
    line("F4", max(rank["longest_s"]), "s", "longest step with saves", **config)


def files_below(path):
    return [path] if os.path.isfile(path) else [os.path.join(at, n) for at, _, names in os.walk(path) for n in names]


def forget(path):
    """Lets the system drop what it has of the files in memory."""
    for name in files_below(path):
        descriptor = os.open(name, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


class Disk:
    """Seconds to save and load by each way, which take turns."""

    def __init__(self, options):
        self.options, self.layers, self.took = options, "2" if options.quick else "6", {}
        self.bytes = 0
        self.plain_start = {}  # seconds, by ranks

    def path(self, way):
        return os.path.join(self.options.scratch, way.replace(" ", "-"))

    def ours(self, ranks, act):
        """A load is what a Trainer that resumes starts later than the one that saved."""
        folder = self.path(f"ours at {ranks}")
        rows = rows_of(self.options, ranks, act, folder)
        self.bytes = max(self.bytes, sum(os.path.getsize(name) for name in files_below(folder)))
        start = max(row["start_s"] for row in rows)
        if act == "load":
            return start - self.plain_start[ranks]
        self.plain_start[ranks] = start
        return max(row["save_s"] for row in rows)

    def peer(self, kind, act):
        return float(output_of([self.options.peer_python, "-B", os.path.join(HERE, "f4_peer.py"), kind, act,
                                self.path(kind), self.layers]).split()[-1])

    def dd(self, act):
        ends = {"save": [f"of={self.path('dd')}", "if=/dev/zero", "oflag=direct", "conv=fsync"],
                "load": [f"if={self.path('dd')}", "of=/dev/null", "iflag=direct"]}
        start = time.monotonic()
        subprocess.run(["dd", f"bs={BLOCK}", f"count={max(1, self.bytes // BLOCK)}", *ends[act]], check=True,
                       stderr=subprocess.DEVNULL)
        return time.monotonic() - start

    def turn(self):
        ways = {"ours at 1": lambda act: self.ours(1, act), "ours at 2": lambda act: self.ours(2, act),
                "torch.save": lambda act: self.peer("torch.save", act), "dcp": lambda act: self.peer("dcp", act),
                "dd": self.dd}
        for way, run in ways.items():
            path = self.path(way)
            self.took.setdefault((way, "save"), []).append(run("save"))
            forget(path)
            self.took.setdefault((way, "load"), []).append(run("load"))
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)

    def print_figures(self):
        for act in ("save", "load"):
            raw = quantile(self.took["dd", act], 0.5)
            for (way, of), seconds in self.took.items():
                if of != act:
                    continue
                line("F4", raw / quantile(seconds, 0.5), "of the disk's raw speed", f"{act}, {way}",
                     limit=0.8 if way.startswith("ours") else None, better="higher", bytes=self.bytes,
                     turns=len(seconds), seconds=quantile(seconds, 0.5))


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "peer-python", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    time_steps(options)
    disk = Disk(options)
    for _ in range(1 if options.quick else 3):
        disk.turn()
    disk.print_figures()


if __name__ == "__main__":
    main()
