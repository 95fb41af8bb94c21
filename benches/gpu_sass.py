"""What nvcc made of the kernels for one architecture:
`make kernels && python3 benches/gpu_sass.py [sm_90a]`.

Prints, from build/kernels/ptxas (cuobjdump's report and SASS): registers, how many blocks fit on a
multiprocessor and which share of its threads that is, the widest loads from memory and from shared
memory, and tensor-core instructions. Threads and shared memory are those of
src/backend/gpu/launch.rs, with heads of 128 where they depend on it. How many instructions the
products of decode issue: gpu_trace.py.
"""

import re
import sys

# limits of a multiprocessor of compute capability 9.0
REGISTERS, THREADS, SHARED, OWN = 65536, 2048, 227 << 10, 1 << 10


def geometry(kernel):
    """Threads and bytes of shared memory of a block."""
    if match := re.fullmatch(r"attend_hopper_\w+_(64|128)", kernel):
        return 384, 1280 * int(match[1]) + 128
    if "_hopper_half_" in kernel:
        return (288, 98352) if kernel.endswith("f16") else (384, 66112)
    if "_hopper_" in kernel:
        return 384, 196672 if kernel.endswith("f16") else 131648
    if kernel in ("sample_max", "sample_draw"):
        return 512, 272 if kernel == "sample_max" else 45248
    if kernel.startswith("append"):
        return 32, 0
    if kernel.startswith("embed"):
        return 128, 0
    if match := re.fullmatch(r"attend_prefill_\w+_(32|64|128)", kernel):
        return 128, 512 * int(match[1])
    if match := re.fullmatch(r"attend_(f16|bf16|int8|fp8)", kernel):
        return 256, (98304 if kernel.endswith("f16") else 65536) + 2048
    if kernel.startswith("attend"):
        return 128, 4128 + 96 * 128
    if "prefill" in kernel:
        return 256, 20480 if kernel.endswith("f32") else 49152 if kernel.endswith("f16") else 66048
    if "_batch_" in kernel:
        # of 32 rows, where no blocks share a K
        return 256, 512 + 4 * (12288 if kernel.endswith("f16") else 16384)
    if kernel.startswith("prepare") or kernel.endswith("f32"):
        return 256, 512
    # one row of 4096 columns, or of 14336 for matmul_add, and the sums of the tiles of a block
    return 256, 512 + 28672 + 4096 if kernel.startswith("matmul_add") else 1024 + 8192 + 7 * 4096


def widest(used, name):
    widths = [int(match[1]) for instruction in used if (match := re.fullmatch(name + r"(?!\.U8).*?\.(64|128)(?:\..*)?", instruction))]
    plain = any(re.match(name + r"(\.|$)", instruction) for instruction in used)
    return str(max(widths)) if widths else "32" if plain else "-"


def main(arch="sm_90a", folder="build/kernels/ptxas"):
    registers, used, spills = {}, {}, 0
    with open(f"{folder}/report") as f:
        for line in f:
            kernel, of, count, stack, local, _ = line.split()
            if of == arch:
                registers[kernel] = int(count)
                spills += int(stack) + int(local)
    with open(f"{folder}/used") as f:
        for line in f:
            kernel, of, instruction = line.split()
            if of == arch:
                used.setdefault(kernel, set()).add(instruction)
                spills += instruction.startswith(("LDL", "STL"))
    print(f"{arch}: {len(registers)} kernels; bytes of stack and spills, and instructions that spill: {spills}")
    print(f"{'kernel':<26}registers  threads  blocks/SM  occupancy  loads  async copies  tensor cores")
    for kernel in sorted(registers):
        threads, shared = geometry(kernel)
        blocks = min(REGISTERS // (-(-registers[kernel] // 8) * 8 * threads), THREADS // threads, SHARED // (shared + OWN), 32)
        tensor = ", ".join(sorted(i for i in used[kernel] if re.match(r"H?G?MMA", i))) or "-"
        print(f"{kernel:<26}{registers[kernel]:>9}{threads:>9}{blocks:>11}{100 * blocks * threads / THREADS:>9.0f} %"
              f"{widest(used[kernel], 'LDG'):>7}{widest(used[kernel], 'LDGSTS'):>14}  {tensor}")


if __name__ == "__main__":
    main(*sys.argv[1:])
