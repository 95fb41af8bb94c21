// Tests the emulator itself: its arithmetic, and that it reports the errors of kernels. This file
// takes the place of main.cpp and emu/table.cpp.
#include "machine.h"

#include "../emu/table.h"
#include "harness.h"

#include <thread>

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
#include "../emu/device.h"

EMU_TABLE(MACHINE_KERNELS)

namespace {

void conversions() {
    for (uint32_t u = 0; u < 65536; u++) {
        uint16_t bits = (uint16_t)u;
        double h = widened(GPU_F16, &bits), b = widened(GPU_BF16, &bits);
        float fh = to_float(f16{bits}), fb = to_float(bf16{bits});
        CHECK((std::isnan(h) && std::isnan(fh)) || h == fh, "f16 %04x is %g, not %g", u, fh, h);
        CHECK((std::isnan(b) && std::isnan(fb)) || b == fb, "bf16 %04x is %g, not %g", u, fb, b);
    }
    Random random{3};
    for (int i = 0; i < 300000; i++) {
        // The random numbers have every exponent, and often lie halfway between two results.
        uint32_t u = random.bits() << 1 | random.below(2);
        if (i % 3 == 0) u = (u & 0xffffe000) | 0x1000;
        if (i % 3 == 1) u = (u & 0x807fffff) | (100 + random.below(45)) << 23;
        float x;
        memcpy(&x, &u, 4);
        f16 h;
        bf16 b;
        from_float(h, x);
        from_float(b, x);
        CHECK(h.bits == narrowed(GPU_F16, x), "f16 of %08x is %04x, not %04x", u, h.bits,
            narrowed(GPU_F16, x));
        CHECK(b.bits == narrowed(GPU_BF16, x), "bf16 of %08x is %04x, not %04x", u, b.bits,
            narrowed(GPU_BF16, x));
    }
}

void run_lanes() {
    Buffer out(64 * 8 * 4);
    launch("lanes", MachineParams{out.as<float>(), nullptr, 0, 0}, 1, 1, 1, 64, 0, 3);
    auto got = out.get<float>();
    for (uint32_t t = 0; t < 64; t++) {
        uint32_t lane = t % 32, ballot = 0;
        float all = 0, four = 0, max = 0;
        for (uint32_t i = 0; i < 32; i++) {
            float v = (float)(i * i);
            all += v;
            if (i / 4 == lane / 4) four += v;
            if (i / 8 == lane / 8) max = fmaxf(max, v);
            ballot |= (uint32_t)(i % 3 == 0) << i;
        }
        const float want[] = {
            (float)((lane ^ 5) * (lane ^ 5)), (float)(ballot & 0xffff), all, four, max};
        for (int i = 0; i < 5; i++)
            CHECK(got[t * 8 + i] == want[i], "lanes: thread %u number %d is %g, not %g", t, i,
                got[t * 8 + i], want[i]);
    }
}

size_t mappings() {
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file, "no /proc/self/maps");
    size_t lines = 0;
    for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

// Linux allows a process 65,530 mappings, and tests of ranks have tens of thousands of lanes at a
// time. The stacks of the first launch's 64 lanes must be far fewer mappings than lanes.
void run_stacks() {
    const size_t before = mappings();
    run_lanes();
    const size_t more = mappings() - before;
    CHECK(more < 32, "64 lanes took %zu mappings", more);
}

// Several threads launch at the same time; some of the launches fail.
void run_threads() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([i] {
            for (int j = 0; j < 10; j++) {
                run_lanes();
                std::string error;
                Buffer out(64 * 4);
                MachineParams p = {out.as<float>(), nullptr, (uint32_t)(i + j) % 4, 0};
                CHECK(!try_launch("wrong", p, 1, 1, 1, 64, 4096, (uint64_t)j, error),
                    "a wrong kernel passed on a thread");
            }
        });
    for (std::thread &t : threads) t.join();
}

void run_tensor() {
    for (uint32_t type : {GPU_BF16, GPU_F16}) {
        Random random{5};
        std::vector<uint16_t> in;
        for (int i = 0; i < 512; i++) in.push_back(narrowed((int)type, random.normal()));
        Buffer ind(in), out(512 * 4);
        launch("tensor", MachineParams{out.as<float>(), ind.as<uint16_t>(), type == GPU_F16, 0}, 1,
            1, 1, 32, 3072, 3);
        auto got = out.get<float>();
        for (uint32_t m = 0; m < 16; m++)
            for (uint32_t n = 0; n < 16; n++) {
                double sum = 0, size = 0;
                for (uint32_t k = 0; k < 16; k++) {
                    double x = widened((int)type, &in[m * 16 + k]) *
                               widened((int)type, &in[256 + n * 16 + k]);
                    sum += x, size += fabs(x);
                }
                close("mma", m, n, got[m * 16 + n], sum, size * 1e-6);
                CHECK(got[m * 16 + n] == got[256 + m * 16 + n],
                    "ldmatrix_trans differs at [%u, %u]", m, n);
            }
    }
}

// Runs a warpgroup product; `which` picks an error that the emulator must report. Returns its
// message; empty if it reported nothing.
std::string warpgroup(uint32_t which, uint32_t type, uint64_t seed) {
    Random random{9};
    std::vector<uint16_t> in;
    for (int i = 0; i < 320 * 16; i++) in.push_back(narrowed((int)type, random.normal()));
    Buffer ind(in), out(64 * 256 * 4);
    std::string error;
    if (!try_launch("warpgroup",
            MachineParams{out.as<float>(), ind.as<uint16_t>(), which, type == GPU_F16}, 1, 1, 1,
            128, 320 * 128 + 8, seed, error))
        return error;
    auto got = out.get<float>();
    for (uint32_t m = 0; m < 64; m++)
        for (uint32_t n = 0; n < 256; n++) {
            // Before the product, each sum is the number of its register.
            double sum = n / 8 * 4 + m / 8 % 2 * 2 + n % 2, size = sum;
            for (uint32_t k = 0; k < 16; k++) {
                double x = widened((int)type, &in[m * 16 + k]) *
                           widened((int)type, &in[(64 + n) * 16 + k]);
                sum += x, size += fabs(x);
            }
            if (!(fabs(got[m * 256 + n] - sum) <= size * 1e-6)) return "wrong result";
        }
    return "";
}

void run_warpgroup() {
    const char *const refused[] = {"", "no async_fence has made visible", "without wgmma_begin",
        "disagree about a product", "were written while", "exited with products under way",
        "wrong result", "nobody has made", "no thread can go on", "no thread can go on",
        "more arrivals", "no async_fence has made visible"};
    for (uint32_t type : {GPU_BF16, GPU_F16})
        for (uint32_t which = 0; which < 12; which++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                const std::string error = warpgroup(which, type, seed);
                CHECK(which ? error.find(refused[which]) != std::string::npos : error.empty(),
                    "warpgroup %u: '%s', not '%s'", which, error.c_str(), refused[which]);
            }
    Buffer matrix(64 * 256);
    TensorMap map;
    char words[200];
    auto taken = [&](uint64_t at, uint64_t rows, uint64_t pitch) {
        return !emu_tensor_map(&map, at, 100, rows, pitch, 64, 128, words, sizeof words);
    };
    CHECK(taken(matrix.at, 64, 256), "%s", words);
    CHECK(!taken(matrix.at, 65, 256), "a map of more than the buffer was taken");
    CHECK(!taken(matrix.at + 8, 60, 256), "a map that is not aligned was taken");
    CHECK(!taken(matrix.at, 60, 200), "rows that are not aligned were taken");
}

// The same for products with operand A in registers, with a transposed operand, and with sums that
// start from zero while other products are in flight.
std::string fragments(uint32_t which, uint32_t type, uint64_t seed) {
    const uint32_t A = 0, B = 64 * 16, X = B + 16 * 128, Y = X + 64 * 64;
    Random random{10};
    std::vector<uint16_t> in;
    for (uint32_t i = 0; i < Y + 128 * 64; i++) in.push_back(narrowed((int)type, random.normal()));
    Buffer ind(in), out(2 * 64 * 128 * 4);
    std::string error;
    if (!try_launch("fragments",
            MachineParams{out.as<float>(), ind.as<uint16_t>(), which, type == GPU_F16}, 1, 1, 1,
            128, 4096 + 192 * 128, seed, error))
        return error;
    auto got = out.get<float>();
    auto in_at = [&](uint32_t i) { return widened((int)type, &in[i]); };
    for (uint32_t m = 0; m < 64; m++)
        for (uint32_t n = 0; n < 128; n++) {
            double sum = n / 8 * 4 + m / 8 % 2 * 2 + n % 2, size = sum, other = 0, other_size = 0;
            for (uint32_t k = 0; k < 16; k++) {
                double x = in_at(A + m * 16 + k) * in_at(B + k * 128 + n);
                sum += x, size += fabs(x);
            }
            for (uint32_t k = 0; k < 64; k++) {
                double x = in_at(X + m * 64 + k) * in_at(Y + n * 64 + k);
                other += x, other_size += fabs(x);
            }
            const float *d = &got[m * 128 + n];
            if (!(fabs(d[0] - sum) <= size * 1e-6) ||
                !(fabs(d[64 * 128] - other) <= other_size * 2e-6))
                return "wrong result";
        }
    return "";
}

void run_fragments() {
    const char *const refused[] = {"", "wrong result", "registers were written while",
        "wrong result", "sums were written while"};
    for (uint32_t type : {GPU_BF16, GPU_F16})
        for (uint32_t which = 0; which < 5; which++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                const std::string error = fragments(which, type, seed);
                CHECK(which ? error.find(refused[which]) != std::string::npos : error.empty(),
                    "fragments %u: '%s', not '%s'", which, error.c_str(), refused[which]);
            }
}

void run_named() {
    for (uint64_t seed = 0; seed < 20; seed++) {
        Buffer out(32 * 4);
        launch("named", MachineParams{out.as<float>(), nullptr, 0, 0}, 1, 1, 1, 96, 128, seed);
        auto got = out.get<float>();
        for (uint32_t i = 0; i < 32; i++)
            CHECK(got[i] == (float)i + 1, "named barrier: %u is %g", i, got[i]);
    }
}

// Runs a kernel with error number `which`. Returns the emulator's message; empty if it reported
// nothing.
std::string wrong(uint32_t which, uint64_t seed) {
    // This buffer is leaked: the test writes outside of it, and freeing it would report that again.
    std::vector<uint16_t> in(64, 0);
    Buffer ind(in), *out = new Buffer(64 * 4);
    std::string error;
    uint32_t n = which == 4 ? 4096 / 4 - 16 : 48;
    emu_strict(which == 11);
    bool good = try_launch("wrong", MachineParams{out->as<float>(), ind.as<uint16_t>(), which, n},
        1, 1, 1, 64, 4096, seed, error);
    emu_strict(0);
    if (which == 10 && good) {
        auto got = out->get<float>();
        for (uint32_t t = 0; t < 64; t++)
            if (got[t] != (float)(t ^ 31)) error = "wrong result";
    }
    char text[200];
    emu_free(out->at, text, sizeof text);
    out->at = 0;
    delete out;
    return error;
}

void refusals(bool guards) {
    const char *const want[] = {"exited", "divergent barrier", "exited", "no thread can go on",
        "shared memory", "outside a buffer", "under way", "multiple of 16", "bank conflict",
        "disagree", "wrong result", "by .nc what this launch", "disagree about an argument"};
    for (uint32_t which = 0; which < 13; which++) {
        // A sanitizer would report these errors and abort.
        if (!guards && (which == 4 || which == 5 || which >= 10)) continue;
        for (uint64_t seed = 0; seed < 4; seed++) {
            std::string error = wrong(which, seed);
            CHECK(error.find(want[which]) != std::string::npos,
                "wrong %u on schedule %d: '%s', not '%s'", which, (int)seed, error.c_str(),
                want[which]);
        }
    }
    std::string error;
    MachineParams p = {};
    CHECK(!try_launch("none", p, 1, 1, 1, 64, 0, 1, error) && error == "no kernel is called none",
        "%s", error.c_str());
    CHECK(!try_launch("wrong", p, 1, 1, 1, 32, 0, 1, error), "another block was taken");
    CHECK(!try_launch("wrong", p, 1, 70000, 1, 64, 0, 1, error), "a grid no GPU takes was taken");
    CHECK(!try_launch("wrong", p, 1, 1, 1, 64, 200000, 1, error),
        "more shared memory than there is was taken");
    CHECK(
        !try_launch("wrong", 1, 1, 1, 1, 64, 0, 1, error), "another size of parameters was taken");
    char text[200];
    Buffer b(16);
    CHECK(emu_copy_to_device(b.at + 8, text, 9, text, sizeof text),
        "a copy over the end of a buffer was taken");
    CHECK(emu_free(b.at + 8, text, sizeof text), "freed in the middle of a buffer");
}

} // namespace

int main() {
    const bool sanitized = __asan_init || __tsan_init;
    if (!sanitized) run_stacks(); // sanitizers map memory themselves
    conversions();
    run_lanes();
    run_threads();
    run_tensor();
    run_named();
    run_warpgroup();
    run_fragments();
    refusals(!sanitized);
    printf("the emulated machine computes and refuses what it must\n");
    return 0;
}
