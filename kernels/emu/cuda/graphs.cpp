// The stand-in driver's graphs: launches that a stream records.
#include "api.h"

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    ENTER_CONTEXT(cuStreamBeginCapture_v2);
    ALIVE(streams, stream);
    if (stream->recording) return CUDA_ERROR_ILLEGAL_STATE;
    c.graphs.insert(stream->recording = new CUgraph_st);
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
    CUctx_st &c = *pushed.back();
    if (c.error) return c.error;
    ALIVE(streams, stream);
    if (!stream->recording) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
        stream->recorder != std::this_thread::get_id())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    *graph = stream->recording;
    stream->recording = nullptr;
    if (stream->invalid && !failed) failed = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!failed) return CUDA_SUCCESS;
    // The recording ends even if it is invalid.
    c.graphs.erase(*graph);
    delete *graph;
    *graph = nullptr;
    return failed;
}

static bool recorded(const CUctx_st &c, CUgraph graph) {
    for (CUstream one : c.streams)
        if (one->recording == graph) return false;
    return true;
}

API CUresult cuGraphInstantiateWithFlags(
    CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER_CONTEXT(cuGraphInstantiateWithFlags);
    NOT_RECORDING;
    ALIVE(graphs, graph);
    if (flags || !recorded(c, graph)) return CUDA_ERROR_INVALID_VALUE;
    *exec = new CUgraphExec_st;
    (*exec)->work = graph->work;
    c.execs.insert(*exec);
    return CUDA_SUCCESS;
}

static CUresult uploaded(State &s, CUctx_st &c, CUgraphExec exec) {
    if (exec->bytes) return CUDA_SUCCESS;
    const uint64_t bytes = s.settings.graph;
    if (c.used > s.settings.memory || bytes > s.settings.memory - c.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c.used += exec->bytes = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    ENTER_CONTEXT(cuGraphUpload);
    NOT_RECORDING;
    ALIVE(execs, exec);
    ALIVE(streams, stream);
    return uploaded(s, c, exec);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    ENTER_CONTEXT(cuGraphLaunch);
    ALIVE(execs, exec);
    ALIVE(streams, stream);
    if (CUresult failed = uploaded(s, c, exec)) return failed;
    if (stream->recording) {
        s.misused("cuGraphLaunch in a stream that records");
        stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    s.replays++;
    for (const Work &one : exec->work) s.enqueue(stream, one);
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER_CONTEXT(cuGraphDestroy);
    ALIVE(graphs, graph);
    if (!recorded(c, graph)) return CUDA_ERROR_INVALID_VALUE;
    c.graphs.erase(graph);
    delete graph;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecDestroy(CUgraphExec exec) {
    ENTER_CONTEXT(cuGraphExecDestroy);
    ALIVE(execs, exec);
    // What is under way goes on.
    c.execs.erase(exec);
    c.used -= exec->bytes;
    delete exec;
    return CUDA_SUCCESS;
}
