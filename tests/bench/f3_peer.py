"""F3 in PyTorch: goes on from a save of bench_saves, opened by safetensors alone.

    f3_peer.py FOLDER       prints the losses of the three steps after the save

FOLDER has the files of a save, or what `cox checkpoint merge` made of them.
"""

import glob
import json
import os
import sys

import torch
from safetensors.torch import load_file

ROWS, INPUTS, SAVED_STEPS, MORE_STEPS = 24, 8, 6, 3


def tensors_of(folder, kind):
    """By Hugging Face's index where there is one."""
    index = os.path.join(folder, kind + ".safetensors.index.json")
    if not os.path.exists(index):
        return load_file(os.path.join(folder, kind + ".safetensors"))
    with open(index, encoding="utf-8") as file:
        files = set(json.load(file)["weight_map"].values())
    found = {name: tensor for each in files for name, tensor in load_file(os.path.join(folder, each)).items()}
    assert len(files) == len(glob.glob(os.path.join(folder, kind + "-*.safetensors")))
    return found


def text_of(tensor):
    return bytes(tensor.tolist()).decode()


def optimizer_of(model, state):
    """Each group with its options, each parameter with its state, by names."""
    parameters = dict(model.named_parameters())
    groups = []
    while f"group.{len(groups)}" in state:
        number = len(groups)
        options = {name: state[f"options.{number}.{name}"].tolist() for name in ("lr", "eps", "weight_decay", "betas")}
        names = text_of(state[f"group.{number}"]).split("\n")
        groups.append({**options, "betas": tuple(options["betas"]), "params": [parameters[name] for name in names]})
    assert text_of(state["kind"]) == "AdamW"
    optimizer = torch.optim.AdamW(groups)
    for name, parameter in parameters.items():
        optimizer.state[parameter] = {"step": state["step." + name].to(torch.float32),
                                      "exp_avg": state["exp_avg." + name],
                                      "exp_avg_sq": state["exp_avg_sq." + name]}
    return optimizer


def batch_of(step):
    return torch.sin(torch.arange(ROWS * INPUTS, dtype=torch.float64) * 0.37 * (step + 1)).float().view(ROWS, INPUTS)


def main():
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model.load_state_dict(tensors_of(sys.argv[1], "model"))
    optimizer = optimizer_of(model, tensors_of(sys.argv[1], "optimizer"))
    losses = []
    for step in range(SAVED_STEPS, SAVED_STEPS + MORE_STEPS):
        x = batch_of(step)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
