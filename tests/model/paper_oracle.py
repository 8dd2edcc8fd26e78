"""The paper's model in plain PyTorch, written from what its authors published; nothing here calls the package.

Shapes: B batch, N positions (text, padding, global tokens), d width.
"""

import math

import torch
from torch import nn

PADDING = 0


def read_variant(name: str) -> tuple[str, int, int]:
    """Kind, size and number of global tokens: ``band:9+1global`` → band, 9, 1; ``full`` has size 1."""
    head, _, tokens = name.partition("+")
    kind, _, size = head.partition(":")
    return kind, int(size or 1), int(tokens.removesuffix("global") or 0)


def kept_keys(kind: str, size: int, scores: list[float], query: int, text: int) -> set[int]:
    """The keys that one query keeps, by the definitions.

    Args:
        scores: of the query with all N keys.
        query: its position.
        text: positions before the global tokens, padding included.
    """
    everything, global_tokens = set(range(len(scores))), set(range(text, len(scores)))
    if kind == "full" or query >= text:
        return everything
    if kind == "block":
        inside = {key for key in range(text) if key // size == query // size}
    elif kind == "band":
        # Of all stretches of `size` neighbours in the text, the one whose middle is nearest.
        start = min(range(text - size + 1), key=lambda low: abs(low + size // 2 - query))
        inside = set(range(start, start + size))
    else:
        inside = set(sorted(range(text), key=lambda key: (-scores[key], key))[:size])
    return inside | global_tokens


def normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Layer norm without weight and bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def sinusoids(count: int, width: int) -> torch.Tensor:
    """Unscaled: sin(n / 10000^(2i/d)) in column 2i, the cosine in column 2i + 1; fp64 ``(count, width)``."""
    rows = [
        [
            (math.sin, math.cos)[column % 2](position / 10000 ** ((column - column % 2) / width))
            for column in range(width)
        ]
        for position in range(count)
    ]
    return torch.tensor(rows, dtype=torch.float64)


class Block(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, width: int, first_eps: float) -> None:
        super().__init__()
        self.first_eps = first_eps
        for name in ("query", "key", "value", "output", "expand", "contract"):
            self.register_parameter(f"{name}_weight", nn.Parameter(torch.empty(width, width)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.empty(width)))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ getattr(self, f"{name}_weight").T + getattr(self, f"{name}_bias")

    def forward(self, x: torch.Tensor, kind: str, size: int, text: int) -> tuple[torch.Tensor, float]:
        h = normed(x, self.first_eps)
        query, key, value = (self.linear(name, h) for name in ("query", "key", "value"))
        scores = query @ key.transpose(1, 2) / math.sqrt(x.shape[-1])
        keep = torch.zeros_like(scores, dtype=torch.bool)
        gap = math.inf
        for b, rows in enumerate(scores.tolist()):
            for q, row in enumerate(rows):
                keep[b, q, list(kept_keys(kind, size, row, q, text))] = True
                if kind == "topk" and size < text:
                    ordered = sorted(row[:text], reverse=True)
                    gap = min(gap, ordered[size - 1] - ordered[size])
        mass = (scores - scores.detach().amax(-1, keepdim=True)).exp() * keep
        x = x + self.linear("output", mass / mass.sum(-1, keepdim=True) @ value)
        return x + self.linear("contract", self.linear("expand", normed(x, 1e-5)).clamp(min=0)), gap


class PaperModel(nn.Module):
    """A classifier of texts.

    Args:
        tokens: size of the vocabulary, padding included; global tokens come on top.
        length: what texts are padded to, before they are padded to a multiple of the mask's size.
    """

    def __init__(self, tokens: int, labels: int, variant: str, length: int, blocks: int, width: int = 64) -> None:
        super().__init__()
        self.kind, self.size, self.global_tokens = read_variant(variant)
        self.tokens, self.length = tokens, length
        self.embedding = nn.Parameter(torch.empty(tokens + self.global_tokens, width))
        self.blocks = nn.ModuleList(Block(width, 1e-5 if place else 0.0) for place in range(blocks))
        self.classifier_weight = nn.Parameter(torch.empty(labels, width))
        self.classifier_bias = nn.Parameter(torch.empty(labels))
        #: Smallest difference between a kept score and one left out, in the last forward pass.
        self.gap = math.inf

    def forward(self, texts: list[list[int]]) -> torch.Tensor:
        """Logits ``(B, labels)`` of texts of any lengths up to `length`."""
        text = math.ceil(self.length / self.size) * self.size
        extra = list(range(self.tokens, self.tokens + self.global_tokens))
        ids = torch.tensor([row + [PADDING] * (text - len(row)) + extra for row in texts])
        width = self.embedding.shape[1]
        x = self.embedding[ids] * math.sqrt(width) + sinusoids(ids.shape[1], width).to(self.embedding.dtype)
        self.gap = math.inf
        for block in self.blocks:
            x, gap = block(x, self.kind, self.size, text)
            self.gap = min(self.gap, gap)
        return x.mean(dim=1) @ self.classifier_weight.T + self.classifier_bias


def cross_entropy(logits: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """Mean over the texts."""
    return torch.stack([row.logsumexp(0) - row[label] for row, label in zip(logits, labels, strict=True)]).mean()


def sgd_step(model: nn.Module, rate: float, largest_norm: float) -> None:
    """One step of plain SGD after the gradient, as a whole, is cut to a norm."""
    parameters = list(model.parameters())
    norm = math.sqrt(sum(parameter.grad.double().square().sum().item() for parameter in parameters))
    factor = min(1.0, largest_norm / (norm + 1e-6))  # torch's own clipping adds this
    with torch.no_grad():
        for parameter in parameters:
            parameter -= rate * factor * parameter.grad
            parameter.grad = None
