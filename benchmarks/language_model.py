"""The language study's model: a small character transformer with layer norm before each block."""

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 64
"""Characters that the model sees at most."""
_HEADS = 4
_LAYERS = 2


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each added to what goes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, width) to the same."""
        b, t, width = x.shape
        parts = self.attention_in(self.norm1(x)).view(b, t, 3, _HEADS, width // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(b, t, width))
        return x + self.out(functional.gelu(self.hidden(self.norm2(x))))


class CharacterTransformer(nn.Module):
    """Two blocks between a character embedding and a linear layer; positions are learned.

    Args:
        vocabulary: number of characters.
        width: features of a character; the model has 116,608 parameters at 64 and 97 characters.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(_LAYERS)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """(b, t) character numbers to (b, t, vocabulary) logits of the characters that follow."""
        x = self.characters(text) + self.positions.weight[: text.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross entropy, in nats, of each next character of (b, t + 1) character numbers."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: CharacterTransformer, windows: Tensor) -> float:
    """Mean loss of (b, t + 1) character numbers, in nats a character."""
    return float(model.loss(windows))
