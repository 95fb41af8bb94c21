"""The two checkpoint forms of one model: Meta's and Hugging Face's."""

import dataclasses
import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from sentencepiece import SentencePieceProcessor
from torch import Tensor

from model import MAX_SEQ_LEN, ROPE_THETA, Llama, Params

HF_NAMES = {
    "tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}


def write(folder: Path, model: Llama, tokenizer: bytes) -> None:
    weights = {name: weight.detach().bfloat16() for name, weight in model.named_parameters()}
    meta, hf = folder / "meta", folder / "hf"
    for form in (meta, hf):
        form.mkdir(exist_ok=True)
        (form / "tokenizer.model").write_bytes(tokenizer)
    (meta / "params.json").write_text(json.dumps(dataclasses.asdict(model.p)) + "\n")
    torch.save(weights, meta / "consolidated.00.pth")
    (hf / "config.json").write_text(json.dumps(hf_config(model.p), indent=2) + "\n")
    hf_weights = dict(hf_tensor(name, weight, model.p) for name, weight in weights.items())
    save_file(hf_weights, hf / "model.safetensors", metadata={"format": "pt"})


def read(folder: Path) -> tuple[Llama, SentencePieceProcessor]:
    """Meta's form, to compute with in float32."""
    model = Llama(Params(**json.loads((folder / "meta/params.json").read_text())))
    model.load_state_dict(torch.load(folder / "meta/consolidated.00.pth", weights_only=True))
    return model.eval(), SentencePieceProcessor(model_file=str(folder / "meta/tokenizer.model"))


def hf_tensor(name: str, weight: Tensor, p: Params) -> tuple[str, Tensor]:
    stem = name.removesuffix(".weight")
    layer = re.match(r"layers\.\d+\.", stem)
    prefix = layer[0] if layer else ""
    hf_name = ("model." + prefix if prefix else "") + HF_NAMES[stem.removeprefix(prefix)] + ".weight"
    if stem.endswith(("wq", "wk")):
        # Hugging Face rotates element i with i + head_dim / 2, Meta 2i with 2i + 1: even rows
        # first, then odd.
        weight = weight.view(-1, p.head_dim // 2, 2, p.dim).transpose(1, 2).reshape(-1, p.dim)
    return hf_name, weight.contiguous()


def hf_config(p: Params) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": p.head_dim,
        "hidden_act": "silu",
        "hidden_size": p.dim,
        "initializer_range": 0.02,
        "intermediate_size": p.ffn_dim,
        "max_position_embeddings": MAX_SEQ_LEN,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": p.n_heads,
        "num_hidden_layers": p.n_layers,
        "num_key_value_heads": p.n_kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": p.norm_eps,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": p.vocab_size,
    }
