"""How many instructions a warp of a product kernel issues: follows warps through the kernel's SASS.
`make kernels && python3 benches/gpu_trace.py` prints what gpu_cost.py has of it.

Lane 0 of each of a block's warps is followed, with integers, floats, predicates and shared memory
as the machine has them, and with a memory that holds zeros. What a warp issues depends on sizes
alone: no branch of these kernels depends on what is in memory, but for rows that are padding, and
for biases. Lanes that take other ways than lane 0, one after another, do not occur in them for
more than a few instructions, which are not counted. Barriers end no trace: warps are followed one
after another.

An instruction counts once when it is issued, also if its predicate is false. So cycles are at least
instructions of all warps of a scheduler; how many instructions a cycle really has, gpu_cost.py fits
to what an H100 took.
"""

import re
import struct
import subprocess
import sys
from collections import Counter

BASE = 0x210  # where compute capability 9.0 has a kernel's parameters in constant bank 0
MASK = 0xFFFFFFFF
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,6})\*/\s+(?:@(!?)(U?P[0-9T]) )?([A-Z0-9_.x]+)\s*(.*?)\s*;")


def bits(x):
    try:
        return struct.unpack("<I", struct.pack("<f", x))[0]
    except OverflowError:
        return 0x7F800000 if x > 0 else 0xFF800000


def real(x):
    return struct.unpack("<f", struct.pack("<I", x & MASK))[0]


def signed(x):
    return (x & MASK) - (1 << 32) if x & 0x80000000 else x & MASK


def read(path):
    """Kernels of cuobjdump's SASS: {name: {address: (negated, predicate, opcode, operands)}}"""
    kernels, code = {}, None
    for line in path if not isinstance(path, str) else open(path):
        if match := re.search(r"Function : (\w+)", line):
            code = kernels.setdefault(match[1], {})
        elif code is not None and (match := LINE.match(line)):
            address, negated, predicate, opcode, operands = match.groups()
            parts, depth, part = [], 0, ""
            for c in operands:
                depth += (c == "[") - (c == "]")
                if c == "," and depth == 0:
                    parts.append(part.strip())
                    part = ""
                else:
                    part += c
            code[int(address, 16)] = (negated == "!", predicate, opcode, [*parts, part.strip()] if part.strip() else parts)
    return kernels


def parameters(kind, values, header="kernels/params.h"):
    """Bytes of the struct `kind` of params.h; what `values` does not have is zero (of pointers:
    some address, but for biases, which are null)."""
    text = re.sub(r"//.*", "", open(header).read())
    fields = re.search(r"typedef struct \{([^}]*)\} " + kind + ";", text)[1]
    out = bytearray()
    for declaration in filter(None, (d.strip() for d in fields.split(";"))):
        base = re.match(r"(?:const )?\w+ ", declaration)[0]
        for name in declaration[len(base):].split(","):
            pointer, name = "*" in name, name.strip(" *")
            size = 8 if pointer else 4
            out += bytes(-len(out) % size)
            value = values.get(name, 0 if not pointer or name == "bias" else 0x7F0000000000)
            out += struct.pack("<Q" if pointer else "<f" if isinstance(value, float) else "<I", value)
    return bytes(out)


class Stuck(Exception):
    pass


class Warp:
    """One lane's registers on its way through a kernel."""

    def __init__(self, code, constants, special, shared, atomic):
        self.code, self.constants, self.special, self.shared, self.atomic = code, constants, special, shared, atomic
        self.r, self.u, self.p = Counter(), Counter(), {}
        self.counts, self.loads, self.pc, self.order = Counter(), [], 0, sorted(code)
        self.multiplied = 0  # instructions up to the last product of a warpgroup
        self.after = dict(zip(self.order, self.order[1:]))

    # ---- operands
    def raw(self, text, wide=False):
        """The bits of an operand, without its sign."""
        text = text.replace(".reuse", "").strip("-|~")
        half = None
        if match := re.search(r"\.(H[01]_H[01])$", text):
            half, text = int(match[1][1]), text[: match.start()]
        text = re.sub(r"\.(64|U32|B[0-3]|X[0-9]+)$", "", text)
        if text in ("RZ", "URZ", "SRZ"):
            value = 0
        elif match := re.fullmatch(r"(U?)R(\d+)", text):
            of, n = self.u if match[1] else self.r, int(match[2])
            value = of[n] | (of[n + 1] << 32 if wide else 0)
        elif match := re.fullmatch(r"c\[0x0\]\[(0x[0-9a-f]+)\]", text):
            value = int.from_bytes(self.constants.get(int(match[1], 16), 8 if wide else 4), "little")
        elif text.startswith("c["):
            value = 0
        elif re.fullmatch(r"0x[0-9a-f]+|\d+", text):
            value = int(text, 0)
        else:
            raise Stuck(f"operand {text}")
        return value if half is None else value >> 16 * half & 0xFFFF

    def i(self, text, wide=False):
        value, mask = self.raw(text, wide), (1 << 64) - 1 if wide else MASK
        if text.startswith("~"):
            value = ~value
        return (-value if text.startswith("-") else value) & mask

    def f(self, text):
        plain = text.replace(".reuse", "").strip("-|")
        if plain in ("+INF", "INF", "QNAN", "+QNAN"):
            value = float("inf") if "INF" in plain else float("nan")
        elif re.fullmatch(r"[0-9.]+(e[+-]?\d+)?", plain) and not re.fullmatch(r"U?RZ|U?R\d+", plain):
            value = float(plain)
        elif plain.endswith("H0_H0") or plain.endswith("H1_H1"):
            value = struct.unpack("<e", struct.pack("<H", self.raw(text)))[0]
        else:
            value = real(self.raw(text))
        value = abs(value) if "|" in text else value
        return -value if text.startswith("-") else value

    def b(self, text):
        negated, text = text.startswith("!"), text.lstrip("!")
        value = text in ("PT", "UPT") or self.p.get(text, False)
        return value != negated

    def set(self, text, value):
        text = text.replace(".reuse", "")
        if match := re.fullmatch(r"(U?)R(\d+)(\.64)?", text):
            (self.u if match[1] else self.r)[int(match[2])] = value & MASK
        elif text not in ("RZ", "URZ"):
            raise Stuck(f"destination {text}")

    def set_wide(self, text, value, words=2):
        if match := re.fullmatch(r"(U?)R(\d+)", text.replace(".reuse", "")):
            for word in range(words):
                (self.u if match[1] else self.r)[int(match[2]) + word] = value >> 32 * word & MASK

    def set_p(self, text, value):
        if text not in ("PT", "UPT"):
            self.p[text] = bool(value)

    def address(self, text):
        total = 0
        for part in re.findall(r"-?[^+\[\]]+", text[text.rindex("[") :]):
            total += self.i(part)
        return total & MASK

    # ---- running
    def run(self, most=2_000_000):
        for _ in range(most):
            negated, predicate, opcode, o = self.code[self.pc]
            self.counts[opcode.split(".")[0]] += 1
            self.where = self.pc
            self.issued(opcode, o)
            then = self.after.get(self.pc)
            if predicate is None or self.b(("!" if negated else "") + predicate):
                if opcode.startswith("LDG"):
                    self.loads.append((sum(self.counts.values()), opcode))
                to = self.step(opcode, o)
                if to == "exit":
                    return self
                then = then if to is None else to
            self.pc = then
        raise Stuck("does not end")

    def issued(self, opcode, o):
        pass

    def step(self, opcode, o):
        name, *rest = opcode.split(".")
        if name in ("NOP", "BSSY", "BSYNC", "WARPSYNC", "PREEXIT", "ACQBULK", "BAR", "ERRBAR", "CCTL", "MEMBAR", "DEPBAR", "LDGDEPBAR",
                    "LDGSTS", "STG", "ST", "RED", "ENDCOLLECTIVE", "BMOV", "YIELD", "UBLKPF", "CGAERRBAR", "STL", "WARPGROUP",
                    "FENCE"):
            return None
        if name == "HGMMA":
            self.multiplied = sum(self.counts.values())
            return None
        if name in ("SYNCS", "USETMAXREG"):  # what a thread waits for has always happened
            return self.set_p(o[0], True) if rest[-1] == "TRYWAIT" or "TRY_ALLOC" in rest else None
        if name == "EXIT":
            return "exit"
        if name == "BRA":
            if "DIV" in rest:
                return None
            if "U" in rest:
                condition, target = o[0], o[1] if len(o) > 1 else o[0]
                return int(target, 16) if len(o) == 1 or self.b(condition) else None
            if len(o) == 2:
                return int(o[1], 16) if self.b(o[0]) else None
            return int(o[0], 16)
        if name == "CALL":
            return int(o[-1], 16)
        if name == "RET":
            return self.i(o[0].split()[0])
        getattr(self, "do_" + re.sub(r"^U(?=IADD3|IMAD|MOV|LOP3|ISETP|SHF|LEA|SEL|PLOP3|PRMT)", "", name))(rest, o)
        return None

    def do_MOV(self, rest, o):
        self.set(o[0], self.i(o[1]))

    def do_LDC(self, rest, o):
        if not (match := re.match(r"c\[0x0\]\[(.*)\]", o[1])):
            # A constant of the code, or a table.
            return self.set_wide(o[0], 0, 2 if "64" in rest else 1)
        at = sum(self.i(part) for part in match[1].split("+")) & MASK
        size = 8 if "64" in rest else 1 if "U8" in rest else 2 if "U16" in rest else 4
        self.set_wide(o[0], int.from_bytes(self.constants.get(at, size), "little"), 2 if size == 8 else 1)

    do_ULDC = do_LDC

    def do_S2R(self, rest, o):
        self.set(o[0], self.special.get(o[1], 0))

    do_S2UR = do_S2R

    def do_CS2R(self, rest, o):
        self.set_wide(o[0], 0)

    def do_R2UR(self, rest, o):
        self.set(o[-2], self.i(o[-1]))

    def do_VOTE(self, rest, o):
        if re.match(r"U?P", o[0]):
            self.set_p(o[0], self.b(o[-1]))
        else:
            self.set(o[0], MASK if self.b(o[-1]) else 0)

    do_VOTEU = do_VOTE

    def do_IADD3(self, rest, o):
        preds = [x for x in o[1:] if re.fullmatch(r"!?U?P[0-6T]", x)]
        values = [x for x in o[1:] if x not in preds]
        carries = preds
        carry = 0
        if "X" in rest:
            # the carries that come in are the last ones
            n = len(o) - 1
            ins = [x for x in o[n - 1 :] if re.fullmatch(r"!?U?P[0-6T]", x)]
            k = len(o)
            while k > 1 and re.fullmatch(r"!?U?P[0-6T]", o[k - 1]):
                k -= 1
            ins, carries = o[k:], [x for x in o[1:k] if x in preds]
            carry = sum(self.b(x) for x in ins)
        # a negative operand adds its complement and one
        total = carry + sum(self.i(x) for x in values)
        self.set(o[0], total)
        for n, out in enumerate(carries):
            self.set_p(out, total >> 32 > n)

    def do_VIADD(self, rest, o):
        self.set(o[0], self.i(o[1]) + self.i(o[2]))

    def do_IMAD(self, rest, o):
        if "MOV" in rest or "IADD" in rest or "SHL" in rest or not rest or rest == ["U32"]:
            self.set(o[0], self.i(o[1]) * self.i(o[2]) + self.i(o[3]))
        elif "X" in rest:
            self.set(o[0], self.i(o[1]) * self.i(o[2]) + self.i(o[3]) + sum(self.b(x) for x in o[4:]))
        elif "WIDE" in rest or "HI" in rest:
            carries = [x for x in o[1:] if re.fullmatch(r"!?U?P[0-6T]", x)]
            a, b, c = (x for x in o[1:] if x not in carries)
            of = (lambda x: self.i(x)) if "U32" in rest else (lambda x: signed(self.i(x)))
            total = of(a) * of(b) + self.i(c, wide=True)
            if "HI" in rest:
                self.set(o[0], total >> 32)
            else:
                self.set_wide(o[0], total & (1 << 64) - 1)
            for out in carries:
                self.set_p(out, total >> 64)
        else:
            raise Stuck(f"IMAD.{rest}")

    def do_ISETP(self, rest, o):
        of = (lambda x: self.i(x)) if "U32" in rest else (lambda x: signed(self.i(x)))
        a, b = of(o[2]), of(o[3])
        compare = rest[0]
        found = {"EQ": a == b, "NE": a != b, "LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b}[compare]
        if "EX" in rest:
            low = self.b(o[5])
            if compare in ("EQ", "NE"):
                found = found and low if compare == "EQ" else found or low
            elif a == b:
                found = low
        last = self.b(o[4])
        logic = {"AND": lambda x: x and last, "OR": lambda x: x or last, "XOR": lambda x: x != last}[
            next(x for x in rest if x in ("AND", "OR", "XOR"))]
        self.set_p(o[0], logic(found))
        self.set_p(o[1], logic(not found))

    def do_FSETP(self, rest, o):
        a, b = self.f(o[2]), self.f(o[3])
        nan = a != a or b != b
        compare = rest[0]
        found = {"EQ": a == b, "NE": a != b, "LT": a < b, "LE": a <= b, "GT": a > b, "GE": a >= b, "NAN": nan, "NUM": not nan}[
            compare[:2] if compare.endswith("U") else compare]
        found = found and not nan or nan and compare.endswith("U")
        last = self.b(o[4])
        logic = "AND" if "AND" in rest else "OR"
        self.set_p(o[0], found and last if logic == "AND" else found or last)
        self.set_p(o[1], (not found) and last if logic == "AND" else (not found) or last)

    def do_FCHK(self, rest, o):
        self.set_p(o[0], False)

    def do_PLOP3(self, rest, o):
        # destinations, three sources, two tables of truth
        sources, table = o[2:5], int(o[5], 16)
        index = sum(self.b(x) << 2 - n for n, x in enumerate(sources))
        self.set_p(o[0], table >> index & 1)
        if len(o) > 6:
            self.set_p(o[1], int(o[6], 16) >> index & 1)

    def do_LOP3(self, rest, o):
        out = None
        if re.fullmatch(r"U?P[0-6T]", o[0]):
            out, o = o[0], o[1:]
        a, b, c = (self.i(x) for x in o[1:4])
        table, value = int(o[4], 16), 0
        for index in range(8):
            if table >> index & 1:
                value |= (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
        self.set(o[0], value)
        if out:
            self.set_p(out, value & MASK)

    def do_SHF(self, rest, o):
        low, by, high = self.i(o[1]), self.i(o[2]), self.i(o[3])
        wide = "U64" in rest or "S64" in rest
        by &= 63 if wide else 31
        if "L" in rest:
            value = (high << 32 | low) << by
            self.set(o[0], value >> 32 if "HI" in rest else value)
        else:
            top = signed(high) if "S32" in rest or "S64" in rest else high
            value = (top << 32 | low) >> by
            if "HI" in rest:
                self.set(o[0], (top >> by) if not wide else value >> 32)
            else:
                self.set(o[0], value)

    def do_LEA(self, rest, o):
        carries = [x for x in o[1:] if re.fullmatch(r"!?U?P[0-6T]", x)]
        values = [x for x in o[1:] if x not in carries]
        if "HI" in rest:
            a, b, c, by = values[0], values[1], values[2], self.i(values[3])
            top = signed(self.i(c)) if "SX32" in rest else self.i(c)
            total = ((top << 32 | self.i(a)) << by >> 32) + self.i(b) + (sum(self.b(x) for x in carries[-1:]) if "X" in rest else 0)
            self.set(o[0], total)
        else:
            total = (self.i(values[0]) << self.i(values[2]) & MASK) + self.i(values[1])
            self.set(o[0], total)
            for out in carries:
                self.set_p(out, total >> 32)

    def do_SEL(self, rest, o):
        self.set(o[0], self.i(o[1] if self.b(o[3]) else o[2]))

    def do_FSEL(self, rest, o):
        self.set(o[0], bits(self.f(o[1] if self.b(o[3]) else o[2])))

    def do_VIMNMX(self, rest, o):
        of = (lambda x: self.i(x)) if "U32" in rest else (lambda x: signed(self.i(x)))
        self.set(o[0], (min if self.b(o[3]) else max)(of(o[1]), of(o[2])))

    do_IMNMX = do_VIMNMX

    def do_VIADDMNMX(self, rest, o):
        of = (lambda x: x & MASK) if "U32" in rest else signed
        self.set(o[0], (min if self.b(o[4]) else max)(of(self.i(o[1]) + self.i(o[2])), of(self.i(o[3]))))

    def do_PRMT(self, rest, o):
        whole, how, value = self.i(o[3]) << 32 | self.i(o[1]), self.i(o[2]), 0
        for n in range(4):
            byte = whole >> 8 * (how >> 4 * n & 7) & 255
            if how >> 4 * n & 8:
                byte = 255 if byte & 128 else 0
            value |= byte << 8 * n
        self.set(o[0], value)

    def do_R2P(self, rest, o):
        value, mask = self.i(o[1]), self.i(o[2])
        for n in range(7):
            if mask >> n & 1:
                self.p[f"P{n}"] = bool(value >> n & 1)

    def do_P2R(self, rest, o):
        mask, value = self.i(o[3]), sum(self.p.get(f"P{n}", False) << n for n in range(7))
        self.set(o[0], self.i(o[2]) & ~mask | value & mask)

    # ---- floats; the sums of tensor cores are zeros, because memory is
    def do_FFMA(self, rest, o):
        value = self.f(o[1]) * self.f(o[2]) + self.f(o[3])
        self.set(o[0], bits(min(max(value, 0), 1) if "SAT" in rest else value))

    def do_FMUL(self, rest, o):
        self.set(o[0], bits(self.f(o[1]) * self.f(o[2])))

    def do_FADD(self, rest, o):
        self.set(o[0], bits(self.f(o[1]) + self.f(o[2])))

    def do_FMNMX(self, rest, o):
        self.set(o[0], bits((min if self.b(o[3]) else max)(self.f(o[1]), self.f(o[2]))))

    def do_HADD2(self, rest, o):
        self.set(o[0], bits(self.f(o[1]) + self.f(o[2])) if "F32" in rest else 0)

    def do_MUFU(self, rest, o):
        x = self.f(o[1])
        value = {"RCP": lambda: 1 / x if x else float("inf"), "RSQ": lambda: x**-0.5 if x > 0 else float("inf"), "EX2": lambda: 2.0 ** min(x, 127),
                 "SQRT": lambda: x**0.5, "LG2": lambda: 0.0}[rest[0]]()
        self.set(o[0], bits(value))

    def do_I2FP(self, rest, o):
        self.set(o[0], bits(float(self.i(o[1]) if "U32" in rest else signed(self.i(o[1])))))

    def zero(self, rest, o):
        self.set(o[0], 0)

    do_F2FP = do_HFMA2 = do_HMUL2 = do_F2F = do_P2R = zero

    def do_I2F(self, rest, o):
        x = self.i(o[1])
        value = bits(float(x if "U32" in rest else signed(x)))
        # `RP` rounds up, which the division of integers relies on.
        self.set(o[0], value + ("RP" in rest and real(value) < x))

    def do_F2I(self, rest, o):
        self.set(o[0], int(max(self.f(o[1]), 0) if "U32" in rest else self.f(o[1])))

    def do_HMMA(self, rest, o):
        self.set_wide(o[0], 0, 4)

    def do_LDG(self, rest, o):
        if o[0] not in ("RZ", "PT"):
            self.set_wide(o[0], 0, 4 if "128" in rest else 2 if "64" in rest else 1)

    def do_ATOMG(self, rest, o):
        self.set(o[1], self.atomic)

    def do_LDS(self, rest, o):
        at, words = self.address(o[1]), 4 if "128" in rest else 2 if "64" in rest else 1
        self.set_wide(o[0], sum(self.shared.get(at + 4 * n, 0) << 32 * n for n in range(words)), words)

    do_LDSM = do_LDL = do_LDS

    def do_STS(self, rest, o):
        at, words = self.address(o[0]), 4 if "128" in rest else 2 if "64" in rest else 1
        for n in range(words):
            if match := re.fullmatch(r"R(\d+)", o[1]):
                self.shared[at + 4 * n] = self.r[int(match[1]) + n]
            else:
                self.shared[at + 4 * n] = 0

    def do_SHFL(self, rest, o):
        self.set(o[1], self.i(o[2]))
        self.set_p(o[0], True)


class Constants:
    def __init__(self, params, grid, block):
        self.params, self.head = params, struct.pack("<6I", *block, *grid)

    def get(self, at, size):
        if at >= BASE:
            return (self.params[at - BASE :] + bytes(size))[:size]
        return (self.head[at:] + bytes(size))[:size]


def trace(code, params, grid, block=(0, 0, 0), warps=range(8), threads=256, atomic=0):
    """The warps of one block, each as a Warp that has ended."""
    constants, shared, done = Constants(params, grid, (threads, 1, 1)), {}, []
    for warp in warps:
        special = {"SR_TID.X": 32 * warp, **{f"SR_CTAID.{axis}": n for axis, n in zip("XYZ", block)}, "SR_LANEID": 0}
        one = Warp(code, constants, special, shared, atomic)
        try:
            done.append(one.run())
        except (Stuck, KeyError, AttributeError, ValueError) as error:
            raise Stuck(f"at {one.where:#x}: {code[one.where]}: {error!r}") from error
    return done


OPS = {"qkv": "QkvParams", "matmul_add": "MatmulAddParams", "ffn_up": "FfnUpParams", "logits": "LogitsParams"}
TYPES = ("bf16", "int8", "fp8", "int4", "nf4")


def stride(dtype, k):
    """`w_stride` of params.h."""
    if dtype in ("f16", "bf16"):
        return -(-k // 32) * 32
    padded = -(-k // 256) * 256
    codes, group = {"int8": (1, 32), "fp8": (1, 128), "int4": (0.5, 32), "nf4": (0.5, 64)}[dtype]
    return -(-int(padded * codes + 2 * padded / group) // 64) * 4


def values_of(op, dtype, rows, k, n, splits=1):
    """Parameters of a product with `rows` weight rows, `k` columns and `n` activation rows, 32
    heads of 128 and 8 of them for keys."""
    w = stride(dtype, k)
    values = {"n_rows": n, "eps": 1e-5, "splits": splits, "w_stride": w, "x_stride": k}
    values |= {"qkv": {"dim": k, "n": rows, "q_stride": 4096, "n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "head_stride": 128, "kv_type": 2},
               "matmul_add": {"k": k, "n": rows, "x_stride": rows, "y_stride": k, "scale": 1.0},
               "ffn_up": {"dim": k, "ffn_dim": rows // 2, "h_stride": rows // 2, "h_type": 11 if dtype != "bf16" else 2},
               "logits": {"dim": k, "vocab_size": rows, "out_stride": rows}}[op]
    return parameters(OPS[op], values)


def warps_of(code, op, dtype, rows, k, n, grid, block=(0, 0, 0), splits=1, atomic=0):
    """Instructions of a block of such a product."""
    warps = trace(code, values_of(op, dtype, rows, k, n, splits), grid, block, atomic=atomic)
    return sum(sum(warp.counts.values()) for warp in warps)


def few(code, op, dtype):
    """What all warps of a block issue: for itself, for an activation row, for 1024 columns of one,
    for a tile of sixteen weight rows, and for one of its lines."""
    # one block of two has one tile or two
    of = {(tiles, k, n): warps_of(code, op, dtype, 16 * (2 * tiles), k, n, (2, 1, 1)) for tiles, k, n in
          ((1, 4096, 1), (2, 4096, 1), (1, 8192, 1), (2, 8192, 1), (1, 4096, 2))}
    lines = 4096 // {"bf16": 64, "int8": 128, "fp8": 128, "int4": 256, "nf4": 256}[dtype]
    short, long = of[2, 4096, 1] - of[1, 4096, 1], of[2, 8192, 1] - of[1, 8192, 1]
    line = (long - short) / lines
    tile = short - line * lines
    staged = (of[1, 8192, 1] - long - of[1, 4096, 1] + short) / 4
    row = of[1, 4096, 2] - of[1, 4096, 1] - 4 * staged
    return [round(x) for x in (of[1, 4096, 1] - short - row - 4 * staged, row, staged, tile, line)]


def batch(code, op, dtype):
    """For 16, 32 and 64 activation rows of a block: what its warps issue for itself and for a line
    of its 128 weight rows."""
    lines = 4096 // {"bf16": 64, "int8": 128, "fp8": 128, "int4": 256, "nf4": 256}[dtype]
    out = []
    for n in (16, 32, 64):
        short, long = (warps_of(code, op, dtype, 256, k, n, (1, 2, 1)) for k in (4096, 8192))
        out += [round(short - (long - short)), round((long - short) / lines)]
    return out


def hopper_parameters(op, dtype, rows, k, groups):
    """Parameters of a product of 1024 rows of a prompt. Two tensor maps, from a multiple of 128 on,
    come first; the number of warpgroups last."""
    return bytes(-BASE % 128 + 256) + values_of(op, dtype, rows, k, 1024) + struct.pack("<I", groups)


def hopper(code, op, dtype, width):
    """What the warps of a block of a prompt's product issue after the last product; for q | k | v
    the mean of the blocks that have q, k or v. `width`: weight rows of a block."""
    warps = range(4 if width == 64 else 8)  # those that multiply
    rows = {"qkv": 6144, "matmul_add": 4096, "ffn_up": 28672}[op]
    params = hopper_parameters(op, dtype, rows, 4096, 2)
    blocks = [(0, 6), (4096, 1), (5120, 1)] if op == "qkv" else [(0, 1)]
    out = [(trace(code, params, (8, 1, 1), (0, first // width, 0), warps, 384), share) for first, share in blocks]
    sums = [share * sum(sum(warp.counts.values()) - warp.multiplied for warp in warps) for warps, share in out]
    return round(sum(sums) / sum(share for _, share in blocks))


def cuobjdump():
    return subprocess.run(["scripts/nvcc"], capture_output=True, text=True, check=True).stdout.strip().removesuffix("nvcc") + "cuobjdump"


def main(folder="build/kernels/ptxas"):
    print("few rows:  block  row  1024 columns of a row  tile  line; many: block and line for 16, 32 and 64 rows; KB of code of both")
    for op in OPS:
        sass = subprocess.run([cuobjdump(), "-sass", "-arch", "sm_90a", f"{folder}/{op}.fatbin"], capture_output=True, text=True, check=True).stdout
        kernels = read(sass.splitlines())
        for dtype in TYPES:
            if f"{op}_{dtype}" in kernels:
                one, many = kernels[f"{op}_{dtype}"], kernels[f"{op}_batch_{dtype}"]
                print(f'    ("{op}", "{dtype}"): ({few(one, op, dtype)}, {batch(many, op, dtype)}),  # {max(one) / 1024:.0f} and {max(many) / 1024:.0f} KB')
        for dtype in TYPES:
            if f"{op}_hopper_{dtype}" in kernels:
                codes = [kernels[name] for size in ("", "half_", "quarter_") if (name := f"{op}_hopper_{size}{dtype}") in kernels]
                widths = (256, 128, 64) if dtype == "bf16" else (128, 128)
                print(f'    ("{op}", "{dtype}"): {[hopper(code, op, dtype, width) for code, width in zip(codes, widths)]},'
                      f"  # after the products of a prompt; {' and '.join(f'{max(code) / 1024:.0f}' for code in codes)} KB")


if __name__ == "__main__":
    main(*sys.argv[1:])
