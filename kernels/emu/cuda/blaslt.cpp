// A stand-in for libcublasLt: the functions that src/backend/gpu/cuda/blaslt.rs looks up. It is in
// the same library file as the stand-in driver because it works in that driver's streams. Products
// are plain loops. Calls that differ from the calls in blaslt.rs are refused. With EMU_CUDA_H and
// EMU_BLASLT_H, NVIDIA's headers check signatures and numbers. nvcc comes without cublasLt.h; torch
// has it.
#include "state.h"

#include <cstring>

#ifdef EMU_BLASLT_H
#include <cublasLt.h>
static_assert(CUBLAS_COMPUTE_32F == 68 && CUDA_R_32F == 0 && CUDA_R_16F == 2 && CUDA_R_16BF == 14 &&
              CUBLAS_OP_T == 1);
static_assert(CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLASLT_MATRIX_LAYOUT_COLS == 3 &&
              CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == 1);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES == 5 &&
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == 8);
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96 &&
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize) == 64 &&
              offsetof(cublasLtMatmulHeuristicResult_t, state) == 72);
#else
typedef unsigned cublasStatus_t;
typedef int cublasComputeType_t, cudaDataType_t, cudaDataType, cublasLtMatmulDescAttributes_t,
    cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t;
typedef struct Opaque *cublasLtHandle_t, *cublasLtMatmulDesc_t, *cublasLtMatrixLayout_t,
    *cublasLtMatmulPreference_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;
typedef CUstream cudaStream_t;
#endif
#define NEW(type, made) reinterpret_cast<type>(made)

#define LT extern "C" __attribute__((visibility("default")))
// CUBLAS_STATUS_INVALID_VALUE.
#define REFUSE return (cublasStatus_t)7
#define ENTER(function)                                                                            \
    State &s = state();                                                                            \
    std::lock_guard<std::mutex> hold(s.lock);                                                      \
    if (CUresult failed = s.enter(#function)) return (cublasStatus_t)failed

namespace {
struct Layout {
    int type;
    uint64_t rows, cols;
    int64_t stride;
};
struct Desc {
    int transposed = 0;
};
int alive; // number of handles
} // namespace

LT size_t cublasLtGetVersion() { return (size_t)state().settings.blaslt; }
LT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    ENTER(cublasLtCreate);
    *handle = NEW(cublasLtHandle_t, &alive);
    alive++;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
    ENTER(cublasLtDestroy);
    if (--alive) s.misused("cublasLtDestroy while descriptors are alive");
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    ENTER(cublasLtMatmulDescCreate);
    if ((int)compute != 68 || (int)scale != 0) REFUSE;
    *desc = NEW(cublasLtMatmulDesc_t, new Desc);
    alive++;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
    ENTER(cublasLtMatmulDescDestroy);
    delete (Desc *)desc;
    alive--;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
    cublasLtMatmulDescAttributes_t which, const void *value, size_t bytes) {
    ENTER(cublasLtMatmulDescSetAttribute);
    if ((int)which != 3 || bytes != 4) REFUSE;
    memcpy(&((Desc *)desc)->transposed, value, 4);
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *to, cudaDataType type, uint64_t rows, uint64_t cols, int64_t stride) {
    ENTER(cublasLtMatrixLayoutCreate);
    if (stride < (int64_t)rows) REFUSE;
    *to = NEW(cublasLtMatrixLayout_t, (new Layout{(int)type, rows, cols, stride}));
    alive++;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
    ENTER(cublasLtMatrixLayoutDestroy);
    delete (Layout *)layout;
    alive--;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
    cublasLtMatrixLayoutAttribute_t which, const void *value, size_t bytes) {
    ENTER(cublasLtMatrixLayoutSetAttribute);
    if ((int)which != 3 || bytes != 8) REFUSE;
    memcpy(&((Layout *)layout)->cols, value, 8);
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *to) {
    ENTER(cublasLtMatmulPreferenceCreate);
    *to = NEW(cublasLtMatmulPreference_t, new int);
    alive++;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t what) {
    ENTER(cublasLtMatmulPreferenceDestroy);
    delete (int *)what;
    alive--;
    return (cublasStatus_t)0;
}
LT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t which, const void *, size_t bytes) {
    ENTER(cublasLtMatmulPreferenceSetAttribute);
    if (bytes != ((int)which == 1 ? 8u : 4u)) REFUSE;
    return (cublasStatus_t)0;
}

// Whether these layouts belong to a product in which a is transposed.
static bool fit(const Desc *desc, const Layout *a, const Layout *b, const Layout *c) {
    return desc->transposed == 1 && a->rows == b->rows && a->cols == c->rows &&
           b->cols == c->cols && a->type == b->type && (a->type == 2 || a->type == 14) &&
           c->type == 0;
}

LT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t, int most,
    cublasLtMatmulHeuristicResult_t *results, int *n) {
    ENTER(cublasLtMatmulAlgoGetHeuristic);
    s.heuristics++;
    if (most < 1 || c != d || !fit((Desc *)desc, (Layout *)a, (Layout *)b, (Layout *)c)) REFUSE;
    memset(results, 0, sizeof *results);
    // The algorithm is for this shape only.
    results->algo.data[0] = ((Layout *)a)->rows << 32 | ((Layout *)a)->cols;
    *n = 1;
    return (cublasStatus_t)0;
}

static float value(const std::vector<char> &bytes, size_t at, int type) {
    uint16_t half;
    memcpy(&half, &bytes[2 * at], 2);
    uint32_t bits = (uint32_t)half << 16;
    float v;
    if (type == 2) {
        // Moves the bits of the f16 to their places in a float. Multiplying by 2^112 corrects the
        // exponent, also of subnormals.
        bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13;
        memcpy(&v, &bits, 4);
        return v * 5.192296858534828e33f;
    }
    memcpy(&v, &bits, 4);
    return v;
}

LT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
    const void *a, cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
    const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
    cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
    size_t bytes, cudaStream_t stream) {
    ENTER(cublasLtMatmul);
    const Layout la = *(Layout *)a_layout, lb = *(Layout *)b_layout, lc = *(Layout *)c_layout;
    const uint64_t chosen = la.rows << 32 | la.cols;
    if (c != d || c_layout != d_layout || !fit((Desc *)desc, &la, &lb, &lc) ||
        algo->data[0] != chosen)
        REFUSE;
    const float before = *(const float *)beta;
    if (*(const float *)alpha != 1 || (before != 0 && before != 1) ||
        !((CUstream)stream)->context->on_device((CUdeviceptr)workspace, bytes))
        REFUSE;
    const uint64_t at[] = {(uint64_t)a, (uint64_t)b, (uint64_t)c};
    s.enqueue((CUstream)stream, [=] {
        const size_t k = la.rows, m = la.cols, n = lb.cols;
        auto extent = [](const Layout &l, size_t size) {
            return ((l.cols - 1) * (size_t)l.stride + l.rows) * size;
        };
        std::vector<char> w(extent(la, 2)), y(extent(lb, 2));
        std::vector<float> x(m);
        char text[512];
        State &now = state();
        now.products++;
        int failed = emu_copy_to_host(w.data(), at[0], w.size(), text, sizeof text) ||
                     emu_copy_to_host(y.data(), at[1], y.size(), text, sizeof text);
        for (size_t j = 0; j < n && !failed; j++) {
            const uint64_t row = at[2] + 4 * j * (size_t)lc.stride;
            failed = emu_copy_to_host(x.data(), row, 4 * m, text, sizeof text);
            for (size_t i = 0; i < m && !failed; i++) {
                float sum = 0;
                for (size_t e = 0; e < k; e++)
                    sum += value(w, i * (size_t)la.stride + e, la.type) *
                           value(y, j * (size_t)lb.stride + e, lb.type);
                x[i] = before == 0 ? sum : x[i] + sum; // x may hold NaN before
            }
            failed = failed || emu_copy_to_device(row, x.data(), 4 * m, text, sizeof text);
        }
        if (!failed) return CUDA_SUCCESS;
        now.misused(text);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    });
    return (cublasStatus_t)0;
}
