// Quantised weights: how they lie in memory, and codes as numbers. Part of gpu.h.
//
// What the numbers are is said in src/quant: groups along K with a scale in f16, and for each weight a code.
// K is padded to blocks of 256 columns. A row is all its codes, then all its scales (a side array, so that the
// scales of a block are one load):
//
//     codes   [block][line][8 pieces][16 bytes]       a line: 128 columns of 8 bits or 256 of 4
//     scales  [block][256 / group] f16
//
// A line is 128 bytes, for eight neighbouring lanes. Piece o of it has columns 4o .. 4o + 3 of each 32: so while
// a lane's weights are one 16-byte load, the activations that eight lanes need for them at a time are 128 bytes in a
// row too, and one block's scales serve them all. The four of step j (columns 32j + 4o ..) are
//
//     8 bits  word j of the piece, in byte e: int8 code + 128, e4m3 as it is
//     4 bits  word j / 2, in nibbles 0 4 1 5 (j even) or 2 6 3 7 (j odd)
//
// so that neighbours are 16 bits apart: pairs of 16-bit numbers for tensor cores come out of one mask. The same
// pieces are also operand A of mma.m16n8k16, where a thread may have any four columns that B has there too.
//
// Codes become numbers by exact tricks: laid into the mantissa of 2^23 (or 2^(23 - 4i) for the i-th nibble, so that
// it needs no shift; in f16 of 2^10), which one subtraction takes off again. Decode sums the products of 32 codes
// and scales them once; prefill rounds code times scale to f16.

struct Quantised {};

struct Int8 : Quantised {
    static constexpr uint32_t GROUP = 32, LINES = 2, STEPS = 4; // lines of a block, steps of 32 columns in a line
    static constexpr int WORDS = 2;                             // of a piece, for 64 columns: steps 0 and 1
    using LineScales = Words2;

    // The four columns of step `half` of 64 columns.
    DEVICE_MEMBER static void decode(float (&v)[4], const uint32_t *words, int half, const float *) {
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = byte_as_float(words[half], e) - 8388736.0f;
    }
    // The four columns of step `step` of a line as two pairs of f16, exactly.
    DEVICE_MEMBER static void decode_pairs(uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *) {
        UNROLL
        for (int i = 0; i < 2; i++) pairs[i] = fma_pair(bytes_as_pair(words[step], 2 * i), 0x3c003c00, 0xe480e480); // - 1152
    }
    DEVICE_MEMBER static void load_scales(LineScales &s, const void *p) { s = load_stream8(p); }
    DEVICE_MEMBER static const float *table(unsigned char *) { return nullptr; }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *) { return nullptr; }
};

// Nibble `n` of a word where four bits are the `half`th step's column `e`.
DEVICE int nibble_of(int half, int e) { return half * 2 + e / 2 + e % 2 * 4; }

struct Int4 : Quantised {
    static constexpr uint32_t GROUP = 32, LINES = 1, STEPS = 8;
    static constexpr int WORDS = 1;
    using LineScales = Words4;

    DEVICE_MEMBER static void decode(float (&v)[4], const uint32_t *words, int half, const float *) {
        UNROLL
        for (int e = 0; e < 4; e++) {
            // Nibbles 5 .. 7 would reach into the exponent.
            int n = nibble_of(half, e), i = n < 5 ? n : n - 3;
            uint32_t from = n < 5 ? words[0] : words[0] >> 12;
            v[e] = as_float(mask_or(from, 0xfu << (4 * i), (uint32_t)(150 - 4 * i) << 23)) - (float)((1u << (23 - 4 * i)) + 8);
        }
    }
    DEVICE_MEMBER static void decode_pairs(uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *) {
        const uint32_t word = step % 2 ? words[step / 2] >> 8 : words[step / 2];
        pairs[0] = fma_pair(mask_or(word, 0x000f000f, 0x64006400), 0x3c003c00, 0xe408e408); // 1024 + code, - 1032
        pairs[1] = fma_pair(mask_or(word, 0x00f000f0, 0x64006400), 0x2c002c00, 0xd480d480); // 1024 + 16 code, / 16, - 72
    }
    DEVICE_MEMBER static void load_scales(LineScales &s, const void *p) { s = load_stream(p); }
    DEVICE_MEMBER static const float *table(unsigned char *) { return nullptr; }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *) { return nullptr; }
};

// e4m3, src/quant/fp8.rs. A scale a line: less would not fit the numbers better, which have exponents of their own.
struct Fp8 : Quantised {
    static constexpr uint32_t GROUP = 128, LINES = 2, STEPS = 4;
    static constexpr int WORDS = 2;
    struct LineScales { uint16_t w[1]; };

    DEVICE_MEMBER static void decode_pairs(uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *) {
        pairs[0] = e4m3_pair(words[step]);
        pairs[1] = e4m3_pair(words[step] >> 16);
    }
    DEVICE_MEMBER static void decode(float (&v)[4], const uint32_t *words, int half, const float *) {
        uint32_t pairs[2];
        decode_pairs(pairs, words, (uint32_t)half, nullptr);
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = to_float(f16{(uint16_t)(pairs[e / 2] >> e % 2 * 16)});
    }
    DEVICE_MEMBER static void load_scales(LineScales &s, const void *p) { s.w[0] = *(const uint16_t *)p; }
    DEVICE_MEMBER static const float *table(unsigned char *) { return nullptr; }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *) { return nullptr; }
};

// QLoRA's 4-bit normal float, src/quant/nf4.rs.
CONSTANT float NF4_VALUES[16] = {
    -1.0f,       -0.6961928f,  -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
    0.0795803f,  0.1609302f,   0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,   1.0f,
};

struct Nf4 : Quantised {
    static constexpr uint32_t GROUP = 64, LINES = 1, STEPS = 8;
    static constexpr int WORDS = 1;
    using LineScales = Words2;

    // Sixteen neighbouring words lie in sixteen banks: any lanes may look up anything at the same time.
    DEVICE_MEMBER static void decode(float (&v)[4], const uint32_t *words, int half, const float *table) {
        UNROLL
        for (int e = 0; e < 4; e++) {
            int n = nibble_of(half, e);
            uint32_t offsets = (n % 2 ? words[0] >> 2 : words[0] << 2) & 0x3c3c3c3c;
            v[e] = *(const float *)((const char *)table + byte_of(offsets, n / 2));
        }
    }
    // Values in f16, in both halves of a word.
    DEVICE_MEMBER static void decode_pairs(uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *table) {
        const uint32_t word = step % 2 ? words[step / 2] >> 8 : words[step / 2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const uint32_t offsets = (i ? word >> 2 : word << 2) & 0x003c003c;
            pairs[i] = halves_of(*(const uint32_t *)((const char *)table + (offsets & 0xffff)),
                                 *(const uint32_t *)((const char *)table + (offsets >> 16)));
        }
    }
    DEVICE_MEMBER static void load_scales(LineScales &s, const void *p) { s = load_stream8(p); }
    // This warp's own, so that no other warp need be waited for. `shared` has 64 bytes for each warp.
    template <class T, class Value> DEVICE_MEMBER static const T *fill(unsigned char *shared, const Value &value) {
        const uint32_t lane = threadIdx.x % 32;
        T *table = (T *)shared + threadIdx.x / 32 * 16;
        if (lane < 16) table[lane] = value(NF4_VALUES[lane]);
        warp_sync();
        return table;
    }
    DEVICE_MEMBER static const float *table(unsigned char *shared) {
        return fill<float>(shared, [](float v) { return v; });
    }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *shared) {
        return fill<uint32_t>(shared, [](float v) { return pair_of(v, v, f16()); });
    }
};

template <class W> constexpr bool QUANTISED = __is_base_of(Quantised, W);

// What products with these weights take activations as.
template <class W, bool> struct ActivationOf { using type = W; };
template <class W> struct ActivationOf<W, true> { using type = f16; };
template <class W> using Activation = typename ActivationOf<W, QUANTISED<W>>::type;

// Where a prompt's activations have a column that wgmma multiplies with codes (codes_hopper.h): a permutation of each sixteen. A lane
// with columns 4t .. 4t + 3 of a fragment's k has 2t, 2t + 1, 2t + 8 and 2t + 9.
DEVICE uint32_t slot_of(uint32_t column) {
#ifdef PLANT_WRONG_SLOT
    return column;
#else
    return (column & ~15u) | (column >> 1 & 6) | (column & 1) | (column & 2) << 2;
#endif
}
DEVICE uint32_t slot_of(uint32_t column, uint32_t slots) { return slots ? slot_of(column) : column; }
DEVICE uint32_t column_of(uint32_t slot) { return (slot & ~15u) | (slot << 1 & 12) | (slot & 1) | (slot >> 2 & 2); }

// What decode_pairs looks up, in the first GPU_TABLE_BYTES of shared memory.
template <class W> DEVICE const uint32_t *pair_table(unsigned char *shared) {
    if constexpr (QUANTISED<W>) return W::pair_table(shared);
    else return nullptr;
}

// Row `n` of a matrix; strides are in numbers, of quantised weights in units of 16 bytes.
template <class W> DEVICE const unsigned char *row_of(const void *w, uint32_t stride, size_t n) {
    return (const unsigned char *)w + n * stride * (QUANTISED<W> ? 16 : sizeof(W));
}

DEVICE uint32_t blocks_of(uint32_t k) { return (k + GPU_BLOCK_K - 1) / GPU_BLOCK_K; }
template <class Q> DEVICE uint32_t code_bytes(uint32_t k) { return blocks_of(k) * Q::LINES * 128; }

// The word with the codes of columns column .. column + 3, which are those of its step 0; `column` is a multiple of 4.
template <class Q> DEVICE uint32_t word_of(const unsigned char *row, uint32_t column) {
    const uint32_t step = column / 32, line = step / Q::STEPS, in_line = step % Q::STEPS;
    uint32_t word = *(const uint32_t *)(row + line * 128 + column % 32 * 4 + in_line * Q::WORDS / 2 * 4);
    return Q::WORDS == 1 && in_line % 2 ? word >> 8 : word;
}

// The KV cache in 8 bits: every head's vector has a scale of its own, its greatest magnitude over the greatest code; the
// sixteen scales of a page of a head follow its vectors. int8 is kept as code + 128 (src/backend/cpu/kv.rs has it too).
struct Cached8 { uint8_t bits; };
struct CachedF8 { uint8_t bits; };
template <class T> constexpr bool SCALED = sizeof(T) == 1;
// Numbers from one kv head of a page to the next, scales counted in.
template <class T> DEVICE size_t head_of_page(uint32_t head_stride) {
    return (size_t)GPU_PAGE * head_stride + (SCALED<T> ? GPU_PAGE * 4 : 0);
}
// The scale of a vector; `head`: the first number of its head of its page.
template <class C> DEVICE float unit_of(const C *head, uint32_t head_stride, uint32_t slot) {
    return load_const_float((const float *)(head + GPU_PAGE * head_stride) + slot);
}
