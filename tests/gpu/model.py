"""A model behind the C API: adds tokens and their scores to what benches/peers/llamabi.py has."""

import ctypes
import os
import sys
from collections import namedtuple

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "benches/peers"))

from llamabi import GenerateOptions, Handle, IGNORE_EOS, warnings  # noqa: E402

LIBRARY = os.environ.get("LLAMABI_LIBRARY") or os.path.join(ROOT, "build/gpu-day/libllamabi.so")
CPU, CUDA = 1, 2
ECHO, LOGPROBS = 1, 2

# `logprobs` are floats of the library, not rounded, so == compares bits. `top` has a dict {token:
# logprob} for each token.
Sequence = namedtuple("Sequence", "tokens logprobs text top")


class Info(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_uint32) for n in ("struct_size", "vocab_size", "dim", "n_layers", "n_heads", "n_kv_heads")]
        + [(n, ctypes.c_uint32) for n in ("head_dim", "ffn_dim", "max_seq_len", "max_batch_size")]
        + [(n, ctypes.c_int32) for n in ("bos_id", "eos_id", "pad_id", "device", "weights_dtype", "kv_dtype")]
        + [("weight_bytes", ctypes.c_uint64), ("kv_bytes", ctypes.c_uint64), ("device_name", ctypes.c_char * 128)]
    )


class Bias(ctypes.Structure):
    _fields_ = [("token", ctypes.c_int32), ("bias", ctypes.c_float)]


class MoreOptions(GenerateOptions):
    """The fields that follow those a benchmark needs, up to lists of bad words."""

    _fields_ = (
        [("cache_salt", ctypes.c_uint64), ("num_return_sequences", ctypes.c_uint32), ("num_beams", ctypes.c_uint32)]
        + [("grammar", ctypes.c_void_p), ("min_gen_len", ctypes.c_uint32), ("no_repeat_ngram_size", ctypes.c_uint32)]
        + [(n, ctypes.c_float) for n in ("presence_penalty", "frequency_penalty", "typical_p", "epsilon_cutoff", "eta_cutoff")]
        + [("max_time_ms", ctypes.c_uint32), ("logit_bias", ctypes.POINTER(Bias)), ("n_logit_bias", ctypes.c_size_t)]
        + [("stop_tokens", ctypes.c_void_p), ("n_stop_tokens", ctypes.c_size_t), ("bad_words", ctypes.POINTER(ctypes.c_int32))]
        + [("bad_word_lens", ctypes.POINTER(ctypes.c_size_t)), ("n_bad_words", ctypes.c_size_t)]
    )


class Message(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)] + [
        (n, ctypes.c_size_t) for n in ("role_len", "content_len")]


class Alternative(ctypes.Structure):
    _fields_ = [("token", ctypes.c_int32), ("logprob", ctypes.c_float)]


class Model(Handle):
    """Frees itself at the end of a `with`, because two 8B models do not fit beside each other."""

    def __init__(self, directory, device, dtype="auto", kv="auto", length=128, batch=16, tokenizer=None):
        super().__init__(LIBRARY, directory, dtype, length, batch, device, kv, tokenizer)
        self.info = Info(struct_size=ctypes.sizeof(Info))
        self.check(self.lib.llama_get_info(self.handle, ctypes.byref(self.info), ctypes.byref(self.error)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.llama_free(self.handle)

    def options(self, n, flags=LOGPROBS, top=0, temperature=0.0, **others):
        options = MoreOptions()
        init = self.lib.llama_generate_options_init
        init.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        init(ctypes.byref(options), ctypes.sizeof(options))
        options.flags, options.max_gen_len, options.top_logprobs, options.temperature = flags, n, top, temperature
        for name, value in others.items():
            setattr(options, name, value)
        return options

    def grammar(self, kind, source):
        """A grammar of LLAMA_GRAMMAR_* `kind`, which lives as long as the process."""
        grammar = ctypes.c_void_p()
        text = None if source is None else source.encode()
        self.check(self.lib.llama_grammar_new(self.handle, kind, text, ctypes.c_size_t(len(text or b"")), ctypes.byref(grammar),
                                              ctypes.byref(self.error)))
        return grammar

    def complete(self, prompts, n, **options):
        """`n` tokens after each of `prompts`, all in one call."""
        ids = [token for prompt in prompts for token in prompt]
        return self._run("llama_generate", (ctypes.c_int32 * len(ids))(*ids), prompts, self.options(n, **options))

    def one(self, prompt, n, **options):
        return self.complete([prompt], n, **options)[0]

    def chat(self, dialogs, n):
        flat = [m for dialog in dialogs for m in dialog]
        messages = (Message * len(flat))(*(
            Message(m["role"].encode(), m["content"].encode(), len(m["role"].encode()), len(m["content"].encode()))
            for m in flat))
        return self._run("llama_chat_completion", messages, dialogs, self.options(n))

    def scores(self, tokens, top=0):
        """Scores of every token of a text; the first token has none."""
        return self.one(tokens, 0, flags=LOGPROBS | ECHO | IGNORE_EOS, top=top)

    def _run(self, function, items, lens, options):
        lens = (ctypes.c_size_t * len(lens))(*map(len, lens))
        result = ctypes.c_void_p()
        self.check(getattr(self.lib, function)(self.handle, items, lens, ctypes.c_size_t(len(lens)), ctypes.byref(options),
                                               ctypes.byref(result), ctypes.byref(self.error)))
        try:
            return [self._sequence(result, i, options.top_logprobs > 0) for i in range(len(lens))]
        finally:
            self.lib.llama_result_free(result)

    def _sequence(self, result, i, top):
        def array(name, kind, *where):
            p, n = ctypes.POINTER(kind)(), ctypes.c_size_t()
            where = [ctypes.c_size_t(x) for x in where]
            status = getattr(self.lib, name)(result, *where, ctypes.byref(p), ctypes.byref(n))
            if status != 0:
                raise RuntimeError(f"{name}: {status}")
            return p[:n.value] if n.value else []

        tokens = array("llama_result_tokens", ctypes.c_int32, i)
        alternatives = [
            {a.token: a.logprob for a in array("llama_result_top_logprobs", Alternative, i, j)} for j in range(len(tokens))
        ] if top else []
        text = bytes(array("llama_result_text", ctypes.c_char, i))
        return Sequence(tokens, array("llama_result_logprobs", ctypes.c_float, i), text.decode(), alternatives)
