"""Compares the GPU with the recorded reference and with the CPU backend:
parity.py device|reference|choices|fp8|tiles|quantised|short|soak|captured.

device: what the machine has, and that the library runs on it.
reference: every case of tests/data/reference that tests/support/reference_cases has a test for,
    with its tolerances; every format of weights and cache against the CPU backend; batch
    invariance, to the last bit.
choices: what rules a choice, such as grammars, biases, bans and penalties, against the CPU.
fp8: the same for fp8. The CPU has no fp8, so it gets weights that are rounded before, and its cache
    is not rounded.
tiles FOLDER: prompts of a large model, alone and beside others.
quantised FOLDER FORMAT: a large model in this format against the CPU backend.
short: a few steps of each kind of kernel, for compute-sanitizer.
soak SECONDS: two handles on two threads, which say the same again and again, to the last bit.
captured: a handle is built, used and closed while torch records a graph on another thread.

DAY_TINY=1 takes a few cases of each, for emulated devices.
"""

import ctypes
import json
import math
import os
import sys
import tempfile
import threading
import time
import traceback

from model import CPU, CUDA, ECHO, IGNORE_EOS, LOGPROBS, ROOT, Bias, Model, warnings
from rounded import rounded

REFERENCE = os.path.join(ROOT, "tests/data/reference")
MODELS = ["mha-f32", "gqa-bf16", "gqa-f16-mp2"]
WEIGHTS = ["f32", "bf16", "f16", "int8", "int4", "nf4"]
TINY = os.environ.get("DAY_TINY") == "1"
# Tolerance for a log probability of the 1b shape, whose logits have a standard deviation of 5: the
# CPU rounds a prompt's activations to bfloat16.
QUANTISED = 0.15 if TINY else 0.5
# Tolerance for a cache in fp8 against one that is not rounded, which is off by 0.54, and the
# difference of two tokens by two such errors.
FP8 = 1.0
checked, failed = 0, 0


def read(name):
    with open(os.path.join(REFERENCE, name), encoding="utf-8") as f:
        return json.load(f)


def path(name):
    return name if os.path.isabs(name) else os.path.join(REFERENCE, name)


def label(directory):
    return os.path.relpath(directory, ROOT) if directory.startswith(ROOT) else os.path.basename(directory)


def check(holds, what):
    global checked, failed
    checked += 1
    if not holds:
        failed += 1
        print(f"FAILED {what}", flush=True)


def attempt(what, function, *arguments):
    """Runs one part; its failure does not hide the others."""
    before = checked, failed
    try:
        function(*arguments)
    except Exception:
        check(False, f"{what}: {traceback.format_exc()}")
    print(f"{what}: {checked - before[0]} checks, {failed - before[1]} failed", flush=True)


def farthest(got, want):
    """The largest distance; infinite for NaN and for another number of values."""
    if len(got) != len(want):
        return math.inf
    distances = [abs(g - w) for g, w in zip(got, want)]
    return math.inf if any(d != d for d in distances) else max(distances, default=0.0)


def close(got, want, tolerance, what):
    far = farthest(got, want)
    check(far <= tolerance, f"{what}: {far} off, tolerance {tolerance}")


def log_softmax(logits):
    most = max(logits)
    total = math.log(sum(math.exp(x - most) for x in logits))
    return [x - most - total for x in logits]


def same_logits(model, prompt, logits, what):
    top = model.one(prompt, 1, flags=LOGPROBS | IGNORE_EOS, top=model.info.vocab_size).top[0]
    got = [top.get(token, math.nan) for token in range(len(logits))]
    # An error in the logit and one in the normaliser, each 2e-4 of the largest logit.
    close(got, log_softmax(logits), 4e-4 * max(map(abs, logits)), what)


def nucleus(model, case, what):
    args, want, draws = case["args"], dict(zip(case["support"], case["probs"])), 64
    counts = {}
    for seed in range(1, draws // 16 + 1):
        options = {"flags": IGNORE_EOS, "temperature": args["temperature"], "top_p": args["top_p"], "seed": seed}
        for sequence in model.complete([args["tokens"]] * 16, 1, **options):
            counts[sequence.tokens[0]] = counts.get(sequence.tokens[0], 0) + 1
    for token in counts.keys() | want.keys():
        p = want.get(token, 0.0)
        room = 5 * math.sqrt(p * (1 - p) * draws) + 1 if p else 0
        check(abs(counts.get(token, 0) - p * draws) <= room, f"{what}: {token} came {counts.get(token, 0)} times, p is {p}")


def case_of(model, case, what):
    kind, args = case["kind"], case["args"]
    if kind == "logits":
        same_logits(model, args["tokens"], case["last_logits"], what)
        top = model.one(args["tokens"], 1, flags=LOGPROBS | ECHO | IGNORE_EOS, top=5).top
        for i, row in enumerate(case["top5"]):
            best = sorted(top[i + 1], key=lambda token: -top[i + 1][token])
            check(best == row, f"{what}: row {i}'s most likely are {best}, not {row}")
    elif kind == "nucleus":
        nucleus(model, case, what)
    elif kind == "chat_completion":
        texts(model.chat(args["dialogs"], args["max_gen_len"]), case, what)
    else:
        flags = LOGPROBS | (ECHO if args["echo"] else 0)
        prompts = args["prompt_tokens"] if kind == "generate" else case["prompt_tokens"]
        got = model.complete(prompts, args["max_gen_len"], flags=flags)
        if kind == "text_completion":
            return texts(got, case, what)
        for i, sequence in enumerate(got):
            check(sequence.tokens == case["tokens"][i], f"{what}, sequence {i}: {sequence.tokens}")
            close(sequence.logprobs, case["logprobs"][i], 1e-3, f"{what}, sequence {i}")


def texts(got, case, what):
    check(len(got) == len(case["result"]), f"{what}: {len(got)} results")
    for sequence, want in zip(got, case["result"]):
        text = want["generation"]
        text = text if isinstance(text, str) else text["content"]
        check(sequence.text == text, f"{what}: {sequence.text!r}, not {text!r}")
        close(sequence.logprobs, want["logprobs"], 1e-3, what)


def recorded(name, form):
    with Model(path(f"{name}/{form}"), CUDA, "f32", length=64) as model:
        for i, case in enumerate(read(f"{name}/cases.json")["cases"]):
            case_of(model, case, f"{name}/{form} case {i}, {case['kind']}")


def as_stored(name, form):
    """Weights and cache as stored, forced along the tokens of the reference; tests/gpu/models/ has
    the same tolerances."""
    tolerance = {"mha-f32": 1e-3, "gqa-f16-mp2": 0.05}.get(name, 0.15)
    with Model(path(f"{name}/{form}"), CUDA, length=64) as model:
        for case in read(f"{name}/cases.json")["cases"]:
            if case["kind"] != "generate":
                continue
            for prompt, want, logprobs in zip(case["args"]["prompt_tokens"], case["tokens"], case["logprobs"]):
                prompt = [] if case["args"]["echo"] else prompt
                close(model.scores(prompt + want).logprobs[len(prompt):], logprobs, tolerance, f"{name}/{form} as stored")


def variants():
    tokenizer = path("mha-f32/hf/tokenizer.model")
    for case in read("variants/cases.json"):
        with Model(path(f"variants/{case['name']}"), CUDA, "f32", tokenizer=tokenizer) as model:
            same_logits(model, case["tokens"], case["last_logits"], case["name"])
            same_logits(model, case["tokens"][:71], case["logits_at_70"], case["name"])
            got = model.one(case["greedy_prompt"], len(case["greedy"])).tokens
            check(got == case["greedy"], f"{case['name']}: {got}")


def strategies():
    for case in read("strategies.json"):
        if case["strategy"] == "greedy":
            with Model(path(case["model"] + "/hf"), CUDA, "f32", length=64) as model:
                penalty = case.get("repetition_penalty") or 1.0
                got = model.one(case["prompt"], case["max_gen_len"], repetition_penalty=penalty).tokens
                check(got == case["tokens"], f"greedy, penalty {penalty}, {case['model']}: {got}")


def prompt(n, seed):
    return [1 + (i * i * 31 + i * 17 + seed * 57) % 500 for i in range(n)]


def against_cpu(directory, weights, kv, tolerance=None, pieces=1 << 30, same=None):
    """Greedy tokens of the GPU, scored by the CPU. The CPU may choose another token only where it
    hardly prefers it. Tokens without a piece in the tokenizer are never chosen. `same`: the
    checkpoint for the CPU, if it is another one."""
    what = f"{label(directory)} {weights}, cache {kv}"
    prompts = [prompt(n, n) for n in ([17] if TINY else [1, 16, 35])]
    n, farthest_off, clear = 8 if TINY else 24, 0.0, 0
    # The CPU has no fp8.
    theirs = ["f32" if dtype == "fp8" else dtype for dtype in (weights, kv)]
    if tolerance is None and kv == "fp8":
        tolerance = FP8
    if tolerance is None:
        # The float32 mode; otherwise prompts are rounded to 16 bits (and codes of the cache may
        # fall to either side).
        tolerance = 1e-3 if (weights, kv) == ("f32", "f32") else 0.15
    with Model(directory, CUDA, weights, kv) as gpu, Model(same or directory, CPU, *theirs) as cpu:
        check(gpu.info.device == CUDA and cpu.info.device == CPU, f"{what}: device {gpu.info.device}")
        check(weights == "fp8" or gpu.info.weights_dtype == cpu.info.weights_dtype, f"{what}: weights as {gpu.info.weights_dtype}")
        for tokens in prompts:
            got = gpu.one(tokens, n, flags=LOGPROBS | IGNORE_EOS)
            want = cpu.scores(tokens + got.tokens, top=100)
            close(got.logprobs, want.logprobs[len(tokens):], tolerance, what)
            farthest_off = max(farthest_off, farthest(got.logprobs, want.logprobs[len(tokens):]))
            for token, top in zip(got.tokens, want.top[len(tokens):]):
                best = sorted(((logprob, other) for other, logprob in top.items() if other < pieces), reverse=True)
                gap = best[0][0] - top.get(token, -math.inf)
                check(gap <= tolerance, f"{what}: {token}, the CPU's {best[:3]}")
                clear += best[0][0] - best[1][0] > tolerance
    print(f"{what}: {n * len(prompts)} tokens, {clear} clear; log probabilities at most {farthest_off:.6f} off, tolerance {tolerance}")
    return clear


def in_company(directory, weights, kv, lengths=None, **limits):
    what = f"{label(directory)} {weights}, cache {kv}"
    lengths = lengths or ([1, 16, 17, 33] if TINY else [1, 16, 17, 33, 2, 5, 64, 9, 3, 4, 90, 12])
    prompts = [prompt(n, i) for i, n in enumerate(lengths)]
    options = {"n": 5, "flags": LOGPROBS | IGNORE_EOS}
    with Model(directory, CUDA, weights, kv, **limits) as model:
        alone = [model.one(p, **options) for p in prompts]
    with Model(directory, CUDA, weights, kv, **limits) as model:
        # Cold, then with what the prefix cache kept; tokens and log probabilities are compared with
        # ==.
        for again in range(2):
            got = model.complete(prompts, **options)
            for i, (a, b) in enumerate(zip(alone, got)):
                check(a == b, f"{what}: sequence {i} differs in company ({again}): {a[:2]}, {b[:2]}")


def device():
    with Model(path("mha-f32/meta"), CUDA, "f32") as model:
        print(f"llama_get_info: device {model.info.device}, {model.info.device_name.decode()}")
        check(model.info.device == CUDA, "the library does not run on CUDA")
        got = model.one([1, 500, 243, 283, 146], 4).tokens
        check(got == [510, 295, 303, 81], f"the first tokens of a reference case are {got}")


def reference():
    # Kept open, because the driver sets its context up anew when nobody has it open.
    with Model(path("mha-f32/meta"), CUDA, "f32"):
        all_of_reference()


def all_of_reference():
    # The best kernels of a CPU may round prompts with quantised weights to bfloat16, as AMX does,
    # which alone is off by as much as is allowed below.
    os.environ["LLAMABI_CPU_TIER"] = "portable"
    for name in MODELS:
        for form in ["meta", "hf"]:
            attempt(f"{name}/{form}, recorded cases", recorded, name, form)
            attempt(f"{name}/{form}, as stored", as_stored, name, form)
    attempt("variants", variants)
    attempt("greedy strategies", strategies)
    models = [path("mha-f32/meta"), path("gqa-bf16/hf"), path("gqa-f16-mp2/meta"), os.path.join(ROOT, "demo/meta")]
    # nf4 blocks of 64 do not divide gqa-bf16's rows of 96.
    fits = [(d, w, kv) for d in models for w in WEIGHTS for kv in ["f32", "bf16", "f16", "int8"]
            if not (w == "nf4" and "gqa-bf16" in d)]
    for i, (directory, weights, kv) in enumerate(fits):
        # All combinations on the demo model; every third (or seventh) of the others still covers
        # each format of both.
        if i % (7 if TINY else 1 if "demo" in directory else 3) == 0:
            where = f"{label(directory)} {weights}, cache {kv}"
            attempt(f"{where}: the CPU's", against_cpu, directory, weights, kv)
            attempt(f"{where}: alone and in company", in_company, directory, weights, kv)


def rules_of(model):
    """What may rule a choice: a name, and options of a call."""
    biases = (Bias * 3)((5, 4.0), (17, -math.inf), (300, 1.5))
    words, lens = (ctypes.c_int32 * 3)(9, 20, 21), (ctypes.c_size_t * 2)(1, 2)
    schema = '{"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}, "n": {"type": "integer"}}, "required": ["name", "n"]}'
    bans = {"bad_words": words, "bad_word_lens": lens, "n_bad_words": 2}
    return [
        ("any JSON", {"grammar": model.grammar(2, None)}),
        ("a schema", {"grammar": model.grammar(1, schema)}),
        ("a regular expression", {"grammar": model.grammar(3, "[a-f ]{3,40}[0-9]+")}),
        ("words", {"grammar": model.grammar(5, '["yes", "no", "maybe so"]')}),
        ("biases", {"logit_bias": biases, "n_logit_bias": 3, "flags": LOGPROBS | IGNORE_EOS}),
        ("bans", {**bans, "no_repeat_ngram_size": 2, "min_gen_len": 12}),
        ("penalties", {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3}),
        ("all of them", {**bans, "grammar": model.grammar(3, "[a-z ]{3,60}"), "logit_bias": biases, "n_logit_bias": 3,
                         "frequency_penalty": 0.3, "repetition_penalty": 1.1}),
        ("four beams", {"num_beams": 4, "num_return_sequences": 1}),
    ]


def ruled(directory):
    """Greedy, so float32 on both sides says the same tokens. On the GPU, drawn and greedy sequences
    get the same bits alone and in company."""
    prompts, n = [prompt(length, length) for length in ([3, 17] if TINY else [1, 5, 17, 40, 3, 8])], 16 if TINY else 32
    with Model(directory, CUDA, "f32") as gpu, Model(directory, CPU, "f32") as cpu:
        for (what, ours), (_, theirs) in zip(rules_of(gpu), rules_of(cpu)):
            got, want = (model.complete(prompts, n, **options) for model, options in ((gpu, ours), (cpu, theirs)))
            for i, (a, b) in enumerate(zip(got, want)):
                check(a.tokens == b.tokens, f"{what}, sequence {i}: {a.tokens}, the CPU's {b.tokens}")
                if a.tokens == b.tokens:
                    close(a.logprobs, b.logprobs, 1e-3, f"{what}, sequence {i}")
            check(any(len(sequence.tokens) > 2 for sequence in want), f"{what}: hardly a token")
            if "num_beams" in ours:
                continue
            for draws in ({}, {"temperature": 0.9, "top_p": 0.95, "seed": 7}):
                alone = [gpu.one(p, n, **ours, **draws) for p in prompts]
                # Each sequence of a call draws numbers of its own, so drawn ones are compared with
                # the same prompt in first place.
                for i, p in enumerate(prompts):
                    company = gpu.complete([p] + prompts, n, **ours, **draws)
                    check(company[0] == alone[i], f"{what} {draws}: sequence {i} differs in company: {company[0][:2]}, {alone[i][:2]}")


def choices():
    for name in ["mha-f32/hf"] if TINY else ["mha-f32/hf", "gqa-f16-mp2/hf"]:
        attempt(f"{name}: choices with rules", ruled, path(name))


def fp8():
    models = ["mha-f32/hf"] if TINY else ["mha-f32/hf", "gqa-f16-mp2/hf", os.path.join(ROOT, "demo/hf")]
    both = [("fp8", "fp8")] if TINY else [("fp8", "fp8"), ("fp8", "bf16"), ("bf16", "fp8"), ("int4", "fp8"), ("f32", "fp8")]
    for directory in map(path, models):
        with tempfile.TemporaryDirectory() as folder:
            copy = rounded(directory, folder)
            for weights, kv in both:
                where = f"{label(directory)} {weights}, cache {kv}"
                attempt(f"{where}: near the CPU's", against_cpu, directory, weights, kv, None, 1 << 30, copy if weights == "fp8" else None)
                attempt(f"{where}: alone and in company", in_company, directory, weights, kv)


def quantised(folder, weights):
    from random_model import checkpoint, pieces

    shape = "tiny" if TINY else "1b"
    directory = checkpoint(shape, folder)
    for kv in ["bf16", "int8"]:
        clear = against_cpu(directory, weights, kv, QUANTISED, pieces(shape))
        check(clear > 0, f"{weights}, cache {kv}: no token is clear")


def tiles(folder):
    """On compute capability 9.0, a prompt's products use tiles of 128 columns if it is alone and of
    256 beside others (quantised weights: of 128 and 256 rows); the shortest prompts use blocks of
    one warpgroup, with 16-bit weights tiles of 64 columns (LLAMABI_CUDA_QUARTERS=0: none). The bits
    must be the same, which no emulator can promise for wgmma of three widths."""
    from random_model import checkpoint

    directory = checkpoint("tiny" if TINY else "1b", folder)
    for dtype, kv in [("bf16", "bf16"), ("f16", "f16"), ("int8", "bf16"), ("int4", "int8"), ("nf4", "bf16"), ("fp8", "fp8")]:
        in_company(directory, dtype, kv, [17, 40] if TINY else [70, 130, 300, 480, 500, 128, 64, 260], length=128 if TINY else 640)


def short():
    for name, weights, kv in [("gqa-bf16/hf", "bf16", "bf16"), ("mha-f32/meta", "f32", "f32"), ("mha-f32/meta", "int4", "int8"),
                              ("gqa-f16-mp2/meta", "int8", "f16"), ("mha-f32/meta", "nf4", "bf16"), ("mha-f32/meta", "fp8", "fp8")]:
        with Model(path(name), CUDA, weights, kv) as model:
            got = model.complete([prompt(n, n) for n in (1, 17, 70)], 3, flags=LOGPROBS | IGNORE_EOS, top=3)
            check(all(len(sequence.tokens) == 3 for sequence in got), f"{name}: {got}")
            model.one(prompt(20, 2), 2, temperature=0.8, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=3)


def soak(seconds):
    """Blocks of different launches run beside each other, which no emulator does."""
    ends = time.monotonic() + float(seconds) / (20 if TINY else 1)
    many = [prompt(3 + 2 * i, i) for i in range(4 if TINY else 16)]
    wrong, rounds = [], [0, 0]

    def work(thread, model):
        options = {"n": 8, "flags": LOGPROBS | IGNORE_EOS}
        want = None
        while not wrong and (want is None or time.monotonic() < ends):
            got = [model.complete(many, **options), model.one(prompt(100, thread), **options)]
            want = want or got
            rounds[thread] += 1
            if got != want:
                wrong.append(f"thread {thread}, round {rounds[thread]}: {got}, {want}")

    with Model(path("gqa-bf16/hf"), CUDA, "bf16", "bf16") as one, Model(path("gqa-bf16/hf"), CUDA, "int4", "int8") as two:
        threads = [threading.Thread(target=work, args=of) for of in ((0, one), (1, two))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    check(not wrong and min(rounds) > 0, f"soak: {wrong[:1]}")
    print(f"soak: {rounds} rounds of two handles, the same bits")


def captured():
    import torch

    want, got, errors = [], [], []

    def work(to):
        try:
            with Model(path("gqa-bf16/hf"), CUDA, "bf16", "bf16") as model:
                to.append(model.one(prompt(70, 1), 8))
        except Exception as error:
            errors.append(error)

    work(want)
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # The mode that torch takes unasked: calls of all threads may spoil the recording.
    with torch.cuda.graph(graph, capture_error_mode="global"):
        y = x * 2
        other = threading.Thread(target=work, args=(got,))
        other.start()
        other.join()
        y += 1
    graph.replay()
    torch.cuda.synchronize()
    check(bool((y == 3).all()), "torch's graph computes something else")
    check(got == want and not errors, f"beside torch's graph: {errors}, {got}, {want}")


def outcome():
    """Prints the last line; returns the exit status."""
    for line in warnings:
        check(False, f"the library warns: {line}")
    print(f"{checked} checks, {failed} failed")
    return int(failed > 0 or checked == 0)


def main(what, *arguments):
    if what in ("quantised", "tiles", "captured"):
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as error:
            print(f"skipped: {error}")
            return 77
        if what == "captured" and not torch.cuda.is_available():
            print("skipped: torch has no CUDA here")
            return 77
    parts = {"device": device, "reference": reference, "choices": choices, "fp8": fp8, "quantised": quantised, "tiles": tiles, "short": short,
             "soak": soak, "captured": captured}
    attempt(what, parts[what], *arguments)
    return outcome()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
