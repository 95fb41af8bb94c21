"""Runs one engine in a separate process, which compare.py talks to: engines.py ENGINE PATH DTYPE.

A line on standard input is a job in JSON: `prompts`, all of the same length, `tokens` and `whole`.
With 0 tokens, the answer is the seconds until the logits after the prompts are there. Otherwise it
is the seconds of that many decode steps for all prompts together, without the prompts. If `whole`
is true, it is the seconds of both, for each engine by the same clock; the ones that put prompts and
generated tokens into one step (openvino-genai, vLLM, xFasterTransformer, mistral.rs) know only
that. Every engine has all processors of this process. What engines print goes to standard error.
"""

import json
import os
import sys
import time

THREADS = len(os.sched_getaffinity(0))
MAX_SEQ_LEN, MAX_BATCH = 640, 64


class Llamabi:
    def __init__(self, path, dtype):
        from llamabi import Handle

        # convert.py's files have no tokenizer.
        tokenizer = os.path.join(os.path.dirname(path), "tokenizer.model") if path.endswith(".gguf") else None
        dtype, precision = dtype.split()
        dtype = {"Q4_K_M": "auto"}.get(dtype, dtype)
        sequences = int(os.environ.get("BENCH_SEQUENCES", MAX_BATCH))
        self.handle = Handle(os.environ["LLAMABI_LIBRARY"], path, dtype, MAX_SEQ_LEN, sequences,
                             tokenizer=tokenizer, precision=precision)

    def run(self, prompts, tokens):
        start = time.perf_counter()
        stats = self.handle.generate(prompts, tokens + 1)
        if tokens == 0:
            return time.perf_counter() - start
        # The other engines cannot begin to decode before all prompts are done, so what either does
        # until then is not counted.
        return (max(s.total_ms for s in stats) - min(s.first_token_ms for s in stats)) / 1e3


class LlamaCpp:
    def __init__(self, path, dtype):
        import ctypes

        import llama_cpp

        self.api = llama_cpp
        print(llama_cpp.llama_print_system_info().decode())
        llama_cpp.llama_backend_init()
        # The bindings hold the callback as an object.
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p())
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        # Room for every sequence, and not one that all share: attention would read past the
        # others'.
        params.n_ctx, params.n_batch, params.n_ubatch = MAX_SEQ_LEN * MAX_BATCH, 512, 512
        params.n_seq_max, params.kv_unified = MAX_BATCH, False
        params.n_threads = params.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp could not load {path}")
        self.batch = llama_cpp.llama_batch_init(512, 0, MAX_BATCH)

    def decode(self, sequences, position):
        """Decodes new tokens of each sequence, all from `position` on; gives the logits of the
        last."""
        flat = [(s, position + i, token, i == len(row) - 1)
                for s, row in enumerate(sequences) for i, token in enumerate(row)]
        for first in range(0, len(flat), 512):
            part = flat[first:first + 512]
            for i, (sequence, at, token, last) in enumerate(part):
                self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, at, last
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            self.batch.n_tokens = len(part)
            if self.api.llama_decode(self.context, self.batch) != 0:
                raise RuntimeError("llama_decode failed")
        self.api.llama_synchronize(self.context)

    def run(self, prompts, tokens):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        start = time.perf_counter()
        self.decode(prompts, 0)
        if tokens == 0:
            return time.perf_counter() - start
        start = time.perf_counter()
        for i in range(tokens):
            self.decode([[100 + i]] * len(prompts), len(prompts[0]) + i)
        return time.perf_counter() - start


class OpenVino:
    def __init__(self, path, dtype):
        import numpy
        import openvino

        self.numpy = numpy
        core = openvino.Core()
        model = core.read_model(os.path.join(path, "openvino_model.xml"))
        last_logits(model)
        hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": THREADS}
        compiled = core.compile_model(model, "CPU", hints)
        for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION", "DYNAMIC_QUANTIZATION_GROUP_SIZE"):
            print(name, compiled.get_property(name))
        self.request = compiled.create_infer_request()

    def step(self, sequences, position):
        n, new = len(sequences), len(sequences[0])
        ones = self.numpy.ones
        at = self.numpy.arange(position, position + new, dtype=self.numpy.int64)
        self.request.infer({
            "input_ids": self.numpy.array(sequences, dtype=self.numpy.int64),
            "attention_mask": ones((n, position + new), dtype=self.numpy.int64),
            "position_ids": self.numpy.tile(at, (n, 1)),
            "beam_idx": self.numpy.arange(n, dtype=self.numpy.int32),
        }, share_inputs=True)

    def run(self, prompts, tokens):
        self.request.reset_state()
        start = time.perf_counter()
        self.step(prompts, 0)
        if tokens == 0:
            return time.perf_counter() - start
        start = time.perf_counter()
        for i in range(tokens):
            self.step([[100 + i]] * len(prompts), len(prompts[0]) + i)
        return time.perf_counter() - start


class OpenVinoGenAi:
    """Continuous batching over a paged cache, which this engine has beside the plain pipeline."""

    def __init__(self, path, dtype):
        import numpy
        import openvino
        import openvino_genai

        self.numpy, self.tensor, self.config = numpy, openvino.Tensor, openvino_genai.GenerationConfig
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(path, openvino_genai.SchedulerConfig(), "CPU", {})

    def run(self, prompts, tokens):
        config = self.config()
        config.max_new_tokens, config.ignore_eos = tokens + 1, True
        config.set_eos_token_id(2)  # which it asks for all the same
        prompts = [self.tensor(self.numpy.array([prompt], dtype=self.numpy.int64)) for prompt in prompts]
        results = self.pipeline.generate(prompts, [config] * len(prompts))
        check([len(result.m_generation_ids[0]) for result in results], tokens + 1)


def last_logits(model):
    """Computes only the last row of the head's input, as openvino-genai does; the export has
    all."""
    from openvino import opset13

    node = model.output("logits").get_node().input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    last = opset13.gather(node.input_value(0), opset13.constant([-1], dtype="int64"), opset13.constant(1, dtype="int64"))
    node.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


class PyTorch:
    def __init__(self, path, dtype):
        import torch
        from transformers import LlamaForCausalLM

        self.torch = torch
        torch.set_num_threads(THREADS)
        self.model = LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()

    def step(self, sequences, cache):
        with self.torch.inference_mode():
            ids = self.torch.tensor(sequences)
            return self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).past_key_values

    def run(self, prompts, tokens):
        start = time.perf_counter()
        cache = self.step(prompts, None)
        if tokens == 0:
            return time.perf_counter() - start
        start = time.perf_counter()
        for i in range(tokens):
            cache = self.step([[100 + i]] * len(prompts), cache)
        return time.perf_counter() - start


class Vllm:
    def __init__(self, path, dtype):
        # In one process, which compare.py stops; for a second one, which schedules, vLLM would set
        # a processor aside.
        os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", OMP_NUM_THREADS=str(THREADS), HF_HUB_OFFLINE="1",
                          VLLM_CPU_KVCACHE_SPACE="3", VLLM_NO_USAGE_STATS="1")
        import vllm

        self.options = vllm.SamplingParams
        self.engine = vllm.LLM(path, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=MAX_SEQ_LEN,
                               max_num_seqs=MAX_BATCH, enable_prefix_caching=False)

    def run(self, prompts, tokens):
        options = self.options(temperature=0, max_tokens=tokens + 1, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self.engine.generate(prompts, options, use_tqdm=False)
        check([len(result.outputs[0].token_ids) for result in results], tokens + 1)


class XFasterTransformer:
    def __init__(self, path, dtype):
        import torch
        import xfastertransformer

        self.tensor = torch.tensor
        self.model = xfastertransformer.AutoModel.from_pretrained(path, dtype=dtype)
        self.run([[3, 4]], 1)  # on other makers' processors it ends here, not when it loads

    def run(self, prompts, tokens):
        length = len(prompts[0]) + tokens + 1
        # Greedy; convert.py wrote no EOS.
        results = self.model.generate(self.tensor(prompts), max_length=length)
        check([len(result) for result in results], length)


class MistralRs:
    """Takes texts alone, so convert.py's tokenizer has a word for each token: its number."""

    def __init__(self, path, dtype):
        import mistralrs

        self.request = mistralrs.ChatCompletionRequest
        which = mistralrs.Which.Plain(model_id=path, arch=mistralrs.Architecture.Llama)
        self.runner = mistralrs.Runner(which=which, max_seqs=MAX_BATCH, prefix_cache_n=0, token_source="none",
                                       jinja_explicit=os.path.join(path, "plain.jinja"),
                                       in_situ_quant=None if dtype == "f32" else dtype)

    def run(self, prompts, tokens):
        options = {"model": "default", "max_tokens": tokens + 1, "temperature": 0.0, "ignore_eos": True, "stream": True}
        prompts = [[{"role": "user", "content": " ".join(map(str, prompt))}] for prompt in prompts]
        # Whole answers would come one after the other: the binding lends its engine to one call at
        # a time.
        streams = [self.runner.send_chat_completion_request(self.request(prompt, **options)) for prompt in prompts]
        usage = [list(stream)[-1].usage for stream in streams]
        check([u.completion_tokens for u in usage], tokens + 1)


def check(lengths, expected):
    assert set(lengths) == {expected}, f"{sorted(set(lengths))} tokens instead of {expected}"


def main():
    engine, path, dtype = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engines = {"llamabi": Llamabi, "llama.cpp": LlamaCpp, "OpenVINO": OpenVino, "PyTorch": PyTorch,
               "OpenVINO-GenAI": OpenVinoGenAi, "vLLM": Vllm, "xFasterTransformer": XFasterTransformer,
               "mistral.rs": MistralRs}
    engine = engines[engine](path, dtype)
    answers.write("ready\n")
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        seconds = engine.run(job["prompts"], job["tokens"])
        answers.write(f"{time.perf_counter() - start if job['whole'] else seconds}\n")


if __name__ == "__main__":
    main()
