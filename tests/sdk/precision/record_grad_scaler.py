"""Records what torch.amp.GradScaler does, step by step, for grad_scaler_test.cc to repeat.

    python3 -m venv VENV && VENV/bin/pip install torch==2.11.0 numpy
    VENV/bin/python record_grad_scaler.py > grad_scaler.txt

Every sequence drives the real GradScaler("cpu") and a real optimizer over a tiny fp32 model, whose
gradients are computed element by element, so that they have the same bits everywhere. A line is a
run of `count` steps with the same `factor` of the loss and the same results, in which the growth
tracker goes up by one a step; numbers are exact (hexadecimal).

    sequence NAME init growth backoff interval optimizer weights(0|1)
    run count factor scale tracker skipped [w0 w1 w2 w3]
    end
"""

import random
import re
import sys

import torch

TARGET = [0.5, -1.25, 3.0, 0.0625]
START = [1.0, 0.75, -2.0, 0.33]
INF = float("inf")


def exact(value):
    return re.sub(r"\.?0+p", "p", float(value).hex())


def make_optimizer(kind, weights):
    if kind == "sgd":
        return torch.optim.SGD([weights], lr=0.01)
    return torch.optim.AdamW([weights], lr=0.01, weight_decay=0.1, fused=True)


def loss_of(weights, factor):
    difference = weights - torch.tensor(TARGET)
    return (difference * difference).sum() * factor


def steps_of(setup, factors):
    name, init, growth, backoff, interval, kind, _ = setup
    weights = torch.tensor(START, requires_grad=True)
    optimizer = make_optimizer(kind, weights)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff,
        growth_interval=interval,
    )
    for factor in factors:
        optimizer.zero_grad()
        scaler.scale(loss_of(weights, factor)).backward()
        before = weights.detach().clone()
        scaler.step(optimizer)
        found = any(v.item() for v in scaler._found_inf_per_device(optimizer).values())
        assert not found or torch.equal(before, weights.detach()), name
        scaler.update()
        yield factor, scaler.get_scale(), scaler._get_growth_tracker(), found, weights.tolist()


def record(setup, factors):
    name, init, growth, backoff, interval, kind, keep_weights = setup
    print(f"sequence {name} {exact(init)} {exact(growth)} {exact(backoff)} {interval} {kind}"
          f" {int(keep_weights)}")
    run = None  # count, factor, scale, first tracker, skipped, weights
    for factor, scale, tracker, skipped, weights in steps_of(setup, factors):
        goes_on = (run and not keep_weights and run[1:3] == [factor, scale]
                   and run[4] == skipped and tracker == run[3] + run[0])
        if goes_on:
            run[0] += 1
            continue
        flush(run, keep_weights)
        run = [1, factor, scale, tracker, skipped, weights]
    flush(run, keep_weights)
    print("end")


def flush(run, keep_weights):
    if not run:
        return
    count, factor, scale, tracker, skipped, weights = run
    numbers = " ".join(map(exact, weights)) if keep_weights else ""
    print(f"run {count} {exact(factor)} {exact(scale)} {tracker} {int(skipped)} {numbers}"
          .rstrip())


def pattern(count, overflows):
    return [INF if step in overflows else 1.0 for step in range(count)]


def random_pattern(seed, count, rate):
    rng = random.Random(seed)
    return [INF if rng.random() < rate else 1.0 for _ in range(count)]


def single(value):
    return torch.tensor(value).item()  # rounded to fp32, in which coxswain keeps the rules


def main():
    torch.set_num_threads(1)
    print(f"# torch {torch.__version__.split('+')[0]}, written by record_grad_scaler.py")
    for kind in ("sgd", "adamw"):
        record((f"plain_{kind}", 65536.0, 2.0, 0.5, 4, kind, True), pattern(24, {3, 9, 10, 17}))
        record((f"burst_{kind}", 1024.0, 2.0, 0.5, 3, kind, True), pattern(30, set(range(5, 16))))
        record((f"interval_1_{kind}", 8.0, 2.0, 0.5, 1, kind, True), pattern(16, {4, 8, 9}))
        record((f"other_factors_{kind}", 100.0, single(1.5), single(0.7), 2, kind, True),
               pattern(24, {0, 7, 8, 20}))
        # No infinity is injected: fp32 itself overflows at scales near 2^127.
        record((f"grows_too_far_{kind}", 2.0**118, 2.0, 0.5, 2, kind, True), [1.0] * 40)
        # The loss alone is not finite in a way that leaves NaN, not infinity, in the gradient.
        record((f"nan_{kind}", 2.0, 2.0, 0.5, 2, kind, True),
               [float("nan") if s % 5 == 3 else 1.0 for s in range(20)])
    record(("stays_at_largest", 2.0**126, 2.0, 0.5, 1, "sgd", False), [0.0] * 12)
    record(("falls_for_ever", 16.0, 2.0, 0.5, 3, "sgd", False), [INF] * 170)
    record(("default", 65536.0, 2.0, 0.5, 2000, "sgd", False),
           pattern(9000, {0, 1, 1999, 2000, 2001, 4003, 4004, 6005}))
    record(("periodic_late", 65536.0, 2.0, 0.5, 2000, "sgd", False),
           [INF if s % 1999 == 1998 else 1.0 for s in range(8000)])
    record(("alternates", 65536.0, 2.0, 0.5, 1, "sgd", False), [1.0, INF] * 100)
    for seed in range(8):
        rate = (0.01, 0.05, 0.2, 0.5)[seed % 4]
        interval = (1, 2, 7, 20, 100, 500)[seed % 6]
        record((f"random_{seed}", 2.0 ** (seed * 2), 2.0, 0.5, interval, "sgd", False),
               random_pattern(seed, 300, rate))
    for seed in range(8, 11):
        record((f"random_factors_{seed}", 256.0, single(1.25), single(0.3), 5, "adamw", False),
               random_pattern(seed, 200, 0.15))


if __name__ == "__main__":
    sys.exit(main())
