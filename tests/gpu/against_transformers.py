"""Compares greedy tokens and log probabilities with transformers: against_transformers.py FOLDER
SHAPE:DTYPE...

Weights are random and are made in FOLDER. The truth is transformers' float32 on the same weights,
for f32 without TF32. transformers is forced along the library's tokens, so that one near tie does
not change everything after it. A token is wrong if transformers' two likeliest tokens (of those
that the tokenizer has pieces for) differ by more than the tolerance and the library's token is not
the likeliest. The tolerance of log probabilities is 1e-3 in float32. With 16 bits it is the
difference between transformers' own bfloat16 and its float32, or 0.15 if that is less. Log
probabilities of the tokens and of 20 alternatives each are compared.
"""

import gc
import os
import sys

from model import CUDA, IGNORE_EOS, LOGPROBS, Model, warnings

TOLERANCE = {"f32": 1e-3, "bf16": 0.15}
TOP = 20  # alternatives whose log probabilities are compared too
FULL = {"f32": "float32", "bf16": "bfloat16"}


def prompts(n_pieces, lengths):
    return [[1] + [3 + (i * i * 7919 + i * 104729 + n * 31) % (n_pieces - 3) for i in range(n - 1)] for n in lengths]


def forced(directory, dtype, texts, n):
    """Log probabilities of the whole vocabulary before each of the last `n` tokens of each text,
    on the CPU."""
    import torch
    from random_model import device
    from transformers import LlamaForCausalLM

    # Copied to the device as stored and widened there, because a copy of 8B weights in float32 is
    # 32 GB. Never narrowed: that would also narrow RoPE's frequencies.
    model = LlamaForCausalLM.from_pretrained(directory, dtype="auto").to(device()).eval()
    if dtype == torch.float32:
        model = model.float()
    assert model.dtype == dtype
    rows = []
    with torch.inference_mode():
        for text in texts:
            logits = model(torch.tensor([text], device=device()), use_cache=False).logits[0, -n - 1:-1]
            rows.append(torch.log_softmax(logits.float(), -1).cpu())
    del model
    gc.collect()
    if device() == "cuda":
        torch.cuda.empty_cache()
    return rows


def compare(folder, shape, dtype):
    import torch
    from random_model import checkpoint, pieces

    small = shape in ("tiny", "wide")
    directory = checkpoint(shape, folder, FULL[dtype])
    n, lengths = (8, [3, 20, 40]) if small else (32, [2, 17, 200, 777])
    starts = prompts(pieces(shape), lengths)
    with Model(directory, CUDA, dtype, length=64 if small else 1024, batch=4) as model:
        print(f"{shape} {dtype}: {model.info.device_name.decode()}, {model.info.weight_bytes} bytes of weights", flush=True)
        got = model.complete(starts, n, flags=LOGPROBS | IGNORE_EOS, top=TOP)
    texts = [start + sequence.tokens for start, sequence in zip(starts, got)]
    truth = forced(directory, torch.float32, texts, n)
    theirs = forced(directory, torch.bfloat16, texts, n) if dtype == "bf16" else truth
    their_far, wrong, clear, far, least, tokens = 0.0, 0, 0, 0.0, 0.0, 0
    for want, other in zip(truth, theirs):
        for i in range(n):
            likely = want[i].topk(TOP).indices
            their_far = max(their_far, float((other[i] - want[i])[likely].abs().max()))
    tolerance = max(TOLERANCE[dtype], their_far)
    for sequence, want in zip(got, truth):
        for i, (token, logprob, top) in enumerate(zip(sequence.tokens, sequence.logprobs, sequence.top)):
            best = want[i][:pieces(shape)].topk(2)
            gap = float(best.values[0] - best.values[1])
            tokens, clear = tokens + 1, clear + (gap > tolerance)
            if gap > tolerance and token != int(best.indices[0]):
                wrong += 1
                print(f"WRONG token {i}: {token}, transformers {best.indices.tolist()}, {gap} apart")
            least = min(least, logprob)
            for other, value in [(token, logprob), *top.items()]:
                off = abs(value - float(want[i][other]))
                # NaN must not pass: `max` would drop it.
                far = max(far, off) if off == off else float("inf")
            if len(top) != TOP:
                far = float("inf")
    fine = wrong == 0 and far <= tolerance and tokens == n * len(lengths) and clear > 0 and least < -0.1
    print(f"{shape} {dtype}: {tokens} tokens, {clear} clear, {wrong} wrong; log probabilities (down to {least:.1f}) at most {far:.6f} off "
          f"(tolerance {tolerance:.6f}; transformers in this format {their_far:.6f}): {'ok' if fine else 'FAILED'}", flush=True)
    return fine


def main(folder, cases):
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    torch.backends.cuda.matmul.allow_tf32 = False
    os.makedirs(folder, exist_ok=True)
    bad = 0
    for case in cases:
        try:
            bad += not compare(folder, *case.split(":"))
        except Exception as error:  # the other cases are still of interest
            bad += 1
            print(f"{case}: FAILED: {type(error).__name__}: {error}", flush=True)
    if warnings:
        print(f"FAILED: the library warns: {warnings[0]}")
    return int(bad > 0 or bool(warnings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
