"""The PyTorch side of train_gpu.py: a GPT of the same shape, compiled, with fused attention.

    python bench/train_gpu_torch.py JOB      (JOB is JSON; the last output line is JSON)

Uses PyTorch's standard speed-ups: torch.compile, bfloat16 autocast, scaled_dot_product_attention,
fused AdamW, and TF32 for float32 operations.
"""

import json
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    """One layer: attention and feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x (b, t, d) plus the outputs of attention and feed-forward."""
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).split(d, dim=2)
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """The whole model, with the token embedding as its output layer."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(job["vocabulary"], job["width"])
        self.positions = nn.Embedding(job["context"], job["width"])
        self.blocks = nn.ModuleList(Block(job["width"], job["heads"]) for _ in range(job["layers"]))
        self.norm = nn.LayerNorm(job["width"])

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of the next tokens, a scalar, for sequences (b, t + 1)."""
        x = sequences[:, :-1]
        x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), sequences[:, 1:].flatten())


def main(job: dict[str, Any]) -> None:
    """Train a model on random tokens; print tokens per second as JSON.

    ``job`` has the sizes of the model and of the batch, and the number of steps.
    """
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Gpt(job).to(device)
    fused = {"fused": True} if device == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), **fused)
    compiled = torch.compile(model)
    shape = (job["batch"], job["context"] + 1)
    sequences = torch.randint(job["vocabulary"], shape, device=device)

    def step() -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = compiled(sequences)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        step()
    wait()
    begun = time.perf_counter()
    for _ in range(job["steps"]):
        loss = step()
    wait()
    seconds = time.perf_counter() - begun
    rate = job["steps"] * job["batch"] * job["context"] / seconds
    description = f"torch {torch.__version__}, compiled, {device}, loss {loss.item():.3f}"
    print(json.dumps({"rate": rate, "variant": description}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
