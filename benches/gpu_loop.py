"""How long the loop over K of a prompt's product keeps the tensor cores of compute capability 9.0
busy: `make kernels && python3 benches/gpu_loop.py` prints that share.

gpu_trace.py follows a warp of each warpgroup through the kernel. Here the same instructions are
issued by one scheduler, which has one warp of each warpgroup, as the machine code says: every
instruction has a number of cycles until the next may be issued, and the numbers of the barriers
that it waits for and that it sets. Products go into a queue, in which one of 64 x n x 16 takes
n / 2 cycles. Waits for copies are over at once: what copies take is gpu_cost.py's matter.

On an H100, loops of codes turned out to keep the tensor cores less busy than this says, most of all
those of half tiles; gpu_cost.py has what was measured there in LOOP.

Guesses: how long loads and the like take (LATENCY), cycles from a product's issue to its place in
the queue, from its end to its sums, and to the warp that waits for them.
"""

import re
import subprocess
import sys

import gpu_trace

LATENCY = {"LDS": 30, "LDG": 700, "S2R": 25, "S2UR": 25, "R2UR": 12, "SYNCS": 20, "MUFU": 25, "LDC": 30, "ULDC": 30, "VOTEU": 12}
OTHER = 6
ENTERS, ENDS, WAKES = 12, 16, 10


def controls(lines):
    """Of kernels in cuobjdump's SASS: {name: {address: (cycles, barrier set by the result, barrier
    set when operands are read, mask of barriers waited for)}}. They are bits of an instruction's
    second word: 41 to 44, 46 to 48, 49 to 51, 52 to 57."""
    kernels, code, address = {}, None, None
    for line in lines:
        if match := re.search(r"Function : (\w+)", line):
            code, address = kernels.setdefault(match[1], {}), None
        elif code is not None and (match := re.match(r"^\s+/\*([0-9a-f]{4,6})\*/.*/\* 0x[0-9a-f]+ \*/", line)):
            address = int(match[1], 16)
        elif address is not None and (match := re.match(r"^\s+/\* 0x([0-9a-f]+) \*/", line)):
            word = int(match[1], 16)
            code[address] = word >> 41 & 15, word >> 46 & 7, word >> 49 & 7, word >> 52 & 63
            address = None
    return kernels


class Walk(gpu_trace.Warp):
    """Remembers the instructions on a warp's way, and whether their predicates are true."""

    def run(self, most=2_000_000):
        self.path = []
        return super().run(most)

    def step(self, opcode, operands):
        self.path[-1] = (*self.path[-1][:3], True)
        return super().step(opcode, operands)

    def issued(self, opcode, operands):
        self.path.append((self.pc, opcode, operands, False))


class Lane:
    """What a scheduler knows of a warp."""

    def __init__(self, path):
        self.path, self.next, self.ready = path, 0, 0
        self.barriers, self.groups, self.open = [0] * 8, [], 0

    def earliest(self, control):
        """When its next instruction can be issued."""
        pc, opcode, operands, taken = self.path[self.next]
        at = max([self.ready, *(self.barriers[b] for b in range(6) if control[pc][3] >> b & 1)])
        if opcode.startswith("WARPGROUP.DEPBAR") and taken:
            left = int(operands[1], 16)
            if done := self.groups[: len(self.groups) - left]:
                at = max(at, done[-1] + ENDS + WAKES)
        return at


def busy(paths, control):
    """The share of the time, in the middle half of the products, in which the tensor cores
    multiply."""
    lanes, slot, queue, products = [Lane(path) for path in paths], 0, 0, []
    while running := [lane for lane in lanes if lane.next < len(lane.path)]:
        lane = min(running, key=lambda lane: lane.earliest(control))
        at = max(slot, lane.earliest(control))
        slot = at + 1
        pc, opcode, operands, _ = lane.path[lane.next]
        cycles, result, operand, _ = control[pc]
        lane.next, lane.ready = lane.next + 1, at + max(1, cycles)
        if opcode.startswith("HGMMA"):
            takes = int(re.search(r"64x(\d+)x16", opcode)[1]) // 2
            queue = max(at + ENTERS, queue) + takes
            products.append((queue - takes, takes))
            if "gsb0" in operands:
                lane.groups.append(queue)
        lane.barriers[result] = at + LATENCY.get(opcode.split(".")[0], OTHER)
        lane.barriers[operand] = max(lane.barriers[operand], at + OTHER)
    middle = products[len(products) // 4 : 3 * len(products) // 4 + 1]
    return sum(takes for _, takes in middle[:-1]) / (middle[-1][0] - middle[0][0])


def loop(code, control, op, dtype, groups, columns=4096):
    """The same for a kernel in blocks of 1 or 2 warpgroups that multiply."""
    rows = {"qkv": 6144, "matmul_add": 4096, "ffn_up": 28672}[op]
    constants = gpu_trace.Constants(gpu_trace.hopper_parameters(op, dtype, rows, columns, groups), (8, 1, 1), (384, 1, 1))
    paths = []
    for warp in range(0, 4 * groups, 4):
        special = {"SR_TID.X": 32 * warp, "SR_CTAID.X": 0, "SR_CTAID.Y": 1, "SR_CTAID.Z": 0, "SR_LANEID": 0}
        path = Walk(code, constants, special, {}, 0).run().path
        last = max(n for n, one in enumerate(path) if one[1].startswith("HGMMA"))
        paths.append(path[: last + 1])
    return busy(paths, control)


def main(folder="build/kernels/ptxas"):
    cuobjdump = gpu_trace.cuobjdump()
    print("share of the time in which tensor cores are busy: the largest tiles, half of them, those with one warpgroup, and quarters")
    for op in ("qkv", "matmul_add", "ffn_up"):
        sass = subprocess.run([cuobjdump, "-sass", "-arch", "sm_90a", f"{folder}/{op}.fatbin"], capture_output=True, text=True, check=True).stdout.splitlines()
        kernels, control = gpu_trace.read(sass), controls(sass)
        for dtype in gpu_trace.TYPES:
            names = [(f"{op}_hopper_{dtype}", 2), (f"{op}_hopper_half_{dtype}", 2), (f"{op}_hopper_half_{dtype}", 1), (f"{op}_hopper_quarter_{dtype}", 1)]
            print(f"    {op:<11} {dtype:<5}" + "".join(f"{loop(kernels[name], control[name], op, dtype, groups):>6.2f}" for name, groups in names if name in kernels))


if __name__ == "__main__":
    main(*sys.argv[1:])
