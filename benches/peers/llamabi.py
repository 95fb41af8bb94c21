"""llamabi through its C API, as much of it as a benchmark needs; tests/gpu/model.py adds what a
test needs."""

import ctypes
import os
import re

PRECISIONS = {"auto": 0, "full": 1, "fast": 2}
DTYPES = {"auto": 0, "f32": 1, "f16": 2, "bf16": 3, "int8": 4, "int4": 5, "nf4": 6, "fp8": 7}
IGNORE_EOS = 8
HEADER = os.path.join(os.path.dirname(__file__), "../../include/llamabi.h")


# Both option structs begin with their size. A shorter struct counts as an older one, and the rest
# has its defaults.
class BuildOptions(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_uint32) for n in ("struct_size", "abi_version", "max_seq_len", "max_batch_size")]
        + [(n, ctypes.c_int32) for n in ("model_parallel_size", "device", "device_index")]
        + [("n_threads", ctypes.c_uint32), ("weights_dtype", ctypes.c_int32), ("kv_dtype", ctypes.c_int32)]
        + [("seed", ctypes.c_uint64)]
        + [(n, ctypes.c_void_p) for n in ("cancel", "progress", "progress_data", "log", "log_data")]
        + [("log_level", ctypes.c_int32), ("reserved0", ctypes.c_uint32), ("gpu_memory_bytes", ctypes.c_uint64)]
        + [(n, ctypes.c_uint32) for n in ("max_waiting", "max_stall_ms", "max_unread_ms")]
        + [("precision", ctypes.c_int32)]
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


LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t)
LOG_WARN, LOG_INFO = 2, 3
warnings = []  # of all handles; whoever measures or compares fails if there are any


def heard(_, level, text, length):
    """Keeps what the library falls back from, which would otherwise pass for what was asked."""
    line = ctypes.string_at(text, length).decode(errors="replace")
    if level <= LOG_WARN:
        warnings.append(line)
    if level <= LOG_WARN or line.startswith("GPU: "):
        print(f"{'WARNING' if level <= LOG_WARN else 'log'}: {line}", flush=True)


LOGGER = LOG(heard)  # lives as long as any handle


class Handle:
    def __init__(self, library, directory, dtype, max_seq_len, max_batch_size, device=0, kv="auto", tokenizer=None,
                 precision="auto"):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        options = BuildOptions()
        init = self.lib.llama_build_options_init
        init.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32]
        with open(HEADER) as f:
            version = int(re.search(r"define LLAMABI_ABI_VERSION (\d+)", f.read())[1])
        init(ctypes.byref(options), ctypes.sizeof(options), version)
        options.max_seq_len = max_seq_len
        options.max_batch_size = max_batch_size
        options.device, options.weights_dtype, options.kv_dtype = device, DTYPES[dtype], DTYPES[kv]
        options.precision = PRECISIONS[precision]
        options.log, options.log_level = ctypes.cast(LOGGER, ctypes.c_void_p), LOG_INFO
        self.error = Error(struct_size=ctypes.sizeof(Error))
        self.handle = ctypes.c_void_p()
        tokenizer = tokenizer and tokenizer.encode()
        self.check(self.lib.llama_build(directory.encode(), tokenizer, ctypes.byref(options),
                                        ctypes.byref(self.handle), ctypes.byref(self.error)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.error.message.decode())

    def generate(self, prompts, n):
        """Statistics of every sequence; `n` tokens follow each of `prompts`, at temperature 0."""
        all_stats = self.timed(prompts, n)
        assert all(stats.cached == 0 for stats in all_stats), "the prompt was cached"
        return all_stats

    def timed(self, prompts, n, **others):
        """The same, with prompts that the prefix cache may know; greedy, unless `others` says
        else."""
        options = GenerateOptions()
        init = self.lib.llama_generate_options_init
        init.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        init(ctypes.byref(options), ctypes.sizeof(options))
        options.flags, options.max_gen_len, options.temperature = IGNORE_EOS, n, 0.0
        for name, value in others.items():
            setattr(options, name, value)
        ids = [token for prompt in prompts for token in prompt]
        ids = (ctypes.c_int32 * len(ids))(*ids)
        lens = (ctypes.c_size_t * len(prompts))(*map(len, prompts))
        result = ctypes.c_void_p()
        self.check(self.lib.llama_generate(self.handle, ids, lens, ctypes.c_size_t(len(prompts)), ctypes.byref(options),
                                           ctypes.byref(result), ctypes.byref(self.error)))
        all_stats = []
        for i in range(len(prompts)):
            stats = Stats(struct_size=ctypes.sizeof(Stats))
            self.check(self.lib.llama_result_stats(result, ctypes.c_size_t(i), ctypes.byref(stats)))
            assert stats.generated == n, f"{stats.generated} of {n} tokens"
            all_stats.append(stats)
        self.lib.llama_result_free(result)
        return all_stats
