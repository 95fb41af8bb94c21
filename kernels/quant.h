// Quantised weights: their layout in memory, and how codes become numbers. Part of gpu.h.
//
// compute/src/quant defines the formats: each weight has a code, and each group of weights along K
// shares a scale in f16. K is padded to blocks of 256 columns. A row consists of all its codes,
// followed by all its scales. The scales lie apart from the codes so that one load brings all
// scales of a block:
//
//     codes   [block][line][8 pieces][16 bytes]       a line: 128 columns of 8 bits or 256 of 4
//     scales  [block][256 / group] f16
//
// A line is 128 bytes, which eight neighbouring lanes load. Of each 32 columns of a line, piece o
// has columns 4o .. 4o + 3. So a lane gets its weights with one 16-byte load, the activations that
// eight lanes need at one time are 128 contiguous bytes as well, and the eight lanes use the same
// scales. Step j of a line is its columns 32j .. 32j + 31. The four codes of step j in piece o
// (columns 32j + 4o .. 32j + 4o + 3, numbered e = 0 .. 3) lie in
//
//     8 bits  word j of the piece, in byte e: int8 and k8 code + 128, e4m3 as it is
//     4 bits  word j / 2, in nibbles 0 4 1 5 (j even) or 2 6 3 7 (j odd)
//
// In place of the scale, uint4 has two f16 for each group, one behind the other: the scale, and the
// zero point z, which is subtracted from the code (compute/src/quant/uint4.rs). So one word holds
// both, with the scale in its lower half.
//
// The codes of nf4 and iq4 index tables of sixteen numbers. The table of nf4 (nf4.rs) has floats.
// The table of iq4 (iq4.rs) has integers of eight bits, which f16 can represent exactly.
//
// The K types of GGUF files (compute/src/quant/k.rs) have scales of two levels instead. After the
// codes come the small scales: sixteen bytes for each block. In k4 and k5, these are a scale and a
// minimum for each 32 columns in turn. In k6 and k8, they are a scale + 128 for each 16 columns.
// After the small scales of all blocks come the f16 numbers by which the small scales are
// multiplied: two for each block of k4 and k5 (one for scales, one for minima), and one for each
// block of k6 and k8.
//
// The lower four bits of the codes of k5 and k6 lie as codes of 4 bits do. Behind them, before the
// scales, are the planes, which hold the PLANE = 1 or 2 upper bits of each code. For each block
// there are PLANE words for each piece. The pieces come in the order 0, 4, 1, 5, 2, 6, 3, 7, so
// that a lane of a decode product loads the words of its two pieces at once. One word of k5 serves
// all eight steps of a line. In k6, the first word serves steps 0 .. 3 and the second word serves
// the others. In a word, the bits of its step i begin at bit 2 * PLANE * i. From there on lie the
// bits of columns e = 0 and 2; the bits of columns e = 1 and 3 lie 16 bits higher.
//
// The codes of two neighbouring columns are thus 16 bits apart, and one mask gives a pair of 16-bit
// numbers for tensor cores. The same pieces also serve as operand A of mma.m16n8k16: there, a
// thread may have any four columns, as long as it has the same four in operand B.
//
// Codes become numbers without rounding. To make a float, a code is put into the mantissa of 2^23,
// and one subtraction removes 2^23 again. The i-th nibble of a word is put into 2^(23 - 4i), so
// that it need not be shifted. To make an f16, a code is put into 2^10. Decode sums the products of
// 32 codes and then scales the sum once. Prefill rounds code times scale to f16.

struct Quantised {
    // SIXTEENS: whether each sixteen columns have a scale of their own. MINIMA: whether groups have
    // minima, which are subtracted (k4, k5 and uint4; the minimum of uint4 is scale times zero
    // point).
    static constexpr bool SIXTEENS = false, MINIMA = false;
    // Bits of a code that lie in a plane.
    static constexpr uint32_t PLANE = 0;
    // Bytes that hold the scales of a line of a row, where they can be copied to shared memory by
    // themselves; otherwise 0.
    static constexpr uint32_t SCALE_BYTES = 0;
    // The table of `decode` where shared memory has none; null for formats that look nothing up.
    DEVICE_MEMBER static const float *values() { return nullptr; }
};
// Bytes of the codes of a block.
template <class Q> constexpr uint32_t BLOCK_BYTES = Q::LINES * 128 + Q::PLANE * 32;

// What the formats share that have a scale in f16 for each group of G columns.
template <uint32_t G> struct OneScale : Quantised {
    static constexpr uint32_t GROUP = G;
    // What one thread needs of one step of a prompt's product.
    using Scale = f16;

    // `scales` is where the scales of the row begin; the row has `blocks` blocks.
    DEVICE_MEMBER static void load_scale(
        Scale &to, const unsigned char *scales, uint32_t column, uint32_t) {
        to = ((const f16 *)scales)[column / G];
    }
    // Turns four codes into weights.
    DEVICE_MEMBER static void apply(float (&v)[4], Scale scale) {
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = v[e] * to_float(scale);
    }
    // The scale of a step of a line.
    template <class LineScales>
    DEVICE_MEMBER static float scale_of(const LineScales &scales, uint32_t step) {
        const uint32_t group = step * 32 / G;
        return to_float(f16{(uint16_t)(scales.w[group / 2] >> group % 2 * 16)});
    }
};

struct Int8 : OneScale<32> {
    // LINES: lines of a block. STEPS: steps of 32 columns in a line.
    static constexpr uint32_t LINES = 2, STEPS = 4;
    static constexpr int WORDS = 2; // words of a piece that two steps (64 columns) take
    using LineScales = Words2;

    // Decodes the four columns of one step. `words` begins at an even step; `half` is 0 for that
    // step and 1 for the next one.
    DEVICE_MEMBER static void decode(
        float (&v)[4], const uint32_t *words, int half, const float *) {
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = byte_as_float(words[half], e) - 8388736.0f;
    }
    // Decodes the four columns of step `step` of a line to two pairs of f16, exactly: (1024 + byte)
    // - 1152.
    DEVICE_MEMBER static void decode_pairs(
        uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *) {
        UNROLL
        for (int i = 0; i < 2; i++)
            pairs[i] = fma_pair(bytes_as_pair(words[step], 2 * i), 0x3c003c00, 0xe480e480);
    }
    // Loads the scales of a line of a row that has `blocks` blocks.
    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t) {
        s = load_stream8(scales + line * 8);
    }
    static constexpr uint32_t SCALE_BYTES = 8;
    // Begins to copy the scales of a line to shared memory, and reads them there.
    DEVICE_MEMBER static void ask_scales(
        unsigned char *to, const unsigned char *scales, uint32_t line) {
        cp_async_small<8>(to, scales + line * 8);
    }
    DEVICE_MEMBER static void take_scales(LineScales &s, const unsigned char *from, uint32_t) {
        s = load_shared8(from);
    }
    DEVICE_MEMBER static const float *table(unsigned char *) { return nullptr; }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *) { return nullptr; }
};

// The number of the nibble that has column e of step `half` (the table above; j = half).
DEVICE int nibble_of(int half, int e) { return half * 2 + e / 2 + e % 2 * 4; }

// Codes of four bits, from which ZERO is subtracted. `Base` says which scales they have.
template <class Base, uint32_t ZERO> struct FourBits : Base {
    static constexpr uint32_t LINES = 1, STEPS = 8;
    static constexpr int WORDS = 1;

    DEVICE_MEMBER static void decode(
        float (&v)[4], const uint32_t *words, int half, const float *) {
        UNROLL
        for (int e = 0; e < 4; e++) {
            // Nibbles 5 .. 7 lie where a float has its exponent and sign, so they are shifted down.
            int n = nibble_of(half, e), i = n < 5 ? n : n - 3;
            uint32_t from = n < 5 ? words[0] : words[0] >> 12;
            v[e] = as_float(mask_or(from, 0xfu << (4 * i), (uint32_t)(150 - 4 * i) << 23)) -
                   (float)((1u << (23 - 4 * i)) + ZERO);
        }
    }
    DEVICE_MEMBER static void decode_pairs(
        uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *) {
        uint32_t low, high;
        with_exponents(low, high, words, step);
        weights_of(pairs, low, high);
    }
    // Two pairs of 1024 + code, and two of 1024 + 16 * code.
    DEVICE_MEMBER static void with_exponents(
        uint32_t &low, uint32_t &high, const uint32_t *words, uint32_t step) {
        const uint32_t word = step % 2 ? words[step / 2] >> 8 : words[step / 2];
        low = mask_or(word, 0x000f000f, 0x64006400), high = mask_or(word, 0x00f000f0, 0x64006400);
    }
    // (1024 + code) - (1024 + ZERO), and (1024 + 16 * code) / 16 - (64 + ZERO).
    DEVICE_MEMBER static void weights_of(uint32_t (&pairs)[2], uint32_t low, uint32_t high) {
        pairs[0] = fma_pair(low, 0x3c003c00, 0xe400e400 + ZERO * 0x10001);
        pairs[1] = fma_pair(high, 0x2c002c00, 0xd400d400 + ZERO * 0x100010);
    }
    DEVICE_MEMBER static const float *table(unsigned char *) { return nullptr; }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *) { return nullptr; }
};

// A scale for each 32 columns, where a line has 256.
struct EightScales : OneScale<32> {
    using LineScales = Words4;
    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t) {
        s = load_stream(scales + line * 16);
    }
};

struct Int4 : FourBits<EightScales, 8> {
    static constexpr uint32_t SCALE_BYTES = 16;
    DEVICE_MEMBER static void ask_scales(
        unsigned char *to, const unsigned char *scales, uint32_t line) {
        cp_async(to, scales + line * 16, true);
    }
    DEVICE_MEMBER static void take_scales(LineScales &s, const unsigned char *from, uint32_t) {
        s = load_shared(from);
    }
};

// What the formats share whose weights are scale times code, less a minimum. A product is the sum
// over groups of scale (sum of codes times x) - minimum (sum of x).
struct LessMinimum : Quantised {
    static constexpr bool MINIMA = true;

    DEVICE_MEMBER static float lower(uint32_t word) { return to_float(f16{(uint16_t)word}); }
    DEVICE_MEMBER static float upper(uint32_t word) { return lower(word >> 16); }
    DEVICE_MEMBER static void apply_both(float (&v)[4], float scale, float minimum) {
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = v[e] * scale - minimum;
    }
};

// A scale and a zero point for each 32 columns: a weight is s code - s z. Two f16 have 22 bits of
// product at most, so the minimum s z is exact.
struct ZeroPoints : LessMinimum {
    // Of the line's eight groups.
    struct LineScales {
        Words4 words[2];
    };
    using Scale = uint32_t;

    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t) {
        UNROLL
        for (uint32_t i = 0; i < 2; i++) s.words[i] = load_stream(scales + line * 32 + i * 16);
    }
    DEVICE_MEMBER static uint32_t word_of(const LineScales &s, uint32_t step) {
        return s.words[step / 4].w[step % 4];
    }
    DEVICE_MEMBER static float scale_of(const LineScales &s, uint32_t step) {
        return lower(word_of(s, step));
    }
    DEVICE_MEMBER static float minimum_of(const LineScales &s, uint32_t step) {
        return lower(word_of(s, step)) * upper(word_of(s, step));
    }
    DEVICE_MEMBER static void load_scale(
        Scale &to, const unsigned char *scales, uint32_t column, uint32_t) {
        to = ((const uint32_t *)scales)[column / 32];
    }
    DEVICE_MEMBER static void apply(float (&v)[4], Scale s) {
        apply_both(v, lower(s), lower(s) * upper(s));
    }
};

struct Uint4 : FourBits<ZeroPoints, 0> {};

// The scales of Q4_K and Q5_K of GGUF files: a weight is d s code - dmin m, where s and m are small
// integers.
struct Minima : LessMinimum {
    // Scales and minima of the block's eight groups; d and dmin.
    struct LineScales {
        Words4 small;
        uint32_t large;
    };
    struct Scale {
        uint32_t large;
        uint16_t small;
    };

    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t blocks) {
        s.small = load_stream(scales + line * 16);
        s.large = *(const uint32_t *)(scales + blocks * 16 + line * 4);
    }
    DEVICE_MEMBER static float small_of(const LineScales &s, uint32_t step, uint32_t i) {
        return byte_as_float(s.small.w[step / 2], (int)(step % 2 * 2 + i)) - 8388608.0f;
    }
    DEVICE_MEMBER static float scale_of(const LineScales &s, uint32_t step) {
        return lower(s.large) * small_of(s, step, 0);
    }
    DEVICE_MEMBER static float minimum_of(const LineScales &s, uint32_t step) {
        return upper(s.large) * small_of(s, step, 1);
    }
    DEVICE_MEMBER static void load_scale(
        Scale &to, const unsigned char *scales, uint32_t column, uint32_t blocks) {
        to.small = *(const uint16_t *)(scales + column / 32 * 2);
        to.large = *(const uint32_t *)(scales + blocks * 16 + column / GPU_BLOCK_K * 4);
    }
    DEVICE_MEMBER static void apply(float (&v)[4], Scale s) {
        apply_both(
            v, lower(s.large) * (float)(s.small & 255), upper(s.large) * (float)(s.small >> 8));
    }
};

// The scales of Q6_K and Q3_K: a weight is d s code, with an s for each sixteen columns. `Codes`
// says which codes they have.
template <class Codes> struct Sixteens : Codes {
    static constexpr bool SIXTEENS = true;
    struct LineScales {
        uint32_t small[4 / Codes::LINES];
        uint16_t large;
    };
    struct Scale {
        uint16_t large;
        uint8_t small;
    };

    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t blocks) {
        if constexpr (Codes::LINES == 1) {
            const Words4 small = load_stream(scales + line * 16);
            UNROLL
            for (int i = 0; i < 4; i++) s.small[i] = small.w[i];
        } else {
            const Words2 small = load_stream8(scales + line * 8);
            s.small[0] = small.w[0], s.small[1] = small.w[1];
        }
        s.large = *(const uint16_t *)(scales + blocks * 16 + line / Codes::LINES * 2);
    }
    // The scale of the step's columns from 16 * half on.
    DEVICE_MEMBER static float scale_of(const LineScales &s, uint32_t step, uint32_t half) {
        return to_float(f16{s.large}) *
               (byte_as_float(s.small[step / 2], (int)(step % 2 * 2 + half)) - 8388736.0f);
    }
    DEVICE_MEMBER static void load_scale(
        Scale &to, const unsigned char *scales, uint32_t column, uint32_t blocks) {
        to.small = scales[column / 16];
        to.large = *(const uint16_t *)(scales + blocks * 16 + column / GPU_BLOCK_K * 2);
    }
    DEVICE_MEMBER static void apply(float (&v)[4], Scale s) {
        const float scale = to_float(f16{s.large}) * ((float)s.small - 128.0f);
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = v[e] * scale;
    }
};

// Codes of 4 + BITS bits. `Base` has the lower four, the code of zero, and the scales.
template <class Base, uint32_t BITS> struct Planed : Base {
    static constexpr uint32_t PLANE = BITS;
    // EACH: steps that a word of a plane serves. PAIR: the mask of the bits of a pair of columns.
    static constexpr uint32_t EACH = 8 / BITS, PAIR = ((1u << BITS) - 1) * 0x10001;
    struct Scale : Base::Scale {
        uint32_t plane, at;
    };

    // Loads the words of the planes that this lane needs for its two pieces of a line. `planes` is
    // where the planes of the row begin.
    DEVICE_MEMBER static void load_planes(
        uint32_t (&to)[2][BITS], const unsigned char *planes, uint32_t line) {
        if constexpr (BITS == 1) {
            const Words2 v = load_stream8(planes + line * 32 + threadIdx.x % 4 * 8);
            to[0][0] = v.w[0], to[1][0] = v.w[1];
        } else {
            const Words4 v = load_stream(planes + line * 64 + threadIdx.x % 4 * 16);
            to[0][0] = v.w[0], to[0][1] = v.w[1], to[1][0] = v.w[2], to[1][1] = v.w[3];
        }
    }
    // Decodes the four columns of a step, as the other formats do.
    DEVICE_MEMBER static void decode_planed(
        uint32_t (&pairs)[2], const uint32_t *words, const uint32_t (&plane)[BITS], uint32_t step) {
        const uint32_t bits = plane[step / EACH], at = 2 * BITS * (step % EACH);
        uint32_t low, high;
        Base::with_exponents(low, high, words, step);
        low = mask_or(moved(bits, at, 4), PAIR << 4, low);
#ifdef PLANT_PLANE
        high = mask_or(moved(bits, at, 8), PAIR << 8, high);
#else
        high = mask_or(moved(bits, at + BITS, 8), PAIR << 8, high);
#endif
        Base::weights_of(pairs, low, high);
    }
    // Shifts bit `from` to the place of bit `to`.
    DEVICE_MEMBER static uint32_t moved(uint32_t x, uint32_t from, uint32_t to) {
        return from < to ? x << (to - from) : x >> (from - to);
    }
    DEVICE_MEMBER static void load_scale(
        Scale &to, const unsigned char *scales, uint32_t column, uint32_t blocks) {
        Base::load_scale(to, scales, column, blocks);
        const uint32_t piece = column % 32 / 4, step = column % GPU_BLOCK_K / 32;
        to.plane =
            *(const uint32_t *)(scales - blocks * BITS * 32 + column / GPU_BLOCK_K * BITS * 32 +
                                (piece % 4 * 2 + piece / 4) * BITS * 4 + step / EACH * 4);
        to.at = 2 * BITS * (step % EACH);
    }
    // `v` comes from `decode`, without the bits of the plane.
    DEVICE_MEMBER static void apply(float (&v)[4], const Scale &s) {
        UNROLL
        for (uint32_t e = 0; e < 4; e++)
            v[e] +=
                (float)((s.plane >> (s.at + e / 2 * BITS + e % 2 * 16) & ((1u << BITS) - 1)) * 16);
        Base::apply(v, s);
    }
};

struct K4 : FourBits<Minima, 0> {};
struct K5 : Planed<FourBits<Minima, 0>, 1> {};
struct K6 : Planed<Sixteens<FourBits<Quantised, 32>>, 2> {};
struct K8 : Sixteens<Int8> {
    static constexpr uint32_t SCALE_BYTES = 0;
};

// e4m3, compute/src/quant/fp8.rs. One scale serves a whole line: smaller groups would not fit the
// numbers better, because each code has an exponent of its own.
struct Fp8 : OneScale<128> {
    static constexpr uint32_t LINES = 2, STEPS = 4;
    static constexpr int WORDS = 2;
    struct LineScales {
        uint16_t w[1];
    };

    DEVICE_MEMBER static void decode_pairs(
        uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *) {
        pairs[0] = e4m3_pair(words[step]);
        pairs[1] = e4m3_pair(words[step] >> 16);
    }
    DEVICE_MEMBER static void decode(
        float (&v)[4], const uint32_t *words, int half, const float *) {
        uint32_t pairs[2];
        decode_pairs(pairs, words, (uint32_t)half, nullptr);
        UNROLL
        for (int e = 0; e < 4; e++) v[e] = to_float(f16{(uint16_t)(pairs[e / 2] >> e % 2 * 16)});
    }
    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t) {
        s.w[0] = ((const uint16_t *)scales)[line];
    }
    // No copy is smaller than the word that has the scales of two lines.
    static constexpr uint32_t SCALE_BYTES = 4;
    DEVICE_MEMBER static void ask_scales(
        unsigned char *to, const unsigned char *scales, uint32_t line) {
        cp_async_small<4>(to, scales + line / 2 * 4);
    }
    DEVICE_MEMBER static void take_scales(LineScales &s, const unsigned char *from, uint32_t line) {
        s.w[0] = ((const uint16_t *)from)[line % 2];
    }
    DEVICE_MEMBER static const float *table(unsigned char *) { return nullptr; }
    DEVICE_MEMBER static const uint32_t *pair_table(unsigned char *) { return nullptr; }
};

// QLoRA's 4-bit normal float, compute/src/quant/nf4.rs.
CONSTANT float NF4_VALUES[16] = {
    -1.0f,
    -0.6961928f,
    -0.52507305f,
    -0.3949175f,
    -0.28444138f,
    -0.18477343f,
    -0.091050036f,
    0.0f,
    0.0795803f,
    0.1609302f,
    0.2461123f,
    0.33791524f,
    0.44070983f,
    0.562617f,
    0.72295684f,
    1.0f,
};

// IQ4_NL and IQ4_XS of GGUF files, compute/src/quant/iq4.rs.
CONSTANT float IQ4_VALUES[16] = {
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Codes of four bits that index a table. `Base` says which scales they have, and `Values` has the
// table.
template <class Base, class Values> struct TableCodes : Base {
    static constexpr uint32_t LINES = 1, STEPS = 8;
    static constexpr int WORDS = 1;

    // The table's sixteen words lie in sixteen banks of shared memory, so all lanes can look up any
    // entries at the same time.
    DEVICE_MEMBER static void decode(
        float (&v)[4], const uint32_t *words, int half, const float *table) {
        UNROLL
        for (int e = 0; e < 4; e++) {
            int n = nibble_of(half, e);
            uint32_t offsets = (n % 2 ? words[0] >> 2 : words[0] << 2) & 0x3c3c3c3c;
            v[e] = *(const float *)((const char *)table + byte_of(offsets, n / 2));
        }
    }
    // Looks the values up in f16. Each word of this table holds its value twice.
    DEVICE_MEMBER static void decode_pairs(
        uint32_t (&pairs)[2], const uint32_t *words, uint32_t step, const uint32_t *table) {
        const uint32_t word = step % 2 ? words[step / 2] >> 8 : words[step / 2];
        UNROLL
        for (int i = 0; i < 2; i++) {
            const uint32_t offsets = (i ? word >> 2 : word << 2) & 0x003c003c;
            pairs[i] = halves_of(*(const uint32_t *)((const char *)table + (offsets & 0xffff)),
                *(const uint32_t *)((const char *)table + (offsets >> 16)));
        }
    }
    DEVICE_MEMBER static const float *values() { return Values::all(); }
    // Fills a table for this warp alone, so that the warp need not wait for others. `shared` has 64
    // bytes for each warp.
    template <class T, class Value>
    DEVICE_MEMBER static const T *fill(unsigned char *shared, const Value &value) {
        const uint32_t lane = threadIdx.x % 32;
        T *table = (T *)shared + threadIdx.x / 32 * 16;
        if (lane < 16) table[lane] = value(values()[lane]);
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

struct Nf4Values {
    DEVICE_MEMBER static const float *all() { return NF4_VALUES; }
};
struct Iq4Values {
    DEVICE_MEMBER static const float *all() { return IQ4_VALUES; }
};

struct Nf4 : TableCodes<OneScale<64>, Nf4Values> {
    using LineScales = Words2;
    DEVICE_MEMBER static void load_scales(
        LineScales &s, const unsigned char *scales, uint32_t line, uint32_t) {
        s = load_stream8(scales + line * 8);
    }
    static constexpr uint32_t SCALE_BYTES = 8;
    DEVICE_MEMBER static void ask_scales(
        unsigned char *to, const unsigned char *scales, uint32_t line) {
        cp_async_small<8>(to, scales + line * 8);
    }
    DEVICE_MEMBER static void take_scales(LineScales &s, const unsigned char *from, uint32_t) {
        s = load_shared8(from);
    }
};

struct Iq4 : TableCodes<EightScales, Iq4Values> {};

template <class W> constexpr bool QUANTISED = __is_base_of(Quantised, W);

// The type of the activations in products with weights of type W.
template <class W, bool> struct ActivationOf {
    using type = W;
};
template <class W> struct ActivationOf<W, true> {
    using type = f16;
};
template <class W> using Activation = typename ActivationOf<W, QUANTISED<W>>::type;

// The place of a column in permuted order, in which wgmma takes a prompt's activations when it
// multiplies them with codes (codes_hopper.h). Each sixteen columns are permuted among themselves.
// A lane that has columns 4t .. 4t + 3 in its piece has k indices 2t, 2t + 1, 2t + 8 and 2t + 9 of
// the fragment.
DEVICE uint32_t permuted_of(uint32_t column) {
#ifdef PLANT_NOT_PERMUTED
    return column;
#else
    return (column & ~15u) | (column >> 1 & 6) | (column & 1) | (column & 2) << 2;
#endif
}
DEVICE uint32_t permuted_of(uint32_t column, uint32_t permuted) {
    return permuted ? permuted_of(column) : column;
}
DEVICE uint32_t column_of(uint32_t place) {
    return (place & ~15u) | (place << 1 & 12) | (place & 1) | (place >> 2 & 2);
}

// Fills the table in which decode_pairs looks codes up, in the first GPU_TABLE_BYTES of shared
// memory.
template <class W> DEVICE const uint32_t *pair_table(unsigned char *shared) {
    if constexpr (QUANTISED<W>)
        return W::pair_table(shared);
    else
        return nullptr;
}

// The address of row n of a matrix. `stride` is counted in numbers; for quantised weights, in units
// of 16 bytes.
template <class W> DEVICE const unsigned char *row_of(const void *w, uint32_t stride, size_t n) {
    return (const unsigned char *)w + n * stride * (QUANTISED<W> ? 16 : sizeof(W));
}

DEVICE uint32_t blocks_of(uint32_t k) { return (k + GPU_BLOCK_K - 1) / GPU_BLOCK_K; }
template <class Q> DEVICE uint32_t code_bytes(uint32_t k) { return blocks_of(k) * BLOCK_BYTES<Q>; }

// The word with the codes of columns column .. column + 3, shifted so that `decode` finds them as
// step 0. `column` is a multiple of 4.
template <class Q> DEVICE uint32_t word_of(const unsigned char *row, uint32_t column) {
    const uint32_t step = column / 32, line = step / Q::STEPS, in_line = step % Q::STEPS;
    uint32_t word =
        *(const uint32_t *)(row + line * 128 + column % 32 * 4 + in_line * Q::WORDS / 2 * 4);
    return Q::WORDS == 1 && in_line % 2 ? word >> 8 : word;
}

// The number types of an 8-bit KV cache. The vector of each head has a scale: its greatest
// magnitude divided by the greatest code. Within a page, the sixteen vectors of a head are followed
// by their sixteen scales. int8 codes are stored with 128 added. compute/src/backend/cpu/kv.rs has
// the same format.
struct Cached8 {
    uint8_t bits;
};
struct CachedF8 {
    uint8_t bits;
};
template <class T> constexpr bool SCALED = sizeof(T) == 1;
// Two codes of a word as f16, exactly. neighbours_of takes bytes i and i + 1 (i is 0 or 2);
// alternate_of takes bytes i and i + 2 (i is 0 or 1).
DEVICE uint32_t neighbours_of(uint32_t x, int i, Cached8) {
    return fma_pair(bytes_as_pair(x, i), 0x3c003c00, 0xe480e480);
}
DEVICE uint32_t neighbours_of(uint32_t x, int i, CachedF8) { return e4m3_pair(x >> 8 * i); }
DEVICE uint32_t alternate_of(uint32_t x, int i, Cached8) {
    return fma_pair(alternate_as_pair(x, i), 0x3c003c00, 0xe480e480);
}
DEVICE uint32_t alternate_of(uint32_t x, int i, CachedF8) {
    return e4m3_pair(alternate_bytes(x, i));
}
// The distance from one KV head of a page to the next in numbers, scales included.
template <class T> DEVICE size_t head_of_page(uint32_t head_stride) {
    return (size_t)GPU_PAGE * head_stride + (SCALED<T> ? GPU_PAGE * 4 : 0);
}
// The scale of a vector. `head` points to the first number of the vector's head in its page.
template <class C> DEVICE float unit_of(const C *head, uint32_t head_stride, uint32_t slot) {
    const float *unit = (const float *)(head + GPU_PAGE * head_stride) + slot;
#ifdef PLANT_CONST_UNIT
    return load_const_float(unit);
#else
    return *unit; // not load_const_float: `append` may have written it in the launch before
#endif
}
