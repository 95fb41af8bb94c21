// The macros with which the functions of the stand-in driver begin.
#ifndef LLAMABI_EMU_CUDA_API_H
#define LLAMABI_EMU_CUDA_API_H

#include "state.h"

#define API extern "C" __attribute__((visibility("default")))
#define ENTER(function)                                                                            \
    State &s = state();                                                                            \
    std::lock_guard<std::mutex> hold(s.lock);                                                      \
    if (CUresult failed = s.enter(#function)) return failed;                                       \
    if (!s.started) return CUDA_ERROR_NOT_INITIALIZED
// For functions that need a current context, `c`. If earlier work in it has failed, they return its
// error.
#define ENTER_CONTEXT(function)                                                                    \
    ENTER(function);                                                                               \
    if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;                                         \
    [[maybe_unused]] CUctx_st &c = *pushed.back();                                                 \
    if (c.error) return c.error
// For functions that may not be called while a stream records.
#define NOT_RECORDING                                                                              \
    if (s.spoils(__func__)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
#define ALIVE(set, handle)                                                                         \
    if (!c.set.count(handle)) {                                                                    \
        s.misused(std::string(__func__) + " with a handle that is not alive in this context");     \
        return CUDA_ERROR_INVALID_HANDLE;                                                          \
    }

// The contexts that this thread has pushed.
extern thread_local std::vector<CUcontext> pushed;

#endif
