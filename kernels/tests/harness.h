// Helpers of the kernel tests: device buffers, random numbers, launches on several schedules,
// comparisons.
#ifndef LLAMABI_TESTS_HARNESS_H
#define LLAMABI_TESTS_HARNESS_H

#include "../emu/emu.h"
#include "../params.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <unistd.h>
#include <string>
#include <utility>
#include <vector>

[[noreturn]] inline void die(const std::string &text) {
    printf("FAILED: %s\n", text.c_str());
    fflush(stdout);
    _exit(1);
}
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char text[400];                                                                        \
            snprintf(text, sizeof text, __VA_ARGS__);                                              \
            die(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " + text);             \
        }                                                                                          \
    } while (0)

// The number of schedules on which every launch is repeated. Under a sanitizer one suffices.
inline int schedules() {
    const char *n = getenv("EMU_SCHEDULES");
    return n ? atoi(n) : 5;
}

// This function is defined if a sanitizer watches the kernels.
extern "C" __attribute__((weak)) void __asan_init();
extern "C" __attribute__((weak)) void __tsan_init();

struct Random {
    uint64_t state = 1;
    uint32_t bits() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (uint32_t)(state >> 33);
    }
    uint32_t below(uint32_t n) { return bits() % n; }
    // A roughly normal number with sigma 1, or now and then an outlier.
    float normal() {
        float sum = 0;
        for (int i = 0; i < 6; i++) sum += (float)bits() / 2147483648.0f - 0.5f;
        return sum * 1.41421356f * (below(97) == 0 ? 8.0f : 1.0f);
    }
};

inline uint32_t pad(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
inline uint32_t pad32(uint32_t n) { return pad(n, 32); }
inline uint32_t tiles(uint32_t n, uint32_t of) { return (n + of - 1) / of; }

// ---- storage types, implemented independently of the emulator

inline bool quantised(int type) {
    return (type >= GPU_INT8 && type <= GPU_K8) || type == GPU_IQ4 || type == GPU_UINT4;
}
inline bool has_minima(int type) { return type == GPU_K4 || type == GPU_K5 || type == GPU_UINT4; }
// Bits of codes that lie in a plane.
inline uint32_t plane_of(int type) { return type == GPU_K5 ? 1 : type == GPU_K6 ? 2 : 0; }
inline size_t size_of(int type) { return type == GPU_F32 ? 4 : 2; }
inline bool half(int type) { return type == GPU_F16 || type == GPU_F16_FINITE; }
inline const char *name_of(int type) {
    static const char *const names[] = {"f32", "f16", "bf16", "int8", "int4", "nf4", "fp8", "k4",
        "k5", "k6", "k8", "f16 that is finite", "iq4", "uint4"};
    return names[type];
}
// The type of the activations in a prefill product with weights of this type.
inline int prepared_type(int type) { return quantised(type) ? GPU_F16 : type; }

inline double widened(int type, const void *p) {
    if (type == GPU_F32) {
        float x;
        memcpy(&x, p, 4);
        return x;
    }
    uint16_t u;
    memcpy(&u, p, 2);
    int mantissa_bits = half(type) ? 10 : 7, exponent_bits = 15 - mantissa_bits;
    int mantissa = u & ((1 << mantissa_bits) - 1),
        exponent = u >> mantissa_bits & ((1 << exponent_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    double x = exponent == 2 * bias + 1 ? (mantissa ? NAN : INFINITY)
               : exponent               ? ldexp((double)((1 << mantissa_bits) + mantissa),
                                              exponent - bias - mantissa_bits)
                                        : ldexp((double)mantissa, 1 - bias - mantissa_bits);
    return u & 0x8000 ? -x : x;
}

// Rounds to nearest even by searching among the neighbours, which is slow and obviously right.
inline uint16_t narrowed(int type, float x) {
    if (x != x) return 0x7fff;
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    double v = fabs((double)x);
    int infinity = half(type) ? 0x7c00 : 0x7f80, low = 0, high = infinity;
    auto value = [&](int bits) {
        // Infinity counts as the number that would follow the greatest one.
        if (bits == infinity) return half(type) ? 65536.0 : ldexp(1.0, 128);
        uint32_t u = (uint32_t)bits; // little endian: the number is in the low half
        return widened(type, &u);
    };
    if (type == GPU_F16_FINITE && std::isfinite(x) && v > 65504) return (uint16_t)(sign | 0x7bff);
    if (v >= value(infinity)) return (uint16_t)(sign | infinity);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        (value(middle) <= v ? low : high) = middle;
    }
    double below = v - value(low), above = value(high) - v;
    return (uint16_t)(sign | (below < above || (below == above && low % 2 == 0) ? low : high));
}
inline void store(int type, void *p, float x) {
    if (type == GPU_F32) {
        memcpy(p, &x, 4);
    } else {
        uint16_t u = narrowed(type, x);
        memcpy(p, &u, 2);
    }
}

// ---- device memory

struct Buffer {
    uint64_t at = 0;
    size_t size = 0;
    explicit Buffer(size_t bytes) : at(emu_alloc(bytes)), size(bytes) { CHECK(at, "no memory"); }
    template <class T> explicit Buffer(const std::vector<T> &v) : Buffer(v.size() * sizeof(T)) {
        put(v);
    }
    Buffer(const Buffer &) = delete;
    Buffer(Buffer &&o) : at(o.at), size(o.size) { o.at = 0; }
    Buffer &operator=(Buffer &&o) {
        std::swap(at, o.at);
        std::swap(size, o.size);
        return *this;
    }
    ~Buffer() {
        char error[200];
        if (at && emu_free(at, error, sizeof error)) die(error);
    }
    template <class T> void put(const std::vector<T> &v) {
        char error[200];
        if (emu_copy_to_device(at, v.data(), v.size() * sizeof(T), error, sizeof error)) die(error);
    }
    template <class T> std::vector<T> get() const {
        std::vector<T> v(size / sizeof(T));
        char error[200];
        if (emu_copy_to_host(v.data(), at, size, error, sizeof error)) die(error);
        return v;
    }
    template <class T> T *as() const { return (T *)at; }
};

// e4m3 (OCP 8-bit floating point specification): 1.5 is 0x3c.
inline double e4m3(uint32_t code) {
    int exponent = (int)(code >> 3 & 15), mantissa = (int)(code & 7);
    double x = exponent == 15 && mantissa == 7 ? NAN
               : exponent                      ? ldexp(8 + mantissa, exponent - 10)
                                               : ldexp(mantissa, -9);
    return code & 128 ? -x : x;
}
// Rounds to the nearest code, ties to even, by search.
inline uint32_t to_e4m3(double x) {
    uint32_t best = 0;
    for (uint32_t code = 1; code < 127; code++) {
        double far = fabs(fabs(x) - e4m3(code)), before = fabs(fabs(x) - e4m3(best));
        if (far < before || (far == before && code % 2 == 0)) best = code;
    }
    return best | (std::signbit(x) ? 128 : 0);
}

// The number that a code stands for (compute/src/quant).
inline double code_value(int type, uint32_t code) {
    static const float nf4[] = {-1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f,
        -0.18477343f, -0.091050036f, 0.0f, 0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f,
        0.44070983f, 0.562617f, 0.72295684f, 1.0f};
    static const int iq4[] = {
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    return type == GPU_FP8    ? e4m3(code)
           : type == GPU_NF4  ? nf4[code]
           : type == GPU_IQ4  ? iq4[code]
           : type == GPU_INT4 ? (double)code - 8
           : type == GPU_K6   ? (double)code - 32
           : has_minima(type) ? (double)code
                              : (double)code - 128;
}

// The KV cache. In 8-bit caches, the scales of a KV head of a page follow its vectors. head_bytes
// is the size of one KV head of a page; cached reads number d of its vector `slot`.
inline bool scaled(int type) { return type == GPU_INT8 || type == GPU_FP8; }
inline size_t head_bytes(int type, uint32_t stride) {
    return scaled(type) ? 16 * stride + 64 : 16 * stride * size_of(type);
}
inline double cached(int type, const uint8_t *head, uint32_t stride, uint32_t slot, uint32_t d) {
    if (!scaled(type)) return widened(type, head + (slot * stride + d) * size_of(type));
    return code_value(type, head[slot * stride + d]) *
           widened(GPU_F32, head + 16 * stride + slot * 4);
}

// A matrix of weights [rows, cols] with stride pad32(cols) and zeros in the padding. Quantised
// matrices have the layout that quant.h describes; this code places them column by column.
struct Matrix {
    int type;
    uint32_t rows, cols, stride;
    std::vector<double> values; // [rows, cols], as stored
    // With minima: the magnitudes of what is added to make each value; empty for other types
    std::vector<double> sizes;
    Buffer device;
    static uint32_t group(int type) { return type == GPU_FP8 ? 128 : type == GPU_NF4 ? 64 : 32; }
    static bool bytes_of(int type) { return type == GPU_INT8 || type == GPU_FP8 || type == GPU_K8; }
    static bool of_two_levels(int type) { return type >= GPU_K4 && type <= GPU_K8; }
    static uint32_t scale_bytes(int type, uint32_t cols) {
        const uint32_t blocks = pad(cols, 256) / 256;
        return of_two_levels(type) ? blocks * (has_minima(type) ? 20 : 18)
                                   : blocks * 512 / group(type) * (has_minima(type) ? 2 : 1);
    }
    static uint32_t code_bytes(int type, uint32_t cols) {
        return pad(cols, 256) * (bytes_of(type) ? 2 : 1) / 2 + pad(cols, 256) / 8 * plane_of(type);
    }
    static uint32_t stride_of(int type, uint32_t cols) {
        return quantised(type) ? pad(code_bytes(type, cols) + scale_bytes(type, cols), 64) / 16
                               : pad32(cols);
    }
    Matrix(int type, uint32_t rows, uint32_t cols, Random &random, float scale)
        : type(type), rows(rows), cols(cols), stride(stride_of(type, cols)),
          values((size_t)rows * cols),
          device((size_t)rows * stride * (quantised(type) ? 16 : size_of(type))) {
        std::vector<uint8_t> bytes(device.size);
        CHECK(!of_two_levels(type) || cols % 256 == 0, "%s has whole blocks", name_of(type));
        if (has_minima(type)) sizes.resize(values.size());
        for (uint32_t i = 0; i < rows; i++) {
            uint8_t *row = &bytes[(size_t)i * stride * (quantised(type) ? 16 : size_of(type))];
            double unit = 0, minimum = 0, large[2] = {};
            for (uint32_t j = 0; j < cols; j++) {
                double &value = values[(size_t)i * cols + j];
                if (!quantised(type)) {
                    void *p = row + j * size_of(type);
                    store(type, p, random.normal() * scale);
                    value = widened(type, p);
                    continue;
                }
                uint8_t *scales = row + code_bytes(type, cols);
                if (of_two_levels(type) && j % 256 == 0)
                    for (uint32_t e = 0; e < (has_minima(type) ? 2 : 1); e++) {
                        const float unit = scale * (has_minima(type) ? 2e-3f : 3e-4f);
                        uint16_t s = narrowed(GPU_F16, random.normal() * unit);
                        memcpy(scales + cols / 16 + j / 256 * (has_minima(type) ? 4 : 2) + e * 2,
                            &s, 2);
                        large[e] = widened(GPU_F16, &s);
                    }
                if (type == GPU_UINT4 && j % 32 == 0) {
                    // Now and then the scale is zero or negative, and the zero point is no integer.
                    const uint32_t kind = random.below(9);
                    const uint16_t both[] = {
                        narrowed(GPU_F16, kind == 0 ? 0 : random.normal() * scale / 8),
                        narrowed(
                            GPU_F16, kind < 3 ? random.normal() * 20 : (float)random.below(16))};
                    memcpy(scales + j / 8, both, 4);
                    unit = widened(GPU_F16, &both[0]), minimum = unit * widened(GPU_F16, &both[1]);
                } else if (has_minima(type) && j % 32 == 0) {
                    uint8_t *small = scales + j / 16;
                    small[0] = (uint8_t)random.below(128), small[1] = (uint8_t)random.below(128);
                    unit = large[0] * small[0], minimum = large[1] * small[1];
                } else if (of_two_levels(type) && !has_minima(type) && j % 16 == 0) {
                    scales[j / 16] = (uint8_t)random.below(256);
                    unit = large[0] * (scales[j / 16] - 128.0);
                } else if (!of_two_levels(type) && !has_minima(type) &&
                           j % group(type) ==
                               0) { // Now and then the scale is zero, negative or large.
                    double greatest = type == GPU_FP8    ? 448
                                      : type == GPU_INT8 ? 127
                                      : type == GPU_INT4 ? 8
                                      : type == GPU_IQ4  ? 127
                                                         : 1;
                    uint16_t s = narrowed(GPU_F16,
                        random.below(9) == 0 ? 0 : random.normal() * scale / (float)greatest * 2);
                    memcpy(row + code_bytes(type, cols) + j / group(type) * 2, &s, 2);
                    unit = widened(GPU_F16, &s);
                }
                uint32_t code = type == GPU_INT8 || type == GPU_K8 ? random.below(256)
                                : type == GPU_FP8 ? random.below(127) + 128 * random.below(2)
                                                  : random.below(16u << plane_of(type));
                value = code_value(type, code) * unit - minimum;
                if (has_minima(type))
                    sizes[(size_t)i * cols + j] = fabs(value + minimum) + fabs(minimum);
                uint32_t piece = j % 32 / 4, e = j % 4;
                if (bytes_of(type)) {
                    row[j / 128 * 128 + piece * 16 + j % 128 / 32 * 4 + e] = (uint8_t)code;
                } else {
                    static const uint32_t nibbles[2][4] = {{0, 4, 1, 5}, {2, 6, 3, 7}};
                    uint32_t step = j % 256 / 32, nibble = nibbles[step % 2][e];
                    row[j / 256 * 128 + piece * 16 + step / 2 * 4 + nibble / 2] |=
                        (uint8_t)((code & 15) << nibble % 2 * 4);
                }
                if (const uint32_t bits = plane_of(type)) {
                    // The piece's words, the step's word, the bits of the step's two pairs.
                    const uint32_t step = j % 256 / 32,
                                   place = piece < 4 ? piece * 2 : piece * 2 - 7, each = 8 / bits,
                                   word = place * bits + step / each,
                                   at = step % each * 2 * bits + e / 2 * bits + e % 2 * 16;
                    uint8_t *plane = row + cols / 2 + j / 256 * 32 * bits + word * 4;
                    uint32_t old;
                    memcpy(&old, plane, 4);
                    old |= code >> 4 << at;
                    memcpy(plane, &old, 4);
                }
            }
        }
        device.put(bytes);
    }
    const double *row(uint32_t i) const { return &values[(size_t)i * cols]; }
    double size(uint32_t i, uint32_t j) const {
        return fabs((sizes.empty() ? values : sizes)[(size_t)i * cols + j]);
    }
};

// How `attend` of this cache is launched: threads and shared memory of a block.
inline unsigned attend_threads(int type) { return type == GPU_F32 ? 128 : 256; }
inline size_t attend_shared(int type, uint32_t stride) {
    if (type == GPU_F32) return 4128 + 96 * stride;
    const size_t tiles = 512 * pad(stride, 64) * (scaled(type) ? 1 : 2), most = GPU_ATTEND_SLOTS;
    if (stride > 128) return GPU_ATTEND_256;
    return (tiles < most ? tiles : most) + GPU_ATTEND_OTHER;
}

// Random activations [rows, stride]. The padding is NaN, because no kernel may use it.
inline std::vector<float> activations(uint32_t rows, uint32_t width, Random &random) {
    std::vector<float> x((size_t)rows * pad32(width), NAN);
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < width; j++) x[(size_t)i * pad32(width) + j] = random.normal();
    return x;
}
inline std::vector<float> vector_of(
    uint32_t n, uint32_t padded, Random &random, float around, float scale) {
    std::vector<float> x(padded, NAN);
    for (uint32_t i = 0; i < n; i++) x[i] = around + random.normal() * scale;
    return x;
}

// The permuted order (params.h). `permuted_of` is the place of a column. `unpermuted` puts rows of
// `stride` numbers back into plain order.
inline uint32_t permuted_of(uint32_t column) {
    return column / 16 * 16 + column % 4 / 2 * 8 + column % 16 / 4 * 2 + column % 2;
}
inline std::vector<float> unpermuted(const std::vector<float> &all, uint32_t stride) {
    std::vector<float> out(all);
    for (size_t i = 0; i < all.size(); i++)
        out[i] = all[i / stride * stride + permuted_of((uint32_t)(i % stride))];
    return out;
}

// ---- launches

template <class P> bool try_launch(const std::string &kernel, const P &params, unsigned gx,
    unsigned gy, unsigned gz, unsigned block, size_t shared, uint64_t seed, std::string &error) {
    unsigned grid[3] = {gx, gy, gz}, blocks[3] = {block, 1, 1};
    char text[600] = "";
    int rc = emu_launch(
        kernel.c_str(), &params, sizeof params, grid, blocks, shared, seed, text, sizeof text);
    error = text;
    return rc == 0;
}
template <class P> void launch(const std::string &kernel, const P &params, unsigned gx, unsigned gy,
    unsigned gz, unsigned block, size_t shared, uint64_t seed) {
    std::string error;
    if (!try_launch(kernel, params, gx, gy, gz, block, shared, seed, error)) die(error);
}

// `run(seed)` launches on a schedule and returns everything that the launch wrote. Checks that all
// schedules give the same bits, and returns them.
inline std::vector<uint8_t> on_schedules(
    const char *what, const std::function<std::vector<uint8_t>(uint64_t)> &run) {
    std::vector<uint8_t> first = run(1);
    for (int seed = 2; seed <= schedules(); seed++)
        CHECK(run((uint64_t)seed) == first, "%s: schedule %d gives other bits", what, seed);
    return first;
}

template <class T> std::vector<T> view_as(const std::vector<uint8_t> &bytes) {
    std::vector<T> v(bytes.size() / sizeof(T));
    if (!v.empty()) memcpy(v.data(), bytes.data(), v.size() * sizeof(T));
    return v;
}

inline bool same_bits(const float *a, const float *b, size_t n) { return memcmp(a, b, n * 4) == 0; }

// Checks that `got` is within `bound` of `want`, or that both are NaN.
inline void close(const char *what, size_t i, size_t j, double got, double want, double bound) {
    if (std::isnan(want) && std::isnan(got)) return;
    CHECK(fabs(got - want) <= bound, "%s [%zu, %zu]: %.9g, twin says %.9g, bound %.3g", what, i, j,
        got, want, bound);
}

struct Test {
    const char *name;
    void (*run)();
};

#endif
