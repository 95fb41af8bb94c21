// The stand-in driver's insides: settings, streams, what is alive.
#ifndef LLAMABI_EMU_CUDA_STATE_H
#define LLAMABI_EMU_CUDA_STATE_H

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../emu.h"
#include "../table.h"
#include "types.h"

using Work = std::function<CUresult()>;

struct CUctx_st {
    int retained = 0;
    CUresult error = CUDA_SUCCESS; // of something that ran; every call after it gives it again
};
struct CUgraph_st { std::vector<Work> work; };
struct CUgraphExec_st {
    std::vector<Work> work;
    uint64_t launched = 0, done = 0, bytes = 0; // bytes: of device memory
};
struct CUstream_st {
    std::deque<Work> queue;
    CUgraph recording = nullptr;
    bool invalid = false; // what is recorded
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id recorder;
};
struct CUevent_st { uint64_t recorded = 0, done = 0; };
struct CUfunc_st {
    const emu::Entry *entry;
    int shared = 48 << 10;
};
struct CUmod_st {
    bool all;                    // a real image: every kernel there is
    std::set<std::string> names; // else these
    std::map<std::string, CUfunc_st> functions;
};

// Set by the variable EMU_CUDA and emu_cuda_set: "key=value key=value ...".
struct Settings {
    int blaslt = 130000; // version of the library of products
    // ptx: what the kernels were compiled for. strict: dependent launches see nothing early (emu_strict).
    int driver = 13000, devices = 1, arch = 90, ptx = 90, strict = 0, pitch = 0x7fffffff, shared = 99 << 10;
    uint64_t memory = 4ull << 30, graph = 0; // graph: bytes that one takes
    uint64_t seed = 0; // 0: work runs when it is waited for; else some of it earlier, at random
    // fail=NAME:N:CODE: the Nth call from now of this function, of any ("*"), or the Nth piece of work that runs
    // ("work"), gives CODE.
    std::string fail, failed; // and the function that it was
    uint64_t fail_in = 0;
    unsigned fail_code = 0;
};

struct State {
    std::mutex lock;
    Settings settings;
    bool started = false;
    CUctx_st context; // of every device: nothing here depends on which
    std::map<CUdeviceptr, size_t> memory;
    std::map<const char *, size_t> pinned;
    std::set<CUstream> streams;
    std::set<CUevent> events;
    std::set<CUmodule> modules;
    std::set<CUgraph> graphs;
    std::set<CUgraphExec> execs;
    uint64_t used = 0, calls = 0, launches = 0, copies = 0, replays = 0, dependent = 0, ahead = 0, heuristics = 0, products = 0, random = 1;
    long current = 0; // contexts pushed and not popped, on all threads
    unsigned misuses = 0;
    std::string misuse; // the first

    void set(const char *text);
    // Whether this call is the one that is to fail.
    CUresult enter(const char *function);
    // What no program may do, and a driver need not notice.
    void misused(const std::string &text);
    void enqueue(CUstream stream, Work work);
    void run(CUstream stream, size_t pieces);
    CUresult finish(CUstream stream);
    // What may not be called while this thread records, or another one does for all: spoils the record.
    bool spoils(const char *function);
    // Whether [at, at + size) lies in one allocation.
    bool on_device(CUdeviceptr at, size_t size) const;
    bool is_pinned(const void *at, size_t size) const;
    // Memory is freed while work may use it.
    void idle(const char *function);
    // The context goes, and all that lives in it.
    void release();
};

State &state();

#endif
