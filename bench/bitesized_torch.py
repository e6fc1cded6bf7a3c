"""The bitesizedGPT workshop's model in PyTorch, for bitesized.py: needs only torch and NumPy.

The program first chooses the fastest implementation and prints its name. Then it reads lines from
standard input, each with a number of steps. For each line, it trains that many steps, evaluates,
completes a prompt, and prints the losses and the seconds. Every line of output is JSON. The initial
parameters come from this project's trainer.
"""

import copy
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

V, T, D, HEADS, FEEDFORWARD, LAYERS = 128, 128, 32, 4, 64, 4
BLOCK = 32
MASK = torch.tril(torch.ones(T, T, dtype=torch.bool))


def fused(q, k, v):
    """Return causal attention, computed by PyTorch's own attention function."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def blocks(q, k, v):
    """Return causal attention, computed for one block of queries at a time.

    Keys after the end of the block are left out, since causal attention ignores them.
    """
    done = []
    t = q.shape[2]
    for i in range(0, t, BLOCK):
        j = min(i + BLOCK, t)
        scores = (q[:, :, i:j] * (D // HEADS) ** -0.5) @ k[:, :, :j].transpose(-1, -2)
        scores = scores.masked_fill(~MASK[i:j, :j], -torch.inf)
        done.append(torch.softmax(scores, -1) @ v[:, :, :j])
    return torch.cat(done, 2)


class Layer(nn.Module):
    """One layer: pre-norm attention (without an output matrix) and feed-forward.

    In addition to the usual residual connections, the layer's input is added to the layer's output.
    """

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.up, self.down = nn.Linear(D, FEEDFORWARD), nn.Linear(FEEDFORWARD, D)

    def forward(self, x, attend):
        """Return the layer's output for x (b, t, d); ``attend`` is ``fused`` or ``blocks``."""
        b, t, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = x + attend(*qkv.unbind(0)).transpose(1, 2).reshape(b, t, D)
        y = y + self.down(F.relu(self.up(self.norm2(y))))
        return x + y


class Model(nn.Module):
    """The whole model; ``start`` maps the parameter names of train/core to initial values."""

    def __init__(self, start):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.positions = nn.Parameter(torch.zeros(T, D))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V)
        with torch.no_grad():
            self.positions.copy_(start["positions_td"])
            self.tokens.weight.copy_(start["tokens_vd"])
            self.head.weight.copy_(start["head_dv"].T)
            for i, layer in enumerate(self.layers):
                qkv = [start[name][i].flatten(1).T for name in ("l_q_dhe", "l_k_dge", "l_v_dge")]
                layer.qkv.weight.copy_(torch.cat(qkv))
                layer.up.weight.copy_(start["l_up_df"][i].T)
                layer.down.weight.copy_(start["l_down_fd"][i].T)
            for module in (self.head, *(m for x in self.layers for m in (x.up, x.down))):
                module.bias.zero_()

    def forward(self, tokens, attend):
        """Return the logits (b, t, v) of tokens (b, t); ``attend`` is ``fused`` or ``blocks``."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, attend)
        return self.head(self.norm(x))


class Data:
    """Batches that equal those of this project's trainer, from the corpus that it has prepared."""

    def __init__(self, job):
        directory = Path(job["corpus"])
        self.train = np.memmap(directory / "train.bin", np.uint8, mode="r")
        self.rest = np.memmap(directory / "heldout.bin", np.uint8, mode="r")
        self.seed, self.size = job["seed"], job["batch"]
        count = job["batch"] * job["evaluate_batches"]
        starts = np.linspace(0, len(self.rest) - T - 1, count).astype(np.int64)
        self.heldout = self.sequences(self.rest, starts).split(self.size)

    def sequences(self, tokens, starts):
        """Return a sequence of T + 1 tokens (context length + 1) for each offset in ``starts``."""
        return torch.from_numpy(tokens[starts[:, None] + np.arange(T + 1)].astype(np.int64))

    def batch(self, step):
        """Return the batch of a step, drawn with NumPy's Philox and the key (seed, step)."""
        generator = np.random.Generator(np.random.Philox(key=[self.seed, step]))
        return self.sequences(self.train, generator.integers(len(self.train) - T, size=self.size))


class Trainer:
    """A model, its optimizer, and one implementation of the loss."""

    def __init__(self, job, start, data, attend, compiled):
        self.job, self.data, self.attend, self.step = job, data, attend, 0
        self.model = Model(start)
        rate = job["learning_rate"]
        self.optimizer = torch.optim.Adam(self.model.parameters(), rate, fused=True)
        self.loss = torch.compile(self.plain_loss) if compiled else self.plain_loss

    def plain_loss(self, sequences):
        """Return the mean cross-entropy in nats, without torch.compile."""
        logits = self.model(sequences[:, :-1], self.attend)
        return F.cross_entropy(logits.reshape(-1, V), sequences[:, 1:].reshape(-1))

    def train(self, steps):
        """Train for this number of steps; return their losses."""
        losses = []
        for _ in range(steps):
            loss = self.loss(self.data.batch(self.step))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.step += 1
        return losses

    @torch.inference_mode()
    def evaluate(self):
        """Return the mean loss of the held-out sequences."""
        return float(np.mean([self.plain_loss(batch).item() for batch in self.data.heldout]))

    @torch.inference_mode()
    def complete(self):
        """Return a completion of the prompt."""
        tokens = torch.tensor([list(self.job["prompt"].encode())])
        for _ in range(self.job["length"]):
            logits = self.model(tokens[:, -T:], fused)[0, -1] / self.job["temperature"]
            token = torch.multinomial(torch.softmax(logits, -1), 1)
            tokens = torch.cat([tokens, token[None]], 1)
        return bytes(tokens[0].tolist()).decode("ascii", "replace")


def fastest(job, start, data):
    """Time each implementation on a copy of the model; return the fastest one's name and Trainer.

    ``start`` has the model's initial parameters by name, ``data`` the batches.
    """
    rates = {}
    for attend in (fused, blocks):
        for compiled in (False, True):
            variant = f"{attend.__name__} attention, {'torch.compile' if compiled else 'eager'}"
            trainer = Trainer(job, copy.copy(start), data, attend, compiled)
            try:
                trainer.train(5)
            except Exception as err:
                # Skip a variant that fails here: torch.compile, for example, needs a C++ compiler.
                print(f"{variant}: {str(err).splitlines()[0]}", file=sys.stderr)
                continue
            begin = time.perf_counter()
            trainer.train(30)
            rates[variant] = (30 / (time.perf_counter() - begin), attend, compiled)
            print(f"PyTorch, {variant}: {rates[variant][0]:.1f} steps/s", file=sys.stderr)
    variant = max(rates, key=lambda variant: rates[variant][0])
    return variant, Trainer(job, start, data, *rates[variant][1:])


def main():
    """Read numbers of steps from standard input; for each: train, evaluate, complete a prompt."""
    job = json.loads(sys.argv[1])
    start = {name: torch.from_numpy(array) for name, array in np.load(job["start"]).items()}
    variant, trainer = fastest(job, start, Data(job))
    print(json.dumps({"variant": variant}), flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        losses = trainer.train(int(line))
        heldout = trainer.evaluate()
        trainer.complete()
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "losses": losses, "heldout": heldout}), flush=True)


if __name__ == "__main__":
    main()
