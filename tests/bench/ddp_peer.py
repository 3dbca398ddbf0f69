"""D1 and FS, the other side: PyTorch DistributedDataParallel, or FSDP2, over gloo on the same GPT-2. One
process a rank.

    ddp_peer.py FOLDER PIPES ROWS RANK WORLD THREADS

Needs torch of the version in cmake/libtorch-version. FOLDER holds what `bench_d1 task` wrote; orders
come through PIPES/RANK.in ("turn VARIANT STEPS", "quit"), answers go to PIPES/RANK.out.
"""

import json
import math
import os
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

DTYPES = {"F32": torch.float32, "I64": torch.int64}
# What a variant gives DistributedDataParallel; None = no DistributedDataParallel at all.
VARIANTS = {
    "plain": None,
    "fsdp2": None,
    "25MB": {"bucket_cap_mb": 25},
    "4MB": {"bucket_cap_mb": 4},
}


def read_safetensors(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        count = math.prod(entry["shape"])
        flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]], count=count,
                                offset=entry["data_offsets"][0])
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


class Projection(nn.Module):
    """y = x W + b with W stored [in, out]."""

    def __init__(self, width_in, width_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_in, width_out))
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, x):
        rows = x.reshape(-1, x.size(-1))
        return torch.addmm(self.bias, rows, self.weight).view(*x.shape[:-1], self.weight.size(1))


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config["n_head"]
        self.c_attn = Projection(config["n_embd"], 3 * config["n_embd"])
        self.c_proj = Projection(config["n_embd"], config["n_embd"])

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(x).split(width, -1))
        scale = 1.0 / math.sqrt(width // self.heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self.c_proj(mixed.transpose(1, 2).reshape(rows, length, width))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = Projection(config["n_embd"], 4 * config["n_embd"])
        self.c_proj = Projection(4 * config["n_embd"], config["n_embd"])

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        eps = config["layer_norm_epsilon"]
        self.ln_1 = nn.LayerNorm(config["n_embd"], eps=eps)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config["n_embd"], eps=eps)
        self.mlp = Mlp(config)

    def forward(self, x):
        attended = x + self.attn(self.ln_1(x))
        return attended + self.mlp(self.ln_2(attended))


class Transformer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.wpe = nn.Embedding(config["n_positions"], config["n_embd"])
        self.h = nn.ModuleList(Layer(config) for _ in range(config["n_layer"]))
        self.ln_f = nn.LayerNorm(config["n_embd"], eps=config["layer_norm_epsilon"])


class Gpt2(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transformer = Transformer(config)

    def forward(self, tokens, targets):
        parts = self.transformer
        hidden = parts.wte(tokens) + parts.wpe(torch.arange(tokens.size(1)))
        for layer in parts.h:
            hidden = layer(hidden)
        logits = F.linear(parts.ln_f(hidden), parts.wte.weight)
        return F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


def optimizer_of(model):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=True)


def shard(model):
    """As torchtitan does it: each layer is a group, and the rest is one."""
    for layer in model.transformer.h:
        fully_shard(layer)
    fully_shard(model)


def pss_kib():
    with open("/proc/self/smaps_rollup", encoding="utf-8") as rollup:
        return next(int(row.split()[1]) for row in rollup if row.startswith("Pss:"))


class Loop:
    """One variant: its own model and optimizer from the same weights, its own place in the data."""

    def __init__(self, variant, folder, slot):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        model = Gpt2(config)
        weights = read_safetensors(os.path.join(folder, "model.safetensors"))
        model.load_state_dict(weights)
        self.tokens = read_safetensors(os.path.join(folder, "tokens.safetensors"))["tokens"]
        self.rank, self.world, self.rows = slot
        if variant == "fsdp2":
            shard(model)
        self.optimizer = optimizer_of(model)
        settings = VARIANTS[variant]
        self.model = model if settings is None else nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False,
            **settings)
        self.next = 0

    def batch(self):
        first = (self.next * self.world + self.rank) * self.rows
        picked = self.tokens[torch.arange(first, first + self.rows) % self.tokens.size(0)]
        self.next += 1
        return picked[:, :-1], picked[:, 1:]

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(*self.batch())
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def turn(self, steps):
        losses = [self.step()]
        start, cpu_start = time.perf_counter(), time.process_time()
        losses += [self.step() for _ in range(steps - 1)]
        return {"seconds": time.perf_counter() - start, "losses": losses,
                "cpu": time.process_time() - cpu_start, "base_kib": BASE_KIB, "pss_kib": pss_kib()}


def take_turns(folder, pipes, slot):
    loops = {}
    pipe = os.path.join(pipes, str(slot[0]))
    with open(pipe + ".in", encoding="utf-8") as orders, open(pipe + ".out", "w",
                                                               encoding="utf-8") as answers:
        print("{}", file=answers, flush=True)
        for line in orders:
            order, *rest = line.split()
            if order != "turn":
                return
            variant, steps = rest[0], int(rest[1])
            if variant not in loops:
                loops[variant] = Loop(variant, folder, slot)
            print(json.dumps(loops[variant].turn(steps)), file=answers, flush=True)


BASE_KIB = pss_kib()  # before there is a model


def main():
    folder, pipes = sys.argv[1:3]
    rows, rank, world, threads = map(int, sys.argv[3:7])
    torch.set_num_threads(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group("gloo", init_method="file://" + os.path.join(pipes, "meeting"),
                            rank=rank, world_size=world)
    take_turns(folder, pipes, (rank, world, rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
