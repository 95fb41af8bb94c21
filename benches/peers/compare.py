"""The same checkpoint in llamabi, llama.cpp and PyTorch, in turns: compare.py DIR LIBRARY [ROUNDS].

DIR is a Hugging Face checkpoint in bfloat16 (`cargo bench --bench make_model`), LIBRARY libllamabi.so.
llama.cpp gets the same weights as a GGUF file of bfloat16, written beside the checkpoint once. Every
engine has all processors. In every round each engine prefills 512 tokens (another prompt every time, so
that nobody's cache helps) and decodes 24 after a prompt of 16; between engines the machine rests, because
some keep their threads spinning. Medians over the rounds, with the range, and ratios of medians.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import statistics
import sys
import time

PREFILL, PROMPT, DECODE, REST = 512, 16, 24, 0.5


def tokens(seed, n):
    return [3 + (seed * 1009 + i * 7919) % 31000 for i in range(n)]


class BuildOptions(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_uint32) for n in ("struct_size", "abi_version", "max_seq_len", "max_batch_size")]
        + [(n, ctypes.c_int32) for n in ("model_parallel_size", "device", "device_index")]
        + [("n_threads", ctypes.c_uint32), ("weights_dtype", ctypes.c_int32), ("kv_dtype", ctypes.c_int32)]
        + [("seed", ctypes.c_uint64)]
        + [(n, ctypes.c_void_p) for n in ("cancel", "progress", "progress_data", "log", "log_data")]
        + [("log_level", ctypes.c_int32), ("reserved0", ctypes.c_uint32)]
    )


class GenerateOptions(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_uint32) for n in ("struct_size", "flags", "max_gen_len")]
        + [("temperature", ctypes.c_float), ("top_p", ctypes.c_float), ("top_k", ctypes.c_int32)]
        + [("min_p", ctypes.c_float), ("repetition_penalty", ctypes.c_float), ("seed", ctypes.c_uint64)]
        + [("stop", ctypes.c_void_p), ("n_stop", ctypes.c_size_t)]
        + [(n, ctypes.c_void_p) for n in ("cancel", "on_event", "user_data")]
        + [("top_logprobs", ctypes.c_uint32), ("reserved1", ctypes.c_uint32)]
    )


class Stats(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_uint32) for n in ("struct_size", "prompt", "cached", "generated")]
        + [(n, ctypes.c_double) for n in ("queue_ms", "first_token_ms", "total_ms")]
    )


class Error(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("status", ctypes.c_int32), ("message", ctypes.c_char * 1016)]


class Llamabi:
    name = "llamabi bf16"
    IGNORE_EOS = 8

    def __init__(self, directory, library):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        options = BuildOptions()
        self.lib.llama_build_options_init.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32]
        header = os.path.join(os.path.dirname(__file__), "../../include/llamabi.h")
        with open(header) as f:
            version = int(re.search(r"define LLAMABI_ABI_VERSION (\d+)", f.read())[1])
        self.lib.llama_build_options_init(ctypes.byref(options), ctypes.sizeof(options), version)
        options.max_seq_len = PREFILL + 64
        options.max_batch_size = 1
        self.error = Error(struct_size=ctypes.sizeof(Error))
        self.handle = ctypes.c_void_p()
        self.check(self.lib.llama_build(directory.encode(), None, ctypes.byref(options),
                                        ctypes.byref(self.handle), ctypes.byref(self.error)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.error.message.decode())

    def run(self, prompt, n):
        options = GenerateOptions()
        init = self.lib.llama_generate_options_init
        init.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        init(ctypes.byref(options), ctypes.sizeof(options))
        options.flags, options.max_gen_len, options.temperature = self.IGNORE_EOS, n, 0.0
        ids = (ctypes.c_int32 * len(prompt))(*prompt)
        lens = (ctypes.c_size_t * 1)(len(prompt))
        result = ctypes.c_void_p()
        self.check(self.lib.llama_generate(self.handle, ids, lens, ctypes.c_size_t(1), ctypes.byref(options),
                                           ctypes.byref(result), ctypes.byref(self.error)))
        stats = Stats(struct_size=ctypes.sizeof(Stats))
        self.check(self.lib.llama_result_stats(result, ctypes.c_size_t(0), ctypes.byref(stats)))
        self.lib.llama_result_free(result)
        assert stats.generated == n and stats.cached == 0, "the prompt was cached"
        return stats

    def prefill(self, prompt):
        start = time.perf_counter()
        self.run(prompt, 1)
        return time.perf_counter() - start

    def decode(self, prompt, n):
        stats = self.run(prompt, n + 1)
        return (stats.total_ms - stats.first_token_ms) / 1e3


class LlamaCpp:
    name = "llama.cpp bf16"

    def __init__(self, directory):
        import llama_cpp

        path = os.path.join(directory, "bf16.gguf")
        if not os.path.exists(path):
            write_gguf(directory, path)
        n = len(os.sched_getaffinity(0))
        self.llm = llama_cpp.Llama(path, n_ctx=PREFILL + 64, n_batch=PREFILL, n_ubatch=PREFILL, n_threads=n,
                                   n_threads_batch=n, verbose=False)

    def prefill(self, prompt):
        self.llm.reset()
        start = time.perf_counter()
        self.llm.eval(prompt)
        return time.perf_counter() - start

    def decode(self, prompt, n):
        self.llm.reset()
        self.llm.eval(prompt)
        start = time.perf_counter()
        for i in range(n):
            self.llm.eval([100 + i])
        return time.perf_counter() - start


def write_gguf(directory, path):
    import json

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
    writer.add_rope_freq_base(config["rope_theta"])
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


class PyTorch:
    name = "PyTorch bf16"

    def __init__(self, directory):
        import torch
        from transformers import LlamaForCausalLM

        self.torch = torch
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()

    def step(self, ids, cache):
        with self.torch.inference_mode():
            ids = self.torch.tensor([ids])
            out = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            return out.past_key_values

    def prefill(self, prompt):
        start = time.perf_counter()
        self.step(prompt, None)
        return time.perf_counter() - start

    def decode(self, prompt, n):
        cache = self.step(prompt, None)
        start = time.perf_counter()
        for i in range(n):
            cache = self.step([100 + i], cache)
        return time.perf_counter() - start


def main():
    directory, library = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 7
    print(f"{platform.platform()}, Python {platform.python_version()}, {len(os.sched_getaffinity(0))} CPUs")
    for package in ("llama_cpp_python", "torch", "transformers"):
        try:
            print(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            print(package, "is not installed")
    engines = [Llamabi(directory, library)]
    for make in (LlamaCpp, PyTorch):
        try:
            engines.append(make(directory))
        except ImportError as e:
            print(f"without {make.name}: {e}")
    try:
        import llama_cpp

        print(llama_cpp.llama_print_system_info().decode().strip())
    except ImportError:
        pass
    times = {(e.name, what): [] for e in engines for what in ("prefill", "decode")}
    for r in range(rounds + 1):
        for e in engines:
            time.sleep(REST)
            prefill = PREFILL / e.prefill(tokens(3 * r + 1, PREFILL))
            time.sleep(REST)
            decode = DECODE / e.decode(tokens(3 * r + 2, PROMPT), DECODE)
            if r > 0:  # the first warms up
                times[e.name, "prefill"].append(prefill)
                times[e.name, "decode"].append(decode)
    print(f"{rounds} rounds, load average {os.getloadavg()[0]:.1f}")
    for what, label in (("prefill", f"prefill of {PREFILL}"), ("decode", f"decode after {PROMPT}")):
        ours = statistics.median(times[engines[0].name, what])
        for e in engines:
            values = sorted(times[e.name, what])
            median = statistics.median(values)
            print(f"{label:18} {e.name:16} {median:8.1f} tok/s ({values[0]:.1f}-{values[-1]:.1f})  "
                  f"ours is {ours / median:.2f} x")


if __name__ == "__main__":
    main()
