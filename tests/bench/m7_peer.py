"""M7, the other side: torch.utils.checkpoint, whole and selective, on the GPT-2 of bench_m7.cc.

    m7_peer.py OURS [--quick]

Needs torch of the version in cmake/libtorch-version. OURS holds what bench_m7 printed: there are
figures only when the plain model has the same loss and holds the same bytes here as it does there.
"""

import argparse
import functools
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import (CheckpointPolicy, checkpoint,
                                    create_selective_checkpoint_contexts)

from figures import centre, line

LAYERS, WIDTH, HEADS, LENGTH, ROWS, WORDS = 4, 256, 4, 128, 8, 512
LOSS_TOLERANCE, BYTES_TOLERANCE = 1e-5, 1e-3

aten = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.addmm.default, aten.bmm.default}
ATTENTION = {aten._scaled_dot_product_flash_attention_for_cpu.default}


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.p = dropout
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = nn.Linear(WIDTH, WIDTH)
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, 4 * WIDTH)
        self.proj = nn.Linear(4 * WIDTH, WIDTH)

    def dropped(self, x):
        return F.dropout(x, self.p, self.training) if self.p > 0 else x

    def attend(self, qkv):
        q, k, v = (part.view(ROWS, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)
                   for part in qkv.split(WIDTH, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        return y.transpose(1, 2).reshape(ROWS, LENGTH, WIDTH)

    def forward(self, x):
        x = x + self.dropped(self.c_proj(self.attend(self.c_attn(self.ln_1(x)))))
        return x + self.dropped(self.proj(F.gelu(self.fc(self.ln_2(x)))))


class Gpt(nn.Module):
    """Made in the order of bench_m7.cc, so that a seed gives equal weights."""

    def __init__(self, dropout):
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.wpe = nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList()
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.h.extend(Layer(dropout) for _ in range(LAYERS))
        self.places = torch.arange(LENGTH)

    def loss(self, tokens, targets, way):
        x = self.wte(tokens) + self.wpe(self.places)
        for number, layer in enumerate(self.h):
            x = way(number, layer, x)
        return F.cross_entropy(self.head(self.ln_f(x)).view(-1, WORDS), targets)


def saves_products_and_attention(context, operator, *_, **__):
    saved = operator in PRODUCTS or operator in ATTENTION
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


class SavesEverySecondProduct:
    """The policy of one block in one step: forward and recomputation count on their own."""

    def __init__(self):
        self.products = {False: 0, True: 0}

    def __call__(self, context, operator, *_, **__):
        saved = operator in ATTENTION
        if operator in PRODUCTS:
            saved = self.products[context.is_recompute] % 2 == 0
            self.products[context.is_recompute] += 1
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def plain(_, layer, x):
    return layer(x)


def whole(_, layer, x):
    return checkpoint(layer, x, use_reentrant=False)


def every_second(number, layer, x):
    return whole(number, layer, x) if number % 2 == 0 else layer(x)


def selective(_, layer, x, make_policy):
    return checkpoint(layer, x, use_reentrant=False,
                      context_fn=lambda: create_selective_checkpoint_contexts(make_policy()))


PEERS = {
    "every block": whole,
    "every second block": every_second,
    "all but products and attention": functools.partial(
        selective, make_policy=lambda: saves_products_and_attention),
    "all but every second product and attention": functools.partial(
        selective, make_policy=SavesEverySecondProduct),
}


class Memory:
    """Bytes of the CPU allocator above a step's start, from the allocations that a profile saw."""

    def __init__(self, held, peak):
        self.held, self.peak = held, peak

    @staticmethod
    def of(profiled, middle):
        level, held, peak = 0, 0, 0
        events = [event for event in profiled.profiler.kineto_results.events()
                  if event.name() == "[memory]"]
        for event in sorted(events, key=lambda event: event.start_ns()):
            level += event.nbytes()
            peak = max(peak, level)
            if event.start_ns() <= middle:
                held = level
        return Memory(held, peak)


class Bench:
    def __init__(self, dropout):
        torch.manual_seed(1)
        self.model = Gpt(dropout)
        self.tokens = torch.randint(WORDS, (ROWS, LENGTH))
        self.targets = torch.randint(WORDS, (ROWS * LENGTH,))
        self.dropout = dropout
        self.step(plain)
        self.gradients = self.gradient_copies()
        self.differing = 0

    def gradient_copies(self):
        return [p.grad.clone() for p in self.model.parameters()]

    def begin(self):
        torch.manual_seed(3)
        self.model.zero_grad()

    def step(self, way):
        """Seconds of this thread's CPU time."""
        self.begin()
        start = time.thread_time()
        self.model.loss(self.tokens, self.targets, way).backward()
        return time.thread_time() - start

    def loss(self):
        torch.manual_seed(3)
        return self.model.loss(self.tokens, self.targets, plain).item()

    def memory(self, way):
        self.begin()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
            loss = self.model.loss(self.tokens, self.targets, way)
            middle = time.time_ns()
            loss.backward()
        return Memory.of(profiled, middle)

    def ratio(self, way):
        """Of two steps in a row the second counts."""
        self.step(plain)
        expected = self.step(plain)
        self.step(way)
        found = self.step(way)
        self.differing += not all(
            torch.equal(p.grad, g) for p, g in zip(self.model.parameters(), self.gradients))
        return found / expected


def ours_of(path, dropout):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(text) for text in file]
    for found in lines:
        config = found["config"]
        if config["figure"] == "loss of the plain model" and config["dropout"] == dropout:
            return found["value"], config["held_mib"]
    raise RuntimeError(f"M7: expected the plain model's loss at dropout {dropout} in {path}")


def check(bench, memory, path):
    loss, held = ours_of(path, bench.dropout)
    found_loss, found_held = bench.loss(), memory.held / 2**20
    if (abs(found_loss - loss) > LOSS_TOLERANCE * loss
            or abs(found_held - held) > BYTES_TOLERANCE * held):
        raise RuntimeError(f"M7, dropout {bench.dropout}: expected the plain model's loss {loss} and "
                           f"{held} MiB held, found {found_loss} and {found_held}; there are no "
                           "figures of peers")


def compare(dropout, rounds, path):
    bench = Bench(dropout)
    memories = {name: bench.memory(way) for name, way in PEERS.items()}
    whole_memory = bench.memory(plain)
    check(bench, whole_memory, path)
    ratios = {name: [] for name in PEERS}
    for _ in range(rounds):
        for name, way in PEERS.items():
            ratios[name].append(bench.ratio(way))
    for name, memory in memories.items():
        value, low, high = centre(ratios[name])
        line("M7", value, "ratio", "time of a peer", peer=name, dropout=dropout, low_95=low,
             high_95=high, held_part=memory.held / whole_memory.held,
             peak_part=memory.peak / whole_memory.peak, rounds=rounds)
    line("M7", bench.differing, "steps", "steps of peers whose gradients differ from plain ones",
         dropout=dropout)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ours")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        for dropout in (0.0, 0.1):
            compare(dropout, 1 if options.quick else 12, options.ours)
    except RuntimeError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
