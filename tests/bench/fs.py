"""FS: an adopted loop whose ranks divide what they hold, beside the same loop replicated, and beside PyTorch's
DistributedDataParallel and FSDP2 over gloo.

    fs.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --text FILE --scratch DIR [--quick]

All programs are alive all the time and take turns of some steps; who waits sleeps. Prints figures only when
the losses of all agree.
"""

import argparse
import os
import subprocess

from figures import line, quantile
from turns import Ranks

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS, LENGTH = 1, 128
CHECKED_STEPS, TOLERANCE = 20, 1e-5
OURS = {"sharded": ["--cox.shard.mode=state"], "replicated": []}
PEERS = {"DDP": "25MB", "FSDP2": "fsdp2"}
MEMORY_LIMITS = {2: 0.6, 4: 0.35}


class Match:
    """All programs at one number of ranks."""

    def __init__(self, options, world, task):
        self.world = world
        self.common = {"ranks": world, "threads": 1}
        self.sides = {name: Ranks(name, os.path.join(options.scratch, f"{name}{world}"), world)
                      for name in (*OURS, *PEERS)}
        for name, flags in OURS.items():
            self.sides[name].start([options.mpiexec, "-n", str(world), options.bench, "turns", task,
                                    self.sides[name].folder, str(ROWS), "--cox.run.log=error",
                                    "--cox.http.enabled=off", *flags], threads=1)
        for name in PEERS:
            self.sides[name].start(*([options.peer_python, "-B", os.path.join(HERE, "ddp_peer.py"), task,
                                      self.sides[name].folder, str(ROWS), str(rank), str(world), "1"]
                                     for rank in range(world)), threads=1)

    def turn(self, side, steps):
        return self.sides[side].turn(PEERS.get(side, "-"), steps)

    def check(self):
        losses = {}
        for side in self.sides:
            ranks = [answer["losses"] for answer in self.turn(side, CHECKED_STEPS)]
            losses[side] = [sum(each) / self.world for each in zip(*ranks)]
        if losses["sharded"] != losses["replicated"]:
            raise RuntimeError(f"FS, {self.world} ranks: expected equal losses of both of ours, found others")
        worst = max(abs(a - b) / abs(b) for peer in PEERS for a, b in zip(losses["sharded"], losses[peer]))
        if not worst <= TOLERANCE:
            raise RuntimeError(f"FS, {self.world} ranks: expected losses that agree to {TOLERANCE}, found a "
                               f"difference of {worst:.3g}; there are no figures")
        line("FS", worst, "ratio", "largest relative difference of losses", TOLERANCE, **self.common,
             steps=CHECKED_STEPS)

    def play(self, rounds, steps):
        speeds = {side: [] for side in self.sides}
        updates = {side: [] for side in OURS}
        memory = {}
        for number in range(rounds):
            for side in list(self.sides) if number % 2 == 0 else reversed(list(self.sides)):
                answers = self.turn(side, steps + 1)
                seconds = max(answer["seconds"] for answer in answers)
                speeds[side].append(steps * self.world * ROWS * LENGTH / seconds)
                if side in OURS:
                    updates[side].append(1e3 * max(answer["update_s"] for answer in answers) / steps)
                memory[side] = sum(answer["pss_kib"] - answer["base_kib"] for answer in answers) / 1024
        return speeds, updates, memory

    def tell(self, rounds, steps):
        speeds, updates, memory = self.play(rounds, steps)
        speed = {side: quantile(each, 0.5) for side, each in speeds.items()}
        tell = lambda *args, **more: line("FS", *args, **self.common, **more)
        tell(speed["sharded"] / speed["FSDP2"], "times", "tokens/s against FSDP2", 1.5, "higher",
             tokens_s=speed["sharded"], fsdp2_tokens_s=speed["FSDP2"])
        tell(speed["sharded"] / speed["replicated"], "times", "tokens/s against replicated", 0.97, "higher",
             replicated_tokens_s=speed["replicated"])
        tell(speed["sharded"] / speed["DDP"], "times", "tokens/s against DDP", None, "higher",
             ddp_tokens_s=speed["DDP"])
        for side in OURS:
            tell(quantile(updates[side], 0.5), "ms", f"update, {side}")
        tell(memory["sharded"] / memory["DDP"], "of DDP's", "memory of the node, sharded",
             MEMORY_LIMITS[self.world], mib=memory["sharded"], ddp_mib=memory["DDP"],
             fsdp2_mib=memory["FSDP2"], replicated_mib=memory["replicated"])

    def close(self):
        for ranks in self.sides.values():
            ranks.quit()

    def kill(self):
        for ranks in self.sides.values():
            ranks.kill()


def main():
    parser = argparse.ArgumentParser()
    for name in ("bench", "mpiexec", "peer-python", "text", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    task = os.path.join(options.scratch, "task")
    os.makedirs(task)
    subprocess.run([options.bench, "task", task, options.text], check=True)
    for world in (2,) if options.quick else (2, 4):
        match = Match(options, world, task)
        try:
            match.check()
            match.tell(*((3, 4) if options.quick else (8, 6)))
            match.close()
        finally:
            match.kill()


if __name__ == "__main__":
    main()
