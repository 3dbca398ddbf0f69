"""F4 in PyTorch: saves and loads as many bytes as bench_saves does.

    f4_peer.py torch.save|dcp save|load PATH LAYERS     prints the seconds; a save ends with fsync
"""

import os
import sys
import time

import torch
import torch.distributed.checkpoint as dcp

WIDTH = 4096


def state_of(layers):
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def sync(path):
    for folder, _, names in os.walk(path):
        for name in names:
            sync(os.path.join(folder, name))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def main():
    kind, act, path, layers = sys.argv[1:5]
    state = state_of(int(layers))
    start = time.monotonic()
    if kind == "torch.save" and act == "save":
        torch.save(state, path)
    elif kind == "torch.save":
        torch.load(path)
    elif act == "save":
        dcp.save(state, checkpoint_id=path)
    else:
        dcp.load(state, checkpoint_id=path)
    if act == "save":
        sync(path)
    print(time.monotonic() - start)


if __name__ == "__main__":
    main()
