"""OW, the other side: the loop of bench_ow.cc in Python, as it is or under pytscope's AutoProfiler.

    ow_peer.py plain|watched PIPES FOLDER

Orders come through PIPES/0.in ("turn VARIANT STEPS", "quit"), answers go to PIPES/0.out: a turn is
answered with {"ms": [[data, forward, backward, optimizer] of each step]}.
"""

import json
import sys
import time

import torch
from torch import nn

WIDTH, ROWS, LAYERS = 512, 128, 6


def draw_batch():
    return torch.randn(ROWS, WIDTH).sort(1).values


class MeanSquare(nn.Module):
    """The loss is the model's last module, so that both sides end forward behind it."""

    def forward(self, y):
        return y.square().mean()


def make_model():
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, MeanSquare())


def profiler(model, optimizer, folder):
    from pytscope.auto import AutoProfiler
    return AutoProfiler(folder, model, optimizer)


def phases_of_step(model, optimizer):
    """The milliseconds of data, forward, backward and optimizer by this loop's own clock."""
    times = [time.perf_counter()]
    optimizer.zero_grad()
    x = draw_batch()
    times.append(time.perf_counter())
    loss = model(x)
    times.append(time.perf_counter())
    loss.backward()
    times.append(time.perf_counter())
    optimizer.step()
    times.append(time.perf_counter())
    return [1e3 * (after - before) for before, after in zip(times, times[1:])]


def take_turns(pipes, turn):
    with open(pipes + "/0.in", encoding="utf-8") as orders, \
            open(pipes + "/0.out", "w", encoding="utf-8") as answers:
        print("{}", file=answers, flush=True)
        for order in orders:
            words = order.split()
            if words[0] != "turn":
                return
            print(json.dumps(turn(int(words[2]))), file=answers, flush=True)


def main(mode, pipes, folder):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    watching = profiler(model, optimizer, folder) if mode == "watched" else None
    if watching:
        watching.start()
    take_turns(pipes, lambda steps: {"ms": [phases_of_step(model, optimizer) for _ in range(steps)]})
    if watching:
        watching.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
