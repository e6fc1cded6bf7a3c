"""A byte-level GPT with PyTorch/XLA that saves on SIGTERM, resumes, and completes a prompt.

Usage: tpufleet_launch xla -- python xla_gpt.py train TEXT CHECKPOINTS [--start FILE]
       tpufleet_launch xla -- python xla_gpt.py complete PROMPT CHECKPOINTS

CHECKPOINTS is a directory or gs://BUCKET/PREFIX; gs:// needs the package gcsfs. For ``complete``,
pass the CHECKPOINTS of a run that has trained, such as gs://BUCKET/checkpoints/RUN.
--start FILE trains only the output layer, as in finetuning. If CHECKPOINTS has no checkpoint yet,
the training begins with the weights in the checkpoint FILE.
"""

import argparse
import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import fsspec
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch import nn

CONTEXT, WIDTH, LAYERS, BATCH, STEPS = 64, 64, 2, 16, 100_000
EVERY = 10  # steps between checks for SIGTERM and between log lines
SAVE_EVERY = 20 * EVERY
SAVED = 75
asked_to_stop = []
# Set the handler at module level: torch_xla.launch imports this file in the process of each chip.
signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))


class GPT(nn.Module):
    """A transformer that returns the logits of the next byte at each position."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, 0, batch_first=True, norm_first=True
        )
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, CONTEXT, 256) for bytes (batch, CONTEXT)."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=text.device)
        x = self.tokens(text) + self.places.weight
        return self.head(self.layers(x, mask, is_causal=True))


def newest(checkpoints: str) -> tuple[int, str]:
    """Return the step and the path of the newest checkpoint; 0 and "" if there is none."""
    files, root = fsspec.core.url_to_fs(checkpoints)
    paths = [files.unstrip_protocol(path) for path in files.glob(f"{root}/step-*.pt")]
    steps = [int(re.sub(r".*/step-(\d+)\.pt", r"\1", path)) for path in paths]
    return max(zip(steps, paths, strict=True), default=(0, ""))


def load(path: str) -> dict:
    """Read a checkpoint into CPU memory."""
    with fsspec.open(path, "rb") as file:
        return torch.load(file, map_location="cpu")


def save(checkpoints: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write a checkpoint that appears under its name only when it is complete.

    A file is written under another name and then renamed. An object in a bucket appears only when
    it is complete.
    """
    files, root = fsspec.core.url_to_fs(checkpoints)
    files.makedirs(root, exist_ok=True)
    name = f"{root}/step-{step}.pt"
    written = name if checkpoints.startswith("gs://") else f"{root}/new"
    with files.open(written, "wb") as file:
        xm.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    if written != name:
        files.mv(written, name)
    print(f"saved step {step}", flush=True)


def report(step: int, loss: float) -> None:
    """Write the step and the loss to the metrics and the heartbeat, which tpufleet shows."""
    folder = Path(os.environ.get("TPUFLEET_RUN_DIR", "."))
    now = {"step": step, "time": time.time(), "loss": loss}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(now) + "\n")
    (folder / "heartbeat.new").write_text(json.dumps({"state": "training", "steps": STEPS, **now}))
    (folder / "heartbeat.new").replace(folder / "heartbeat.json")


def complete(model: nn.Module, prompt: bytes, length: int) -> str:
    """Return a completion of the prompt: ``length`` bytes, each the most probable one, as text.

    Each input is padded to the same shape, so that XLA compiles only once.
    """
    text = [*prompt]
    for _ in range(length):
        seen = text[-CONTEXT:]
        padded = torch.tensor([seen + [0] * (CONTEXT - len(seen))]).to(torch_xla.device())
        with torch.no_grad():
            text.append(int(model(padded)[0].cpu()[len(seen) - 1].argmax()))
    return bytes(text[len(prompt) :]).decode(errors="replace")


def train(args: argparse.Namespace) -> None:
    """Train until the last step, or until a process has received SIGTERM."""
    text = torch.frombuffer(bytearray(Path(args.subject).read_bytes()), dtype=torch.uint8).long()
    step, path = newest(args.checkpoints)
    model = GPT()
    state = load(path) if path else None
    if state or args.start:
        model.load_state_dict((state or load(args.start))["model"])
    model = model.to(torch_xla.device())
    if args.start:
        model.requires_grad_(False).head.requires_grad_(True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    print(f"{xr.world_size()} {xr.device_type()} device(s), from step {step}", flush=True)
    pick = torch.Generator().manual_seed(1000 * step + xr.global_ordinal())
    while step < STEPS:
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=pick)
        batch = text[starts + torch.arange(CONTEXT + 1)].to(torch_xla.device())
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:])
        loss.backward()
        # optimizer_step() first averages the gradients of all processes.
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        step += 1
        if step % EVERY:
            continue
        # All processes must exit after the same step. Otherwise, those that continue would wait
        # forever for the others in mesh_reduce.
        stop = xm.mesh_reduce("stop", bool(asked_to_stop), any)
        if xr.global_ordinal() == 0:
            report(step, loss.item())
            if stop or step % SAVE_EVERY == 0 or step == STEPS:
                save(args.checkpoints, step, model, optimizer)
            if not stop:
                said = complete(model, b"to be ", 13).strip()
                print(f"step {step}, loss {loss.item():.3f}, sample: to be {said}", flush=True)
        if stop:
            sys.exit(SAVED)


def generate(args: argparse.Namespace) -> None:
    """Complete the prompt with the newest checkpoint, and print the text."""
    step, path = newest(args.checkpoints)
    if not path:
        sys.exit(f"{args.checkpoints}: no checkpoint")
    model = GPT()
    model.load_state_dict(load(path)["model"])
    prompt = args.subject
    print(f"step {step}: {prompt}{complete(model.to(torch_xla.device()), prompt.encode(), 26)}")


def process(_: int, args: argparse.Namespace) -> None:
    """Run the command ``train`` or ``complete``; torch_xla calls this in a process per chip."""
    {"train": train, "complete": generate}[args.do](args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("do", choices=["train", "complete"])
    parser.add_argument("subject")
    parser.add_argument("checkpoints")
    parser.add_argument("--start")
    torch_xla.launch(process, args=(parser.parse_args(),))
