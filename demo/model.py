"""A Llama in Meta's convention (neighbouring pairs rotate), with Meta's parameter names, and
generation from it."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Params:
    dim: int = 192
    n_layers: int = 4
    n_heads: int = 6
    n_kv_heads: int = 2
    multiple_of: int = 32
    norm_eps: float = 1e-5
    vocab_size: int = 1024

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads

    @property
    def ffn_dim(self) -> int:
        return -(-int(2 * 4 * self.dim / 3) // self.multiple_of) * self.multiple_of


MAX_SEQ_LEN = 512
ROPE_THETA = 10000.0


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, p: Params):
        super().__init__()
        self.p = p
        self.wq = nn.Linear(p.dim, p.n_heads * p.head_dim, bias=False)
        self.wk = nn.Linear(p.dim, p.n_kv_heads * p.head_dim, bias=False)
        self.wv = nn.Linear(p.dim, p.n_kv_heads * p.head_dim, bias=False)
        self.wo = nn.Linear(p.n_heads * p.head_dim, p.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, self.p.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        group = self.p.n_heads // self.p.n_kv_heads
        k, v = rotate(k, cos, sin).repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, p: Params):
        super().__init__()
        self.w1 = nn.Linear(p.dim, p.ffn_dim, bias=False)
        self.w2 = nn.Linear(p.ffn_dim, p.dim, bias=False)
        self.w3 = nn.Linear(p.dim, p.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, p: Params):
        super().__init__()
        self.attention = Attention(p)
        self.feed_forward = FeedForward(p)
        self.attention_norm = RMSNorm(p.dim, p.norm_eps)
        self.ffn_norm = RMSNorm(p.dim, p.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, p: Params):
        super().__init__()
        self.p = p
        self.tok_embeddings = nn.Embedding(p.vocab_size, p.dim)
        self.layers = nn.ModuleList(Block(p) for _ in range(p.n_layers))
        self.norm = RMSNorm(p.dim, p.norm_eps)
        self.output = nn.Linear(p.dim, p.vocab_size, bias=False)
        # Tables, not weights: the checkpoint must hold Meta's names and no others.
        frequency = ROPE_THETA ** -(torch.arange(0, p.head_dim, 2) / p.head_dim)
        angle = torch.outer(torch.arange(MAX_SEQ_LEN), frequency)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What is added to the residual stream shrinks with the number of additions.
                residual = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * p.n_layers) ** 0.5 if residual else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] -> logits [batch, length, vocab_size]"""
        length = tokens.shape[1]
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.output(self.norm(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [batch, heads, length, head_dim]; elements 2i and 2i+1 are one point in the plane."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rounded(model: Llama) -> Llama:
    """The model as shipped: bf16 weights, computed with in float32."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    return model.eval()


@dataclass(frozen=True)
class Generation:
    tokens: list[int]  # without EOS
    logprobs: list[float]  # of each token, untempered
    gaps: list[float]  # difference of the two highest logits at each step, EOS's included
    ended: bool  # with EOS


@torch.no_grad()
def generate(
    model: Llama, prompt: list[int], eos: int, max_gen_len: int, temperature: float = 0.0, top_p: float = 0.9,
        seed: int = 0
) -> Generation:
    """No KV cache: at this size recomputing is quick enough, and it is the plainest statement of
    the result."""
    random = torch.Generator().manual_seed(seed)
    tokens, logprobs, gaps, ended = list(prompt), [], [], False
    while len(tokens) < min(len(prompt) + max_gen_len, MAX_SEQ_LEN):
        logits = model(torch.tensor([tokens]))[0, -1]
        first, second = logits.topk(2).values.tolist()
        gaps.append(first - second)
        if temperature == 0:
            token = int(logits.argmax())
        else:
            token = nucleus(torch.softmax(logits / temperature, dim=-1), top_p, random)
        if token == eos:
            ended = True
            break
        tokens.append(token)
        logprobs.append(float(torch.log_softmax(logits, dim=-1)[token]))
    return Generation(tokens[len(prompt):], logprobs, gaps, ended)


def nucleus(probs: Tensor, top_p: float, random: torch.Generator) -> int:
    """A token is kept while the mass before it is at most top_p."""
    probs, ids = probs.sort(descending=True, stable=True)
    probs = probs * (probs.cumsum(0) - probs <= top_p)
    return int(ids[torch.multinomial(probs, 1, generator=random)])
