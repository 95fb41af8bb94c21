#!/usr/bin/env python3
"""What several GPUs would take for a model (tensor parallelism), by the cost model of gpu_cost.py:
a rank's kernels are those of the smaller shape, and the ranks' exchanges come on top, since nothing
hides them. It prints a prediction: the model of kernels is fitted to one H100, exchanges are taken
from what others published, and nothing has run on several GPUs.

python3 benches/gpu_ranks.py"""
from gpu_cost import CHUNK, H100, SHAPES, WITHOUT_GRAPHS, Shape, decode, prompt, seconds, weight_bytes

# Llama 3.1 70B and 405B beside the shapes of gpu_cost.py.
MODELS = {
    "8b": SHAPES["8b"],
    "70b": Shape(8192, 80, 64, 8, 128, 28672, 128256, False),
    "405b": Shape(16384, 126, 128, 8, 128, 53248, 128256, False),
}
# Published: NCCL's sum of 32 KB takes 10 to 12 us on two to eight H100 (sglang #2904, vllm #24532),
# a kernel of one's own over the peers' memory 4.5 to 8 us; NVLink gives a GPU about 370 GB/s of
# what collectives move. Assumed: a gather takes as long as a sum, and reduce.cu's launch is in it.
NCCL, LINK = 12e-6, 370e9
# Its reduce_peers: 4.5, 4.8 and 7.8 us for 32 KB on two, four and eight H100 (the same source), of
# which the bytes are counted apart, as above: 0.1, 0.3 and 0.6 us.
PEERS = {2: 4.5e-6, 4: 4.6e-6, 8: 7.2e-6}
# src/backend/gpu/peers.rs: the most bytes of such a sum.
PEERS_MOST = 1 << 20
# src/backend/gpu/exchange.rs: sums are added in slices from so many bytes on that this saves.
WORTH = 4e6


def share(shape, n):
    """The shape of a rank's backend. KV heads are repeated where there are fewer than ranks."""
    return shape._replace(n_heads=shape.n_heads // n, n_kv_heads=max(shape.n_kv_heads // n, 1), ffn_dim=shape.ffn_dim // n, vocab_size=-(-shape.vocab_size // n))


def exchanges(shape, n, rows, wanted, peers):
    """Seconds of a step's exchanges: two sums a layer and one for the embedding, and the logits.
    `peers`: whether GPUs read each other's memory, as those of one process do."""
    if n == 1:
        return 0
    part = 4 * rows * shape.dim
    whole, slices = (n - 1) * part, 2 * (n - 1) * part / n
    sliced = n > 2 and part * (n - 1) * (n - 2) / n >= WORTH
    one = 2 * NCCL + slices / LINK if sliced else NCCL + whole / LINK
    if peers and part <= PEERS_MOST:
        one = PEERS[n] + whole / LINK
    logits = NCCL + 4 * wanted * shape.vocab_size * (n - 1) / n / LINK
    return (2 * shape.n_layers + 1) * one + logits


def main():
    print("PREDICTION: nothing has run on several GPUs. Kernels by a model that is fitted to one H100, exchanges by what others published.")
    print(f"{H100.name}, {LINK / 1e9:.0f} GB/s, an exchange by NCCL {1e6 * NCCL:.0f} us; sums of up to {PEERS_MOST >> 20} MB from GPU to GPU {', '.join(f'{1e6 * t:.1f}' for t in PEERS.values())} us on {', '.join(map(str, PEERS))}\n")
    print("                                                  exchanges, ms   tokens/s        x one GPU")
    print("decode, context 512     GPUs  GB a GPU  kernels, ms   peers  NCCL  peers   NCCL  peers  NCCL")
    for name, shape in MODELS.items():
        for dtype in ("bf16", "fp8", "int4"):
            alone = None
            for n in (1, 2, 4, 8):
                held = weight_bytes(share(shape, n), dtype) / 1e9
                if held > 76:
                    continue
                for batch in (1, 32):
                    # Every rank chooses from all logits, so its sampler is that of the whole
                    # vocabulary.
                    kernels = seconds(H100, decode(share(shape, n), dtype, "bf16", batch, 512), follows=True)
                    moved = [exchanges(shape, n, batch, batch, peers) for peers in (True, False)]
                    speeds = [batch / (kernels + each) for each in moved]
                    if n == 1 and batch == 1:
                        alone = speeds[0]
                    gains = [f"{speed / alone:.2f}" if batch == 1 and alone and n > 1 else "" for speed in speeds]
                    print(f"{name:>4} {dtype:<5} batch {batch:<8}{n:>4}{held:>10.1f}{1e3 * kernels:>13.2f}{1e3 * moved[0]:>8.2f}{1e3 * moved[1]:>6.2f}"
                          f"{speeds[0]:>7.0f}{speeds[1]:>7.0f}{gains[0]:>7}{gains[1]:>6}".rstrip())
    print(f"\nprompt of 2048 tokens   GPUs   ms: kernels  exchanges   tokens/s")
    machine = H100._replace(gap=WITHOUT_GRAPHS)
    for name, shape in MODELS.items():
        for n in (1, 2, 4, 8):
            if weight_bytes(share(shape, n), "bf16") / 1e9 > 76 and n < 8:
                continue
            dtype = "bf16" if weight_bytes(share(shape, n), "bf16") / 1e9 < 76 else "fp8"
            kernels = sum(seconds(machine, step) for step in prompt(share(shape, n), dtype, "bf16", 2048, chunk=CHUNK))
            moved = exchanges(shape, n, 2048, 1, True)
            print(f"{name:>4} {dtype:<19}{n:>4}{1e3 * kernels:>14.1f}{1e3 * moved:>11.1f}{2048 / (kernels + moved):>11.0f}")


if __name__ == "__main__":
    main()
