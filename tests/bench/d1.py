"""D1: tokens a second of our Reducer against PyTorch DistributedDataParallel over gloo.

    d1.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --text FILE --scratch DIR [--quick]

Both sides are alive all the time and take turns of some steps; who waits sleeps. Prints figures only
when the losses of both agree.
"""

import argparse
import os
import subprocess
import sys

import d1_figures
from figures import line
from turns import Ranks

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS, LENGTH = 4, 128
CHECKED_STEPS, TOLERANCE = 20, 1e-5
VARIANTS = {1: ["plain", "25MB"], 2: ["25MB", "4MB"], 4: ["25MB", "4MB"]}
ROUNDS = {1: 16, 2: 16, 4: 10}


class Match:
    """Both sides at one number of ranks."""

    def __init__(self, options, world, folder):
        self.world = world
        self.common = {"ranks": world, "threads": 2 if world == 1 else 1}
        self.ours = Ranks("ours", os.path.join(folder, f"ours{world}"), world)
        self.peer = Ranks("DDP", os.path.join(folder, f"ddp{world}"), world)
        self.sides = ["ours"] + VARIANTS[world]
        self.start(options, folder)

    def start(self, options, folder):
        threads = self.common["threads"]
        self.ours.start([options.mpiexec, "-n", str(self.world), options.bench, "turns", folder,
                         self.ours.folder, str(ROWS), "--cox.run.log=error", "--cox.http.port=0"],
                        threads=threads)
        self.peer.start(*([options.peer_python, "-B", os.path.join(HERE, "ddp_peer.py"), folder,
                           self.peer.folder, str(ROWS), str(rank), str(self.world), str(threads)]
                          for rank in range(self.world)), threads=threads)

    def answers(self, side, steps):
        return (self.ours if side == "ours" else self.peer).turn(side, steps)

    def losses(self, side):
        """Over all ranks; ours says each step's mean on every rank."""
        ranks = [answer["losses"] for answer in self.answers(side, CHECKED_STEPS)]
        return [sum(losses) / self.world for losses in zip(*ranks)]

    def check(self):
        losses = {side: self.losses(side) for side in self.sides}
        ours = losses.pop("ours")
        worst = max(abs(a - b) / abs(b) for peer in losses.values() for a, b in zip(ours, peer))
        if not worst <= TOLERANCE:
            raise RuntimeError(f"D1, {self.world} ranks: expected losses that agree to {TOLERANCE} "
                               f"over {CHECKED_STEPS} steps, found a difference of {worst:.3g}; "
                               "there are no figures")
        line("D1", worst, "ratio", "largest relative difference of losses", TOLERANCE, "lower",
             **self.common, steps=CHECKED_STEPS, first_loss=ours[0], last_loss=ours[-1])

    def turn(self, side, steps):
        """The first step of a turn is in none of the times."""
        answers = self.answers(side, steps + 1)
        tokens = steps * self.world * ROWS * LENGTH
        return {"side": side, "steps": steps, "answers": answers,
                "speed": tokens / max(answer["seconds"] for answer in answers)}

    def play(self, rounds, steps):
        """One turn of every side in each round; every other round goes backwards."""
        turns = []
        for number in range(rounds):
            for side in self.sides if number % 2 == 0 else reversed(self.sides):
                turns.append(self.turn(side, steps))
        return turns

    def close(self):
        self.ours.quit()
        self.peer.quit()

    def kill(self):
        self.ours.kill()
        self.peer.kill()


def play(options, world, folder):
    match = Match(options, world, folder)
    try:
        match.check()
        turns = match.play(*((3, 5) if options.quick else (ROUNDS[world], 7)))
        d1_figures.tell_speed(turns, match.common)
        if world > 1:
            d1_figures.tell_overlap(turns, match.common)
        match.close()
    finally:
        match.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bench", "mpiexec", "peer-python", "text", "scratch"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], choices=sorted(VARIANTS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    folder = os.path.join(options.scratch, "d1")
    os.makedirs(folder)
    subprocess.run([options.bench, "task", folder, options.text], check=True)
    try:
        for world in options.ranks:
            play(options, world, folder)
    except RuntimeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
