"""D1: tokens a second of our Reducer against PyTorch DistributedDataParallel over gloo.

    d1.py --bench PROGRAM --mpiexec PROGRAM --peer-python PROGRAM --text FILE --scratch DIR [--quick]

Both sides are alive all the time and take turns of some steps; who waits sleeps. Prints figures only
when the losses of both agree.
"""

import argparse
import os
import subprocess
import sys

from figures import centre, line, quantile
from turns import Ranks

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS, LENGTH = 4, 128
CHECKED_STEPS, TOLERANCE = 20, 1e-5
LIMIT = 1.05
VARIANTS = {1: ["plain", "25MB"], 2: ["25MB", "4MB"], 4: ["25MB", "4MB"]}


class Match:
    """Both sides at one number of ranks."""

    def __init__(self, options, world, folder):
        self.world = world
        self.threads = 2 if world == 1 else 1
        self.ours = Ranks("ours", os.path.join(folder, f"ours{world}"), world)
        self.peer = Ranks("DDP", os.path.join(folder, f"ddp{world}"), world)
        self.variants = VARIANTS[world]
        self.start(options, folder)

    def start(self, options, folder):
        self.ours.start([options.mpiexec, "-n", str(self.world), options.bench, "turns", folder,
                         self.ours.folder, str(ROWS), "--cox.run.log=error", "--cox.http.port=0"],
                        threads=self.threads)
        self.peer.start(*([options.peer_python, "-B", os.path.join(HERE, "ddp_peer.py"), folder,
                           self.peer.folder, str(ROWS), str(rank), str(self.world),
                           str(self.threads)] for rank in range(self.world)), threads=self.threads)

    def check(self):
        """The largest relative difference of losses over the first steps, for every variant."""
        ours = self.ours.turn("ours", CHECKED_STEPS)[0]["losses"]
        worst = 0.0
        for variant in self.variants:
            ranks = [answer["losses"] for answer in self.peer.turn(variant, CHECKED_STEPS)]
            means = [sum(losses) / self.world for losses in zip(*ranks)]
            worst = max([worst] + [abs(a - b) / abs(b) for a, b in zip(ours, means)])
        if not worst <= TOLERANCE:
            raise RuntimeError(f"D1, {self.world} ranks: expected losses that agree to {TOLERANCE} over "
                               f"{CHECKED_STEPS} steps, found a difference of {worst:.3g}; no figures")
        return worst, ours

    def turn(self, side, steps):
        """Tokens a second, and what the ranks answered."""
        answers = (self.ours if side == "ours" else self.peer).turn(side, steps)
        tokens = (steps - 1) * self.world * ROWS * LENGTH
        return tokens / max(answer["seconds"] for answer in answers), answers

    def close(self):
        self.ours.quit()
        self.peer.quit()

    def kill(self):
        self.ours.kill()
        self.peer.kill()


def rounds_of(match, rounds, steps):
    """Tokens a second by side, one of each a round; every other round goes backwards."""
    sides = ["ours"] + match.variants
    speeds = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            speeds[side].append(match.turn(side, steps)[0])
    return speeds


def tell(match, speeds, worst, losses, steps):
    best = max(match.variants, key=lambda variant: quantile(speeds[variant], 0.5))
    ratios = [a / b for a, b in zip(speeds["ours"], speeds[best])]
    value, low, high = centre(ratios)
    common = {"ranks": match.world, "threads": match.threads}
    line("D1", value, "ratio", "tokens/s against DDP", LIMIT if match.world > 1 else None, "higher",
         **common, low_95=low, high_95=high, least=min(ratios), most=max(ratios),
         rounds=len(ratios), steps=steps - 1, ddp=best)
    for side, samples in speeds.items():
        name = "ours" if side == "ours" else f"DDP {side}" if side != "plain" else "no DDP"
        line("D1", quantile(samples, 0.5), "tokens/s", f"tokens/s, {name}", None, "higher", **common,
             quarter=quantile(samples, 0.25), three_quarters=quantile(samples, 0.75))
    line("D1", worst, "ratio", "largest relative difference of losses", TOLERANCE, "lower", **common,
         steps=CHECKED_STEPS, first_loss=losses[0], last_loss=losses[-1])


def play(options, world, folder):
    match = Match(options, world, folder)
    try:
        worst, losses = match.check()
        rounds, steps = (3, 6) if options.quick else ({1: 16, 2: 16, 4: 10}[world], 8)
        tell(match, rounds_of(match, rounds, steps), worst, losses, steps)
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
