"""Programs that wait for their turn: ranks that are told through named pipes to run some steps, so
that two programs can be compared step by step while only one of them computes."""

import json
import os
import select
import subprocess
import time

PATIENCE_S = 120  # for one answer


class Ranks:
    """`world` ranks, each with FOLDER/RANK.in for orders and FOLDER/RANK.out for answers."""

    def __init__(self, name, folder, world):
        self.name, self.folder, self.world = name, folder, world
        self.processes = []
        os.makedirs(folder)
        self.orders, self.answers, self.rest = [], [], [b""] * world
        for rank in range(world):
            for kind, ends in (("in", self.orders), ("out", self.answers)):
                path = os.path.join(folder, f"{rank}.{kind}")
                os.mkfifo(path)
                ends.append(os.open(path, os.O_RDWR))

    def start(self, *commands, threads):
        """One command for all ranks, or one a rank."""
        env = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
        for command in commands:
            self.processes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
        self.collect()

    def collect(self):
        """The next answer of every rank."""
        return [json.loads(self._line(rank)) for rank in range(self.world)]

    def _line(self, rank):
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self.rest[rank]:
            ready, _, _ = select.select([self.answers[rank]], [], [], 0.5)
            if ready:
                self.rest[rank] += os.read(self.answers[rank], 1 << 16)
            elif any(p.poll() is not None for p in self.processes):
                raise RuntimeError(f"{self.name}: expected an answer of rank {rank}, found that it "
                                   "had ended; its messages are above")
            elif time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: expected an answer of rank {rank} within "
                                   f"{PATIENCE_S} s, found none")
        line, _, self.rest[rank] = self.rest[rank].partition(b"\n")
        return line

    def turn(self, variant, steps):
        for order in self.orders:
            os.write(order, f"turn {variant} {steps}\n".encode())
        return self.collect()

    def quit(self):
        for order in self.orders:
            os.write(order, b"quit\n")
        for process in self.processes:
            process.wait(timeout=PATIENCE_S)

    def kill(self):
        """Ends what is still alive; mpiexec takes its ranks along when it is asked to end."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for end in self.orders + self.answers:
            os.close(end)
