"""Checkpoints of random weights at the shapes of known models, as transformers writes them."""

import os
import shutil
import sys

from model import ROOT

sys.path.insert(0, os.path.join(ROOT, "benches"))
import gpu_cost  # noqa: E402

# tiny and wide are for the rehearsal; 8b8 is 8b with eight of its layers. The others are those of
# Llama 3.2 1B and Llama 3.1 8B, from benches/gpu_cost.py. A tokenizer may have fewer pieces than
# the head has rows; tokens without a piece are never drawn.
SHAPES = {
    "tiny": gpu_cost.Shape(64, 2, 4, 2, 16, 192, 512, False),
    "wide": gpu_cost.Shape(256, 2, 4, 1, 64, 320, 1000, True),
    **gpu_cost.SHAPES,
    "8b8": gpu_cost.SHAPES["8b"]._replace(n_layers=8),
}


TOKENIZERS = {"tiny": ("reference/mha-f32/hf/tokenizer.model", 512), "wide": ("reference/mha-f32/hf/tokenizer.model", 512)}


def tokenizer(shape):
    return TOKENIZERS.get(shape, ("tokenizer/tokenizer.model", 32000))


def pieces(shape):
    """Number of tokens that can be drawn."""
    return tokenizer(shape)[1]


def device():
    """The GPU that torch sees; the CPU only if an emulated driver stands in for the GPU."""
    import torch

    if os.environ.get("DAY_TINY") == "1":
        return "cpu"
    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    return "cuda"


def checkpoint(shape, folder, dtype="bfloat16"):
    """The checkpoint's directory; it is made once."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = os.path.join(folder, f"{shape}-{dtype}")
    if os.path.exists(os.path.join(directory, "tokenizer.model")):
        return directory
    s = SHAPES[shape]
    config = LlamaConfig(hidden_size=s.dim, intermediate_size=s.ffn_dim, num_hidden_layers=s.n_layers, num_attention_heads=s.n_heads,
                         num_key_value_heads=s.n_kv_heads, head_dim=s.head_dim, vocab_size=s.vocab_size, max_position_embeddings=16384,
                         rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=s.tied, bos_token_id=1, eos_token_id=2,
                         initializer_range=0.1 if s.dim < 1024 else 0.02)
    torch.manual_seed(1)
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device()):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        # With these weights all logits are nearly equal, and no token is ever clearly the
        # likeliest, so the head is scaled. If embedding and head are the same matrix and there are
        # few layers between them, a larger one would make every token repeat itself.
        if s.dim >= 1024 or not s.tied:
            model.lm_head.weight.mul_(6)
        if not s.tied:
            model.model.embed_tokens.weight.mul_(20)
    model.save_pretrained(directory)
    del model
    if device() == "cuda":
        torch.cuda.empty_cache()
    shutil.copy(os.path.join(ROOT, "tests/data", tokenizer(shape)[0]), os.path.join(directory, "tokenizer.model"))
    return directory
