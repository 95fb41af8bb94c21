// A stand-in driver for the tests: libcuda.so.1 with the functions that src/backend/gpu/driver.rs
// looks up. Its GPU is the emulator. The library under test cannot tell it from a real driver, so
// all of src/backend/gpu/cuda runs in ordinary tests.
//
// It is as asynchronous as the reference allows a driver to be. Launches and copies wait in their
// stream until somebody waits for them or (seed=...) run at random before that. A copy accesses
// page-locked memory when it runs, other memory at once. It reports memory that is freed while
// pending work may use it, objects that are not alive, and contexts that are left current.
// cuModuleLoadDataEx says what images contain.
#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
#define ENTER(function)                                                                            \
    State &s = state();                                                                            \
    std::lock_guard<std::mutex> hold(s.lock);                                                      \
    if (CUresult failed = s.enter(#function)) return failed;                                       \
    if (!s.started) return CUDA_ERROR_NOT_INITIALIZED
// For functions that need a current context. An earlier error is returned first.
#define ENTER_CONTEXT(function)                                                                    \
    ENTER(function);                                                                               \
    if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;                                         \
    if (s.context.error) return s.context.error
// For functions that may not be called while a stream records.
#define NOT_RECORDING                                                                              \
    if (s.spoils(__func__)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
#define ALIVE(set, handle)                                                                         \
    if (!s.set.count(handle)) {                                                                    \
        s.misused(std::string(__func__) + " with a handle that is not alive");                     \
        return CUDA_ERROR_INVALID_HANDLE;                                                          \
    }

static thread_local std::vector<CUcontext> pushed;

API CUresult cuInit(unsigned) {
    State &s = state();
    std::lock_guard<std::mutex> hold(s.lock);
    if (CUresult failed = s.enter("cuInit")) return failed;
    if (s.settings.devices == 0) return CUDA_ERROR_NO_DEVICE;
    s.started = true;
    return CUDA_SUCCESS;
}

API CUresult cuGetErrorName(CUresult code, const char **name) {
#define NAME(x)                                                                                    \
    {                                                                                              \
        x, #x                                                                                      \
    }
    static const std::map<unsigned, const char *> names = {
        NAME(CUDA_ERROR_INVALID_VALUE),
        NAME(CUDA_ERROR_OUT_OF_MEMORY),
        NAME(CUDA_ERROR_NO_DEVICE),
        NAME(CUDA_ERROR_INVALID_IMAGE),
        NAME(CUDA_ERROR_INVALID_CONTEXT),
        NAME(CUDA_ERROR_INVALID_HANDLE),
        NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
        NAME(CUDA_ERROR_LAUNCH_FAILED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    };
    auto at = names.find((unsigned)code);
    *name = at == names.end() ? nullptr : at->second;
    return at == names.end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// ---- devices and contexts

API CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion);
    *version = s.settings.driver;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount);
    *count = s.settings.devices;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int index) {
    ENTER(cuDeviceGet);
    if (index < 0 || index >= s.settings.devices) return CUDA_ERROR_INVALID_DEVICE;
    *device = index;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice) {
    ENTER(cuDeviceGetAttribute);
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
        *value = s.settings.pitch;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = 132;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = s.settings.arch / 10;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = s.settings.arch % 10;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = s.settings.shared;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    ENTER(cuDeviceGetName);
    snprintf(name, (size_t)length, "Emulated GPU %d", device);
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice) {
    ENTER(cuDevicePrimaryCtxRetain);
    s.context.retained++;
    *context = &s.context;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    if (s.context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--s.context.retained == 0) s.release();
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(cuCtxPushCurrent_v2);
    if (context != &s.context || s.context.retained == 0) {
        s.misused("cuCtxPushCurrent of a context that is not retained");
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    pushed.push_back(context);
    s.current++;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER(cuCtxPopCurrent_v2);
    if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = pushed.back();
    pushed.pop_back();
    s.current--;
    return CUDA_SUCCESS;
}

// ---- streams and events

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER_CONTEXT(cuStreamCreate);
    if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    s.streams.insert(*stream = new CUstream_st);
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER_CONTEXT(cuStreamDestroy_v2);
    ALIVE(streams, stream);
    if (!stream->queue.empty()) s.misused("cuStreamDestroy while work is under way");
    s.streams.erase(stream);
    delete stream;
    return CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream stream) {
    ENTER_CONTEXT(cuStreamSynchronize);
    ALIVE(streams, stream);
    return s.finish(stream);
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER_CONTEXT(cuEventCreate);
    NOT_RECORDING;
    if (flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    s.events.insert(*event = new CUevent_st);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER_CONTEXT(cuEventDestroy_v2);
    ALIVE(events, event);
    if (event->done < event->recorded)
        s.misused("cuEventDestroy of one that somebody may wait for");
    s.events.erase(event);
    delete event;
    return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER_CONTEXT(cuEventRecord);
    ALIVE(events, event);
    ALIVE(streams, stream);
    if (stream->recording) {
        // A real driver allows this, but then nobody can wait for the event.
        s.misused("cuEventRecord in a stream that records");
        stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    uint64_t time = ++event->recorded;
    s.enqueue(stream, [event, time] {
        event->done = time;
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

API CUresult cuEventSynchronize(CUevent event) {
    ENTER_CONTEXT(cuEventSynchronize);
    NOT_RECORDING;
    ALIVE(events, event);
    if (event->done == event->recorded) return s.context.error;
    for (CUstream stream : s.streams) {
        while (event->done < event->recorded && !stream->queue.empty()) s.run(stream, 1);
        s.ahead += !stream->queue.empty(); // work that the waiting thread did not wait for
    }
    return s.context.error;
}

// ---- memory

API CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) {
    ENTER_CONTEXT(cuMemAlloc_v2);
    NOT_RECORDING;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (s.used > s.settings.memory || bytes > s.settings.memory - s.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!(*at = emu_alloc(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    s.memory[*at] = bytes;
    s.used += bytes;
    return CUDA_SUCCESS;
}

API CUresult cuMemFree_v2(CUdeviceptr at) {
    ENTER_CONTEXT(cuMemFree_v2);
    NOT_RECORDING;
    if (!s.memory.count(at)) {
        s.misused("cuMemFree of what is not allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    s.idle("cuMemFree");
    char text[512];
    if (emu_free(at, text, sizeof text)) s.misused(text);
    s.used -= s.memory[at];
    s.memory.erase(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    ENTER_CONTEXT(cuMemHostAlloc);
    NOT_RECORDING;
    if (bytes == 0 || posix_memalign(at, 4096, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*at, 0xff, bytes);
    s.pinned[(const char *)*at] = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuMemFreeHost(void *at) {
    ENTER_CONTEXT(cuMemFreeHost);
    NOT_RECORDING;
    if (!s.pinned.erase((const char *)at)) {
        s.misused("cuMemFreeHost of what is not allocated");
        return CUDA_ERROR_INVALID_VALUE;
    }
    s.idle("cuMemFreeHost");
    free(at);
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER_CONTEXT(cuMemGetInfo_v2);
    *total = s.settings.memory;
    *free = s.used > *total ? 0 : *total - s.used;
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
    char text[512];
    return copied(emu_copy_to_device(to, from, bytes, text, sizeof text), text);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    ENTER_CONTEXT(cuMemcpyHtoDAsync_v2);
    ALIVE(streams, stream);
    if (!s.on_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (s.is_pinned(from, bytes)) {
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
    if (!s.on_device(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    s.enqueue(stream, [=] {
        char text[512];
        return copied(emu_copy_to_host(to, from, bytes, text, sizeof text), text);
    });
    return s.is_pinned(to, bytes) ? CUDA_SUCCESS : s.finish(stream);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    ENTER_CONTEXT(cuMemcpy2DAsync_v2);
    ALIVE(streams, stream);
    const CUDA_MEMCPY2D c = *copy;
    const size_t limit = (size_t)s.settings.pitch;
    if (c.WidthInBytes > c.srcPitch || c.WidthInBytes > c.dstPitch || c.srcPitch > limit ||
        c.dstPitch > limit)
        return CUDA_ERROR_INVALID_VALUE;
    if (c.srcXInBytes || c.srcY || c.dstXInBytes || c.dstY ||
        c.dstMemoryType != CU_MEMORYTYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (c.WidthInBytes == 0 || c.Height == 0) return CUDA_SUCCESS;
    const size_t from_bytes = (c.Height - 1) * c.srcPitch + c.WidthInBytes;
    if (!s.on_device(c.dstDevice, (c.Height - 1) * c.dstPitch + c.WidthInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    const bool from_host = c.srcMemoryType == CU_MEMORYTYPE_HOST;
    if (from_host ? !s.is_pinned(c.srcHost, from_bytes) : !s.on_device(c.srcDevice, from_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    s.enqueue(stream, [c, from_host] {
        for (size_t row = 0; row < c.Height; row++) {
            CUdeviceptr to = c.dstDevice + row * c.dstPitch, from = c.srcDevice + row * c.srcPitch;
            char text[512];
            CUresult r =
                from_host
                    ? to_device(to, (const char *)c.srcHost + row * c.srcPitch, c.WidthInBytes)
                    : copied(emu_copy_on_device(to, from, c.WidthInBytes, text, sizeof text), text);
            if (r) return r;
        }
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream) {
    ENTER_CONTEXT(cuMemsetD8Async);
    ALIVE(streams, stream);
    if (!s.on_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    s.enqueue(stream, [=] {
        char text[512];
        return copied(emu_fill(to, byte, bytes, text, sizeof text), text);
    });
    return CUDA_SUCCESS;
}

// ---- kernels

// Takes a fatbin with its header. Real ones cannot run here, so they have every kernel of the
// emulator. The tests' own fatbins hold "emu\n" and names of kernels, and have these kernels.
API CUresult cuModuleLoadDataEx(
    CUmodule *module, const void *image, unsigned n, CUjit_option *options, void **values) {
    ENTER_CONTEXT(cuModuleLoadDataEx);
    NOT_RECORDING;
    struct Header {
        uint32_t magic;
        uint16_t version, header;
        uint64_t bytes;
    } header;
    memcpy(&header, image, sizeof header);
    if ((uintptr_t)image % 8 || header.magic != 0xba55ed50 || header.version != 1 ||
        header.header != 16) {
        char *log = nullptr;
        size_t size = 0;
        for (unsigned i = 0; i < n; i++) {
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = (char *)values[i];
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = (size_t)values[i];
        }
        if (log) snprintf(log, size, "device kernel image is invalid\n");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    std::string text((const char *)image + 16, header.bytes);
    CUmod_st made = {text.compare(0, 4, "emu\n") != 0, {}, {}};
    for (size_t at = 4, end; !made.all && (end = text.find('\n', at)) != std::string::npos;
        at = end + 1)
        made.names.insert(text.substr(at, end - at));
    s.modules.insert(*module = new CUmod_st(std::move(made)));
    return CUDA_SUCCESS;
}

API CUresult cuModuleUnload(CUmodule module) {
    ENTER_CONTEXT(cuModuleUnload);
    ALIVE(modules, module);
    s.idle("cuModuleUnload");
    s.modules.erase(module);
    delete module;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER_CONTEXT(cuModuleGetFunction);
    ALIVE(modules, module);
    const emu::Entry *entry = emu::find(name);
    if (!entry || !(module->all || module->names.count(name))) return CUDA_ERROR_NOT_FOUND;
    *function = &module->functions.insert({name, CUfunc_st{entry}}).first->second;
    return CUDA_SUCCESS;
}

static bool alive(const State &s, CUfunction function) {
    for (CUmodule module : s.modules)
        for (auto &[name, one] : module->functions)
            if (&one == function) return true;
    return false;
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    ENTER_CONTEXT(cuFuncSetAttribute);
    if (!alive(s, function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > s.settings.shared)
        return CUDA_ERROR_INVALID_VALUE;
    function->shared = value;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    ENTER_CONTEXT(cuFuncGetAttribute);
    if (!alive(s, function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute != CU_FUNC_ATTRIBUTE_PTX_VERSION) return CUDA_ERROR_INVALID_VALUE;
    *value = s.settings.ptx;
    return CUDA_SUCCESS;
}

API CUresult cuLaunchKernelEx(
    const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    ENTER_CONTEXT(cuLaunchKernelEx);
    const CUlaunchConfig c = *config;
    CUstream stream = c.hStream;
    ALIVE(streams, stream);
    if (!alive(s, function)) {
        s.misused("cuLaunchKernelEx of a function that is not alive");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!c.gridDimX || !c.gridDimY || !c.gridDimZ || c.gridDimY > 65535 || c.gridDimZ > 65535 ||
        c.blockDimX * c.blockDimY * c.blockDimZ > 1024 ||
        (int)c.sharedMemBytes > function->shared || extra)
        return CUDA_ERROR_INVALID_VALUE;
    bool dependent = false;
    for (unsigned i = 0; i < c.numAttrs; i++) {
        if (c.attrs[i].id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return CUDA_ERROR_INVALID_VALUE;
        dependent = c.attrs[i].value.programmaticStreamSerializationAllowed != 0;
    }
    // Older machine code does not wait for the previous launch.
    if (dependent && s.settings.ptx < 90)
        s.misused("a programmatic launch of a kernel that cannot wait");
    const emu::Entry *entry = function->entry;
    std::vector<char> params(
        (const char *)arguments[0], (const char *)arguments[0] + entry->params_size);
    s.enqueue(stream, [=] {
        const unsigned grid[] = {c.gridDimX, c.gridDimY, c.gridDimZ},
                       block[] = {c.blockDimX, c.blockDimY, c.blockDimZ};
        char text[600];
        State &now = state();
        now.dependent += dependent;
        const auto launch = dependent ? emu_launch_dependent : emu_launch;
        if (!launch(entry->name, params.data(), params.size(), grid, block, c.sharedMemBytes,
                now.launches++, text, sizeof text))
            return CUDA_SUCCESS;
        now.misused(text);
        return CUDA_ERROR_LAUNCH_FAILED;
    });
    return CUDA_SUCCESS;
}

// Supports only what the emulator has: matrices of 16-bit numbers.
API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
    void *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    ENTER(cuTensorMapEncodeTiled);
    if (s.settings.arch < 90 || type != CU_TENSOR_MAP_DATA_TYPE_UINT16 || rank != 2 ||
        element_strides[0] != 1 || element_strides[1] != 1 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    char text[512];
    if (!emu_tensor_map(map, (uint64_t)address, dimensions[0], dimensions[1], strides[0], box[0],
            box[1], text, sizeof text))
        return CUDA_SUCCESS;
    s.misused(text);
    return CUDA_ERROR_INVALID_VALUE;
}

// ---- graphs

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    ENTER_CONTEXT(cuStreamBeginCapture_v2);
    ALIVE(streams, stream);
    if (stream->recording) return CUDA_ERROR_ILLEGAL_STATE;
    s.graphs.insert(stream->recording = new CUgraph_st);
    stream->invalid = false;
    stream->mode = mode;
    stream->recorder = std::this_thread::get_id();
    return CUDA_SUCCESS;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    State &s = state();
    std::lock_guard<std::mutex> hold(s.lock);
    CUresult failed = s.enter("cuStreamEndCapture");
    if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (s.context.error) return s.context.error;
    ALIVE(streams, stream);
    if (!stream->recording) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        stream->recorder != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    *graph = stream->recording;
    stream->recording = nullptr;
    if (stream->invalid && !failed) failed = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!failed) return CUDA_SUCCESS;
    // The recording ends in any case.
    s.graphs.erase(*graph);
    delete *graph;
    *graph = nullptr;
    return failed;
}

static bool recorded(const State &s, CUgraph graph) {
    for (CUstream one : s.streams)
        if (one->recording == graph) return false;
    return true;
}

API CUresult cuGraphInstantiateWithFlags(
    CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER_CONTEXT(cuGraphInstantiateWithFlags);
    NOT_RECORDING;
    ALIVE(graphs, graph);
    if (flags || !recorded(s, graph)) return CUDA_ERROR_INVALID_VALUE;
    *exec = new CUgraphExec_st;
    (*exec)->work = graph->work;
    s.execs.insert(*exec);
    return CUDA_SUCCESS;
}

static CUresult uploaded(State &s, CUgraphExec exec) {
    if (exec->bytes) return CUDA_SUCCESS;
    const uint64_t bytes = s.settings.graph;
    if (s.used > s.settings.memory || bytes > s.settings.memory - s.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s.used += exec->bytes = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    ENTER_CONTEXT(cuGraphUpload);
    NOT_RECORDING;
    ALIVE(execs, exec);
    ALIVE(streams, stream);
    return uploaded(s, exec);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER_CONTEXT(cuGraphLaunch);
    ALIVE(execs, exec);
    ALIVE(streams, stream);
    if (CUresult failed = uploaded(s, exec)) return failed;
    if (stream->recording) {
        s.misused("cuGraphLaunch in a stream that records");
        stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    s.replays++;
    exec->launched++;
    for (const Work &one : exec->work) s.enqueue(stream, one);
    s.enqueue(stream, [exec] {
        exec->done++;
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER_CONTEXT(cuGraphDestroy);
    ALIVE(graphs, graph);
    if (!recorded(s, graph)) return CUDA_ERROR_INVALID_VALUE;
    s.graphs.erase(graph);
    delete graph;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER_CONTEXT(cuGraphExecDestroy);
    ALIVE(execs, exec);
    if (exec->done < exec->launched) s.misused("cuGraphExecDestroy while it runs");
    s.execs.erase(exec);
    s.used -= exec->bytes;
    delete exec;
    return CUDA_SUCCESS;
}

// ---- for the tests

// Changes settings (Settings in state.h).
API void emu_cuda_set(const char *text) {
    State &s = state();
    std::lock_guard<std::mutex> hold(s.lock);
    s.set(text);
}

// Returns the number of contexts that are retained, plus 1 if one is left current, plus the number
// of misuses. Objects that are alive when the last context is released count as a misuse. `text`
// says more.
API unsigned emu_cuda_report(char *text, size_t size) {
    State &s = state();
    std::lock_guard<std::mutex> hold(s.lock);
    snprintf(text, size,
        "%d contexts, %ld current, %u misuses (%s); %llu calls, %llu launches, %llu copies, %llu replays, %llu dependent, %llu ahead, %llu heuristics, %llu products, %llu bytes; failed %s",
        s.context.retained, s.current, s.misuses, s.misuse.c_str(), (unsigned long long)s.calls,
        (unsigned long long)s.launches, (unsigned long long)s.copies, (unsigned long long)s.replays,
        (unsigned long long)s.dependent, (unsigned long long)s.ahead,
        (unsigned long long)s.heuristics, (unsigned long long)s.products,
        (unsigned long long)s.used, s.settings.failed.c_str());
    return (unsigned)s.context.retained + (unsigned)(s.current != 0) + s.misuses;
}
