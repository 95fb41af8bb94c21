"""Converts a checkpoint to the peers' own formats, beside it and only once: convert.py DIR
FORMAT...

DIR is a Hugging Face checkpoint in bfloat16 (`cargo bench --bench make_model`). Formats: bf16.gguf
and, made from it by llama.cpp itself, f16.gguf, q8_0.gguf, q4_0.gguf, q4_k_m.gguf; ov-16
(optimum-intel's export) and, made from it by nncf, ov-int8 (a scale and a zero point for each row,
which is optimum-intel's default) and ov-int4 (symmetric, in groups of 128, which it runs fastest;
embedding and head in int8); vllm-int8 (a scale for each row, activations in 8 bits) and vllm-int4
(symmetric, in groups of 128), both in compressed-tensors' form with embedding and head in bf16, as
vLLM's own tools write them; xft (16-bit floats, which xFasterTransformer quantises when it loads);
mistralrs (the checkpoint itself, with a tokenizer and a chat template).
"""

import json
import os
import sys


def write_gguf(directory, path):
    import gguf
    import numpy as np

    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    # transformers 5 has it one level deeper.
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    file = os.path.join(directory, "model.safetensors")
    with open(file, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    data = np.memmap(file, dtype=np.uint8, mode="r", offset=8 + size)
    for name, info in header.items():
        if name == "__metadata__":
            continue
        start, end = info["data_offsets"]
        bits = data[start:end].view(np.uint16).reshape(info["shape"])
        to = names.get_name(name, try_suffixes=(".weight",))
        if bits.ndim == 1:
            writer.add_tensor(to, (bits.astype(np.uint32) << 16).view(np.float32))
            continue
        for part, n in (("q_proj", heads), ("k_proj", kv_heads)):
            if part in name:  # rotated by halves there, by neighbours here
                rows, cols = bits.shape
                bits = bits.reshape(n, 2, rows // n // 2, cols).swapaxes(1, 2).reshape(rows, cols)
        bits = np.ascontiguousarray(bits).view(np.uint8)
        writer.add_tensor(to, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise_gguf(source, path, file_type):
    import ctypes

    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    status = llama_cpp.llama_model_quantize(source.encode(), path.encode(), ctypes.byref(params))
    if status != 0:
        raise RuntimeError(f"llama.cpp could not write {path}: status {status}")


def export_openvino(directory, path):
    from optimum.intel import OVModelForCausalLM

    OVModelForCausalLM.from_pretrained(
        directory, export=True, compile=False, load_in_8bit=False, library_name="transformers"
    ).save_pretrained(path)


def compress_openvino(source, path, mode, **options):
    import nncf
    import openvino

    model = openvino.Core().read_model(os.path.join(source, "openvino_model.xml"))
    model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **options)
    os.makedirs(path)
    openvino.save_model(model, os.path.join(path, "openvino_model.xml"), compress_to_fp16=False)


def write_vllm(directory, path, bits):
    import torch
    from safetensors.torch import load_file, save_file

    tensors, top = {}, 2 ** (bits - 1) - 1
    for name, weights in load_file(os.path.join(directory, "model.safetensors")).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weights
            continue
        rows = weights.float().reshape(len(weights), -1, weights.shape[1] if bits == 8 else 128)
        scale = rows.abs().amax(2, keepdim=True) / top
        codes = (rows / scale).round().clamp(-top - 1, top).to(torch.int64)
        tensors[name + "_scale"] = scale.squeeze(2).bfloat16()
        if bits == 8:
            tensors[name] = codes.reshape(weights.shape).to(torch.int8)
        else:
            nibbles = (codes + 8).reshape(len(weights), -1, 8) << 4 * torch.arange(8)
            tensors[name + "_packed"] = nibbles.sum(2).to(torch.int32)
            tensors[name + "_shape"] = torch.tensor(weights.shape)
    os.makedirs(path)
    save_file(tensors, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    numbers = {"num_bits": bits, "type": "int", "symmetric": True}
    group = {"targets": ["Linear"], "weights": {**numbers, "strategy": "group", "group_size": 128}}
    if bits == 8:
        group["weights"] = {**numbers, "strategy": "channel"}
        group["input_activations"] = {**numbers, "strategy": "token", "dynamic": True}
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "int-quantized" if bits == 8 else "pack-quantized",
        "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": group},
    }
    with open(os.path.join(path, "config.json"), "w") as f:
        json.dump(config, f)


def write_xft(directory, path):
    import configparser

    import torch
    from safetensors.torch import load_file

    tensors = load_file(os.path.join(directory, "model.safetensors"))
    os.makedirs(path)

    def save(name, weights):
        weights.half().contiguous().numpy().tofile(os.path.join(path, f"model.{name}.bin"))

    save("wte", tensors["model.embed_tokens.weight"])
    save("final_layernorm.weight", tensors["model.norm.weight"])
    save("lm_head.weight", tensors["lm_head.weight"])
    with open(os.path.join(directory, "config.json")) as f:
        config = json.load(f)
    for layer in range(config["num_hidden_layers"]):
        theirs, its = f"model.layers.{layer}.", f"layers.{layer}."
        for norm in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            save(its + norm, tensors[theirs + norm])
        q, k, v, o = (tensors[f"{theirs}self_attn.{part}_proj.weight"].T for part in "qkvo")
        save(its + "attention.query_key_value.weight.0", torch.cat((q, k, v), 1))
        save(its + "attention.dense.weight.0", o)
        for part in ("gate", "up", "down"):
            save(f"{its}mlp.{part}_proj.weight.0", tensors[f"{theirs}mlp.{part}_proj.weight"].T)
    heads = config["num_attention_heads"]
    file = configparser.ConfigParser()
    file["llama"] = {
        "model_name": "llama", "head_num": heads, "kv_head_num": config["num_key_value_heads"],
        "hidden_size": config["hidden_size"], "size_per_head": config["hidden_size"] // heads,
        "inter_size": config["intermediate_size"], "max_pos_seq_len": config["max_position_embeddings"],
        "num_layer": config["num_hidden_layers"], "layernorm_eps": config["rms_norm_eps"],
        "layernorm_type": "pre_layernorm", "activation_type": "silu", "has_post_decoder_layernorm": 1,
        "rope_theta": config.get("rope_theta") or config["rope_parameters"]["rope_theta"], "scaling_factor": 1.0,
        "rope_type": "null", "vocab_size": config["vocab_size"], "start_id": config["bos_token_id"],
        "end_id": config["vocab_size"], "weight_data_type": "fp16",  # no token ends a sequence
        "attn_params_type": "GQAttnParams", "ffn_params_type": "LlamaFFNParams",
    }
    with open(os.path.join(path, "config.ini"), "w") as f:
        file.write(f)


def write_mistralrs(directory, path):
    os.makedirs(path)
    for name in ("config.json", "model.safetensors"):
        os.symlink(os.path.join("..", name), os.path.join(path, name))
    with open(os.path.join(directory, "config.json")) as f:
        words = {str(token): token for token in range(json.load(f)["vocab_size"])}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "0"},
    }
    with open(os.path.join(path, "tokenizer.json"), "w") as f:
        json.dump(tokenizer, f)
    with open(os.path.join(path, "plain.jinja"), "w") as f:
        f.write("{% for message in messages %}{{ message['content'] }}{% endfor %}")


def converted(directory, form):
    """The path of `form`, which is made if it does not exist."""
    path = os.path.join(directory, form)
    if os.path.exists(path):
        return path
    part = os.path.join(directory, "part." + form)
    if form == "bf16.gguf":
        write_gguf(directory, part)
    elif form.endswith(".gguf"):
        file_type = {"f16": 1, "q4_0": 2, "q8_0": 7, "q4_k_m": 15}[form[:-5]]  # enum llama_ftype
        quantise_gguf(converted(directory, "bf16.gguf"), part, file_type)
    elif form == "ov-16":
        export_openvino(directory, part)
    elif form == "ov-int8":
        compress_openvino(converted(directory, "ov-16"), part, "INT8_ASYM")
    elif form == "ov-int4":
        compress_openvino(converted(directory, "ov-16"), part, "INT4_SYM", group_size=128)
    elif form in ("vllm-int8", "vllm-int4"):
        write_vllm(directory, part, int(form[-1]))
    elif form == "xft":
        write_xft(directory, part)
    elif form == "mistralrs":
        write_mistralrs(directory, part)
    else:
        raise ValueError(f"no such form: {form}")
    os.rename(part, path)
    return path


if __name__ == "__main__":
    for form in sys.argv[2:]:
        print(converted(sys.argv[1], form), flush=True)
