// A stand-in driver for the tests: a libcuda.so.1 that has the functions that
// src/backend/gpu/driver.rs looks up. Its GPU is the emulator. The library under test takes it for
// a real driver, so all of src/backend/gpu/cuda runs in ordinary tests.
//
// It is as asynchronous as CUDA's reference allows a driver to be. Launches and copies stay in
// their stream until somebody waits for them; with seed=..., some run earlier, at random. A copy
// accesses page-locked memory when it runs, and other memory at once. The driver reports memory
// that is freed while pending work may use it, objects that are not alive, and contexts that are
// left current. Each device has a context of its own. Work runs while other threads may call the
// driver, so that the work of several devices runs at the same time.
//
// | file | what it has |
// |---|---|
// | driver.cpp | start, devices, contexts, streams, events; what the tests set and ask |
// | memory.cpp | memory and copies |
// | kernels.cpp | modules, launches, tensor maps |
// | graphs.cpp | recorded launches |
// | blaslt.cpp | a library of products |
// | nccl.cpp | a library that moves numbers between devices |
// | state.h, state.cpp | which objects are alive, and work that waits in a stream |
#include "api.h"

#include <cstdio>

thread_local std::vector<CUcontext> pushed;
thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

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
        NAME(CUDA_ERROR_NOT_READY),
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
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = s.settings.shared + 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        *value = 1024;
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

API CUresult cuDeviceGetP2PAttribute(
    int *value, CUdevice_P2PAttribute which, CUdevice from, CUdevice to) {
    ENTER(cuDeviceGetP2PAttribute);
    const int devices = s.settings.devices;
    if (from < 0 || to < 0 || from >= devices || to >= devices || from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = which == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ? s.settings.peers > 0
                                                               : s.settings.peers == 1;
    return CUDA_SUCCESS;
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    ENTER_CONTEXT(cuCtxEnablePeerAccess);
    if (flags || peer == &c || !peer->retained || !s.settings.peers)
        return CUDA_ERROR_INVALID_VALUE;
    return c.reached.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain);
    if (device < 0 || device >= s.settings.devices) return CUDA_ERROR_INVALID_DEVICE;
    *context = &s.contexts[device];
    (*context)->retained++;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2);
    CUctx_st &c = s.contexts[device];
    if (c.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--c.retained == 0) s.release(&c);
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER(cuCtxPushCurrent_v2);
    bool known = false;
    for (auto &[device, one] : s.contexts) known |= context == &one && one.retained > 0;
    if (!known) {
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
    if (pushed.empty() && capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL &&
        s.settings.failed.empty())
        s.misused("a thread is left with another capture mode than it had");
    return CUDA_SUCCESS;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode);
    if (*mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}

// ---- streams and events

API CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    ENTER_CONTEXT(cuStreamCreate);
    if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    c.streams.insert(*stream = new CUstream_st);
    (*stream)->context = &c;
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER_CONTEXT(cuStreamDestroy_v2);
    ALIVE(streams, stream);
    if (!stream->queue.empty() || stream->running)
        s.misused("cuStreamDestroy while work is under way");
    c.streams.erase(stream);
    delete stream;
    return CUDA_SUCCESS;
}

API CUresult cuStreamSynchronize(CUstream stream) {
    ENTER_CONTEXT(cuStreamSynchronize);
    ALIVE(streams, stream);
    return s.finish(stream);
}

API CUresult cuStreamQuery(CUstream stream) {
    ENTER_CONTEXT(cuStreamQuery);
    NOT_RECORDING;
    ALIVE(streams, stream);
    if (!stream->running && !c.runners) s.run(stream, stream->queue.size());
    if (c.error) return c.error;
    return stream->queue.empty() && !stream->running ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventCreate(CUevent *event, unsigned flags) {
    ENTER_CONTEXT(cuEventCreate);
    NOT_RECORDING;
    if (flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    c.events.insert(*event = new CUevent_st);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER_CONTEXT(cuEventDestroy_v2);
    ALIVE(events, event);
    if (event->done < event->recorded)
        s.misused("cuEventDestroy of one that somebody may wait for");
    c.events.erase(event);
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
    event->stream = stream;
    s.enqueue(stream, [event, time, stream] {
        stream->fired = event;
        stream->fired_as = time;
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

// Whether the work behind which an event was recorded is still to be done.
static bool pending(const CUctx_st &c, CUevent event) {
    CUstream stream = event->stream;
    return event->done < event->recorded && c.streams.count(stream) &&
           (stream->running || !stream->queue.empty());
}

API CUresult cuEventQuery(CUevent event) {
    ENTER_CONTEXT(cuEventQuery);
    NOT_RECORDING;
    ALIVE(events, event);
    CUstream stream = event->stream;
    while (!c.runners && pending(c, event) && !stream->running && s.run(stream, 1)) continue;
    if (pending(c, event)) return CUDA_ERROR_NOT_READY;
    if (stream && c.streams.count(stream)) s.ahead += !stream->queue.empty();
    return c.error;
}

API CUresult cuEventSynchronize(CUevent event) {
    ENTER_CONTEXT(cuEventSynchronize);
    NOT_RECORDING;
    ALIVE(events, event);
    CUstream stream = event->stream;
    while (pending(c, event))
        if (!s.run(stream, 1)) s.rest();
    // Counts waits after which other work is still pending.
    if (stream && c.streams.count(stream)) s.ahead += !stream->queue.empty();
    return c.error;
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
    unsigned retained = 0;
    uint64_t used = 0;
    for (auto &[device, one] : s.contexts) retained += (unsigned)one.retained, used += one.used;
    std::lock_guard<std::mutex> misuses(s.misuse_lock);
    snprintf(text, size,
        "%u contexts, %ld current, %u misuses (%s); %llu calls, %llu launches, %llu copies, %llu replays, %llu dependent, %llu ahead, %llu heuristics, %llu products, %llu bytes, %llu sent, %llu recarved, %llu exchanges, %llu clustered, %llu met; failed %s",
        retained, s.current, s.misuses, s.misuse.c_str(), (unsigned long long)s.calls,
        (unsigned long long)s.launches, (unsigned long long)s.copies, (unsigned long long)s.replays,
        (unsigned long long)s.dependent, (unsigned long long)s.ahead,
        (unsigned long long)s.heuristics, (unsigned long long)s.products, (unsigned long long)used,
        (unsigned long long)s.sent, (unsigned long long)s.recarved, (unsigned long long)s.exchanges,
        (unsigned long long)s.clustered, (unsigned long long)s.met, s.settings.failed.c_str());
    return retained + (unsigned)(s.current != 0) + s.misuses;
}
