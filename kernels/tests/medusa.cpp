// Compares what Medusa heads need beside the products with scalar twins in float64.
#include "harness.h"

namespace {

void silu_add(uint32_t rows, uint32_t width) {
    const uint32_t stride = pad32(width);
    Random random{width};
    std::vector<float> h(rows * stride, -7), t = h;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = 0; i < width; i++) {
            h[row * stride + i] = random.normal();
            t[row * stride + i] = random.normal() * (i % 5 ? 1.0f : 60.0f);
        }
    if (width > 4) t[1] = NAN, t[2] = INFINITY, t[3] = -200, h[4] = -INFINITY;
    auto got = on_schedules("silu_add", [&](uint64_t seed) {
        Buffer out(std::vector<float>(rows * stride, 9)), hd(h), td(t);
        const SiluAddParams p = {
            out.as<float>(), hd.as<float>(), td.as<float>(), rows, width, stride, 0};
        launch("silu_add", p, rows, 1, 1, 256, 0, seed);
        auto bytes = out.get<uint8_t>(), left = td.get<uint8_t>();
        bytes.insert(bytes.end(), left.begin(), left.end());
        return bytes;
    });
    std::vector<float> all(got.size() / 4);
    memcpy(all.data(), got.data(), got.size());
    const float *out = all.data(), *left = out + rows * stride;
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = 0; i < stride; i++) {
            const uint32_t at = row * stride + i;
            if (i >= width) {
                CHECK(out[at] == 9 && left[at] == -7, "silu_add writes to the padding of row %u",
                    row);
                continue;
            }
            const double x = t[at], want = h[at] + x / (1 + exp(-x));
            CHECK(left[at] == 0, "silu_add leaves %g", left[at]);
            if (std::isnan(want) || std::isinf(want))
                CHECK(std::isnan(want) ? std::isnan(out[at]) : out[at] == want,
                    "silu_add: %g, not %g", out[at], want);
            else
                close("silu_add", row, i, out[at], want, 1e-6 * (fabs(x) + fabs(want)) + 1e-7);
        }
}

void test_silu_add() {
    for (uint32_t width : {1u, 31u, 32u, 33u, 300u})
        for (uint32_t rows : {1u, 5u}) silu_add(rows, width);
}

// The norm that a vocabulary matrix without one is given (src/backend/gpu/medusa.rs).
void test_no_norm() {
    const uint32_t rows = 3, width = 40, stride = pad32(width);
    Random random{4};
    std::vector<float> x(rows * stride);
    for (float &v : x) v = random.normal() * 30;
    x[0] = 0, x[1] = 1e-20f, x[2] = 1e7f;
    Buffer xd(x), out(rows * stride * 4), norm(std::vector<float>(stride, 0x1p40f)),
        list(std::vector<int32_t>{0, 1, 2});
    PrepareParams p = {};
    p.out = out.as<void>(), p.x = xd.as<float>(), p.norm = norm.as<float>();
    p.rows = list.as<int32_t>(), p.n_rows = rows, p.width = width;
    p.x_stride = p.out_stride = stride, p.eps = 0x1p80f, p.out_type = GPU_F32;
    launch("prepare_f32", p, rows, 1, 1, 256, 32, 1);
    auto got = out.get<float>();
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t i = 0; i < width; i++) {
            const double want = x[row * stride + i];
            close("no norm", row, i, got[row * stride + i], want, fabs(want) * 5e-7);
        }
}

} // namespace

extern const Test MEDUSA[] = {
    {"silu_add", test_silu_add},
    {"no_norm", test_no_norm},
    {nullptr, nullptr},
};
