// The internal state of the stand-in driver: settings, streams, and which objects are alive.
#ifndef LLAMABI_EMU_CUDA_STATE_H
#define LLAMABI_EMU_CUDA_STATE_H

#include <atomic>
#include <condition_variable>
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

// A piece of work. One that returns CUDA_ERROR_NOT_READY waits for another device: it stays at the
// head of its stream and runs again later.
using Work = std::function<CUresult()>;

struct CUgraph_st {
    std::vector<Work> work;
};
struct CUgraphExec_st {
    std::vector<Work> work;
    uint64_t bytes = 0; // the device memory that it takes
};
struct CUstream_st {
    CUcontext context;
    std::deque<Work> queue;
    bool running = false; // whether a thread runs work of this stream
    // What the work has recorded. Nobody may see the event as done before `running` is false: the
    // memory of a copy that has ended could then not be freed.
    CUevent fired = nullptr;
    uint64_t fired_as = 0;
    CUgraph recording = nullptr;
    bool invalid = false; // whether the recording has been invalidated
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id recorder;
};
struct CUevent_st {
    uint64_t recorded = 0;
    uint64_t done = 0;
    CUstream stream = nullptr; // in which it was recorded last
};
struct CUfunc_st {
    const emu::Entry *entry;
    int shared = 48 << 10;
    int carveout = -1; // percent; -1: what the driver likes
};
struct CUmod_st {
    bool all;                    // made from a real image: has every kernel of the emulator
    std::set<std::string> names; // otherwise: has these kernels
    std::map<std::string, CUfunc_st> functions;
};

// The primary context of a device, and what lives in it.
struct CUctx_st {
    int retained = 0;
    CUresult error = CUDA_SUCCESS; // the error of work that has run; every later call returns it
    std::map<CUdeviceptr, size_t> memory;
    std::map<const char *, size_t> pinned;
    std::set<CUstream> streams;
    std::set<CUevent> events;
    std::set<CUmodule> modules;
    std::set<CUgraph> graphs;
    std::set<CUgraphExec> execs;
    std::set<CUctx_st *> reached; // contexts whose memory its kernels may use
    // Threads that run its work by themselves, as a device does. Only then may a kernel of it wait
    // for another device: nobody who asks for its work runs it.
    int runners = 0;
    uint64_t used = 0;

    // Whether [at, at + size) lies in one allocation.
    bool on_device(CUdeviceptr at, size_t size) const;
    bool is_pinned(const void *at, size_t size) const;
};

// Settings. The environment variable EMU_CUDA and the function emu_cuda_set take them as "key=value
// key=value ...".
struct Settings {
    int blaslt = 130000; // version of cuBLASLt
    int nccl = 22203;    // version of NCCL
    // The number of the exchange of NCCL that never ends unless it is aborted, of the one that
    // never ends whatever happens, and of the one at which another rank is lost; 0: none.
    uint64_t hang = 0, stuck = 0, lost = 0;
    // Pieces of work for which a stream has room. For one more, a driver waits; 0: any number.
    size_t full = 0;
    // ptx: the architecture for which the kernels were compiled. strict: turns emu_strict on.
    int driver = 13000, devices = 1, arch = 90, ptx = 90, strict = 0, pitch = 0x7fffffff,
        shared = 99 << 10;
    // Bytes of a block's shared memory that each kernel has of its own, as it says, and that the
    // driver keeps without saying so.
    int fixed = 0, kept = 0;
    int carveout = 1; // 0: the driver knows no preferred carve-out
    int peers = 0;    // 1: devices reach each other's memory; 2: not by NVLink
    int captures = 0; // 1: the host records a stream, on another thread
    uint64_t memory = 4ull << 30, graph = 0; // graph: bytes that each graph takes
    // 0: work runs when it is waited for; otherwise some work runs earlier, at random
    uint64_t seed = 0;
    // fail=NAME:N:CODE: from now on, the Nth call of function NAME returns CODE. NAME "*" counts
    // the calls of all functions, except functions that only ask whether something is done: the
    // number of such calls depends on time. "work" counts the pieces of work that run.
    std::string fail, failed; // `failed`: the function that has failed in this way
    uint64_t fail_in = 0;
    unsigned fail_code = 0;
};

struct State {
    std::mutex lock;
    Settings settings;
    bool started = false;
    std::map<int, CUctx_st> contexts; // by device
    uint64_t calls = 0, replays = 0, ahead = 0, heuristics = 0, random = 1;
    // What work counts, which runs while the lock is free. sent: bytes from the host. recarved:
    // launches that may start early but ask for another carve-out than the launch before them has
    std::atomic<uint64_t> launches{0}, copies{0}, dependent{0}, sent{0}, recarved{0}, products{0},
        clustered{0};
    std::atomic<uint64_t> exchanges{0}; // of NCCL, that were begun
    std::atomic<uint64_t> met{0};       // launches of kernels that wait for other devices
    std::atomic<int> carveout{-1};      // of the last launch
    long current = 0;                   // contexts pushed and not popped, on all threads
    std::mutex misuse_lock;
    unsigned misuses = 0;
    std::string misuse; // the first misuse
    // Somebody who ran work of a stream has ended.
    std::condition_variable_any ended;

    void set(const char *text);
    // Returns an error if this call is the one that is to fail.
    CUresult enter(const char *function);
    // Records a misuse: an act that is not allowed, although a driver need not notice it.
    void misused(const std::string &text);
    void enqueue(CUstream stream, Work work);
    // Runs pieces of work, in their order. Other threads may call the driver meanwhile, except in
    // strict mode. If another thread runs work of this stream, waits for it first. Returns how many
    // pieces ran; fewer than asked if one waits for another device.
    size_t run(CUstream stream, size_t pieces);
    CUresult finish(CUstream stream);
    // Lets other threads call the driver for a while.
    void rest();
    // For functions that may not be called while this thread records, or while another thread
    // records for all threads. Returns true, and invalidates the recording, if that is the case.
    bool spoils(const char *function);
    // Called when memory is freed. Reports a misuse if work is pending, which might use the memory.
    // Several users of a context have a stream each, and one that frees memory has waited for its
    // own; so the act is allowed if any stream is idle.
    void idle(CUcontext context, const char *function);
    // Releases what lives in a context.
    void release(CUcontext context);
};

State &state();

// How this thread's calls stand to streams that others record.
extern thread_local CUstreamCaptureMode capture_mode;

#endif
