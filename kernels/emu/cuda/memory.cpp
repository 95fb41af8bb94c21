// The stand-in driver's memory and copies.
#include "api.h"

#include <cstdlib>
#include <cstring>

API CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    ENTER_CONTEXT(cuMemAlloc_v2);
    NOT_RECORDING;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (c.used > s.settings.memory || bytes > s.settings.memory - c.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!(*at = emu_alloc(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    c.memory[*at] = bytes;
    c.used += bytes;
    return CUDA_SUCCESS;
}

API CUresult cuMemFree_v2(CUdeviceptr at) {
    ENTER_CONTEXT(cuMemFree_v2);
    NOT_RECORDING;
    if (!c.memory.count(at)) {
        s.misused("cuMemFree of what is not allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    s.idle(&c, "cuMemFree");
    char text[512];
    if (emu_free(at, text, sizeof text)) s.misused(text);
    c.used -= c.memory[at];
    c.memory.erase(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    ENTER_CONTEXT(cuMemHostAlloc);
    NOT_RECORDING;
    if (bytes == 0 || posix_memalign(at, 4096, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*at, 0xff, bytes);
    c.pinned[(const char *)*at] = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuMemFreeHost(void *at) {
    ENTER_CONTEXT(cuMemFreeHost);
    NOT_RECORDING;
    if (!c.pinned.erase((const char *)at)) {
        s.misused("cuMemFreeHost of what is not allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    s.idle(&c, "cuMemFreeHost");
    free(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER_CONTEXT(cuMemGetInfo_v2);
    *total = s.settings.memory;
    *free = c.used > *total ? 0 : *total - c.used;
    return CUDA_SUCCESS;
}

// ---- copies

static CUresult copied(int failed, const char *text) {
    State &s = state();
    s.copies++;
    if (!failed) return CUDA_SUCCESS;
    s.misused(text);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes) {
    state().sent += bytes;
    char text[512];
    return copied(emu_copy_to_device(to, from, bytes, text, sizeof text), text);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    ENTER_CONTEXT(cuMemcpyHtoDAsync_v2);
    ALIVE(streams, stream);
    if (!c.on_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (c.is_pinned(from, bytes)) {
        s.enqueue(stream, [=] { return to_device(to, from, bytes); });
        return CUDA_SUCCESS;
    }
    NOT_RECORDING;
    std::vector<char> now((const char *)from, (const char *)from + bytes);
    s.enqueue(stream, [to, now] { return to_device(to, now.data(), now.size()); });
    return CUDA_SUCCESS;
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    ENTER_CONTEXT(cuMemcpyDtoHAsync_v2);
    ALIVE(streams, stream);
    if (!c.on_device(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    s.enqueue(stream, [=] {
        char text[512];
        return copied(emu_copy_to_host(to, from, bytes, text, sizeof text), text);
    });
    return c.is_pinned(to, bytes) ? CUDA_SUCCESS : s.finish(stream);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    ENTER_CONTEXT(cuMemcpy2DAsync_v2);
    ALIVE(streams, stream);
    const CUDA_MEMCPY2D m = *copy;
    const size_t limit = (size_t)s.settings.pitch;
    if (m.WidthInBytes > m.srcPitch || m.WidthInBytes > m.dstPitch || m.srcPitch > limit ||
        m.dstPitch > limit)
        return CUDA_ERROR_INVALID_VALUE;
    if (m.srcXInBytes || m.srcY || m.dstXInBytes || m.dstY ||
        m.dstMemoryType != CU_MEMORYTYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (m.WidthInBytes == 0 || m.Height == 0) return CUDA_SUCCESS;
    const size_t from_bytes = (m.Height - 1) * m.srcPitch + m.WidthInBytes;
    if (!c.on_device(m.dstDevice, (m.Height - 1) * m.dstPitch + m.WidthInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    const bool from_host = m.srcMemoryType == CU_MEMORYTYPE_HOST;
    if (from_host ? !c.is_pinned(m.srcHost, from_bytes) : !c.on_device(m.srcDevice, from_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    s.enqueue(stream, [m, from_host] {
        for (size_t row = 0; row < m.Height; row++) {
            CUdeviceptr to = m.dstDevice + row * m.dstPitch, from = m.srcDevice + row * m.srcPitch;
            char text[512];
            CUresult r =
                from_host
                    ? to_device(to, (const char *)m.srcHost + row * m.srcPitch, m.WidthInBytes)
                    : copied(emu_copy_on_device(to, from, m.WidthInBytes, text, sizeof text), text);
            if (r) return r;
        }
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream) {
    ENTER_CONTEXT(cuMemsetD8Async);
    ALIVE(streams, stream);
    if (!c.on_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    s.enqueue(stream, [=] {
        char text[512];
        return copied(emu_fill(to, byte, bytes, text, sizeof text), text);
    });
    return CUDA_SUCCESS;
}
