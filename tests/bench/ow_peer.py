"""OW, the other side: the loop of bench_ow.cc in Python, as it is or under pytscope's AutoProfiler.

    ow_peer.py plain|watched STEPS FOLDER

Prints the milliseconds of every step but the first ten, as a JSON array.
"""

import json
import sys
import time

import torch
from torch import nn

WIDTH, ROWS, LAYERS, WARMUP_STEPS = 768, 256, 6, 10


def draw_batch():
    return torch.randn(ROWS, WIDTH).sort(1).values


def make_model():
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers)


def profiler(model, optimizer, folder):
    from pytscope.auto import AutoProfiler
    return AutoProfiler(folder, model, optimizer, warmup=WARMUP_STEPS)


def main(mode, steps, folder):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    watching = profiler(model, optimizer, folder) if mode == "watched" else None
    if watching:
        watching.start()
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        x = draw_batch()
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.append(1e3 * (time.perf_counter() - began))
    if watching:
        watching.finish()
    print(json.dumps(took[WARMUP_STEPS:]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
