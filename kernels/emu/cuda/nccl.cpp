// A stand-in for libnccl: the functions that src/backend/gpu/cuda/nccl.rs looks up. It is in the
// same library file as the stand-in driver because it works in that driver's streams. There is no
// header of NCCL here to compare with; the Rust side takes its types from generated bindings.
//
// The ranks of a communicator meet in a file that all of them map, so they may be threads or
// processes. As with the real library, an exchange is work in a stream that waits there until every
// rank has begun it; calls are non-blocking and may say that they are still in progress; destroying
// or aborting a communicator waits for graphs that refer to it. Reported as misuse: exchanges in
// another order or of another size than on another rank, a call before the one before it is done,
// a communicator that is destroyed before it is finalized, and waiting for a graph for too long.
#include "api.h"

#include <cstring>
#include <fcntl.h>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

typedef int ncclResult_t;
enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress
};
enum { ncclFloat32 = 7 };
struct ncclUniqueId {
    char path[128];
};
struct ncclConfig_t {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare;
};

struct Comm;
struct ncclComm {
    std::shared_ptr<Comm> shared;
};
typedef ncclComm *ncclComm_t;

namespace {
constexpr int MOST = 64;
// The most bytes that a rank gives at a time. The file is sparse.
constexpr size_t ROOM = 64 << 20;

// What the ranks share; a new file is zeros.
struct Meeting {
    std::atomic<uint32_t> joined, finalized;
    struct alignas(64) Place {
        std::atomic<uint64_t> begun; // the exchanges that this rank has begun
        uint64_t kind[2], bytes[2];  // of the last two
    } places[MOST];
};

} // namespace

// Recorded work holds a share of `graphs`, so its count says whether a graph refers to this.
struct Comm {
    int rank, ranks;
    CUcontext context;
    std::string path;
    Meeting *meeting;
    char *data;
    std::shared_ptr<int> graphs = std::make_shared<int>();
    std::atomic<bool> aborted{false}, hangs{false}, stuck{false}, lost{false};
    bool finalized = false, in_progress = false, has_begun = false;
    bool ended = false; // nothing of it is used any more
    uint64_t turn = 1;  // the number of the next exchange

    ~Comm() {
        munmap(data, size());
        munmap(meeting, sizeof *meeting);
    }
    size_t size() const { return 2 * (size_t)ranks * ROOM; }
    char *slot(int of) const { return data + ((size_t)of * 2 + turn % 2) * ROOM; }
};
namespace {
struct Part {
    CUdeviceptr at;
    size_t bytes;
    int peer;
};
enum Kind : uint64_t { ALL_GATHER, ALL_TO_ALL };

thread_local bool grouped;
thread_local std::vector<Part> sends, receives;
thread_local ncclComm_t of_group;
thread_local CUstream stream_of_group;

// A device makes progress by itself, even if its host waits for something else.
void progress(std::shared_ptr<Comm> c) {
    State &s = state();
    s.lock.lock();
    for (; !c->ended; s.rest()) {
        const std::set<CUstream> streams = c->context->streams;
        for (CUstream one : streams)
            if (c->context->streams.count(one) && !one->running && !one->queue.empty())
                s.run(one, one->queue.size());
    }
    s.lock.unlock();
}

CUresult exchange(
    Comm &c, Kind kind, const std::vector<Part> &give, const std::vector<Part> &take) {
    State &s = state();
    if (c.stuck) return CUDA_ERROR_NOT_READY;
    if (c.aborted) return CUDA_SUCCESS;
    char text[512];
    Meeting::Place &mine = c.meeting->places[c.rank];
    const int side = (int)(c.turn % 2);
    if (!c.has_begun) {
        size_t at = 0;
        for (const Part &part : give) {
            if (at + part.bytes > ROOM) abort();
            if (emu_copy_to_host(c.slot(c.rank) + at, part.at, part.bytes, text, sizeof text)) {
                s.misused(text);
                return CUDA_ERROR_ILLEGAL_ADDRESS;
            }
            at += part.bytes;
        }
        mine.kind[side] = kind;
        mine.bytes[side] = at;
        mine.begun.store(c.turn, std::memory_order_release);
        c.has_begun = true;
        const uint64_t n = ++s.exchanges;
        if (n == s.settings.hang) c.hangs = true;
        if (n == s.settings.stuck) c.stuck = true;
        if (n == s.settings.lost) c.lost = true;
    }
    if (c.hangs || c.stuck || c.lost) return CUDA_ERROR_NOT_READY;
    for (int r = 0; r < c.ranks; r++)
        if (c.meeting->places[r].begun.load(std::memory_order_acquire) < c.turn)
            return CUDA_ERROR_NOT_READY;
    for (int r = 0; r < c.ranks; r++) {
        const Meeting::Place &other = c.meeting->places[r];
        if (other.kind[side] != kind || other.bytes[side] != mine.bytes[side]) {
            s.misused("NCCL: the ranks exchange different things");
            return CUDA_ERROR_LAUNCH_FAILED;
        }
    }
    for (const Part &part : take) {
        const char *from = c.slot(part.peer);
        if (kind == ALL_TO_ALL) from += (size_t)c.rank * part.bytes;
        if (emu_copy_to_device(part.at, from, part.bytes, text, sizeof text)) {
            s.misused(text);
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
    }
    c.has_begun = false;
    c.turn++;
    return CUDA_SUCCESS;
}
} // namespace

#define ENTER_NCCL(function)                                                                       \
    State &s = state();                                                                            \
    std::lock_guard<std::mutex> hold(s.lock);                                                      \
    if (CUresult failed = s.enter(#function)) return (ncclResult_t)failed
// For calls that may not be made while another one is in progress.
#define NOT_IN_PROGRESS(comm)                                                                      \
    if ((comm)->shared->in_progress) {                                                             \
        s.misused(std::string(__func__) + " while a call is in progress");                         \
        return ncclInvalidUsage;                                                                   \
    }

API ncclResult_t ncclGetVersion(int *version) {
    ENTER_NCCL(ncclGetVersion);
    *version = s.settings.nccl;
    return ncclSuccess;
}

API const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "an error of the stand-in";
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ENTER_NCCL(ncclGetUniqueId);
    static int made;
    const char *folder = getenv("TMPDIR");
    snprintf(id->path, sizeof id->path, "%s/llamabi-nccl-%d-%p-%d", folder ? folder : "/tmp",
        (int)getpid(), (void *)&made, made);
    made++;
    return ncclSuccess;
}

API ncclResult_t ncclCommInitRankConfig(
    ncclComm_t *to, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    ENTER_NCCL(ncclCommInitRankConfig);
    if (pushed.empty() || ranks < 1 || ranks > MOST || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    if (config->size != sizeof *config || config->magic != 0xcafebeef || config->version < 21400 ||
        config->blocking != 0) {
        s.misused("ncclCommInitRankConfig with another configuration");
        return ncclInvalidArgument;
    }
    static std::set<std::pair<std::string, CUcontext>> taken;
    if (!taken.insert({id.path, pushed.back()}).second) return ncclInvalidUsage;
    const int file = open(id.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return ncclSystemError;
    auto comm = std::make_shared<Comm>();
    comm->rank = rank, comm->ranks = ranks, comm->context = pushed.back(), comm->path = id.path;
    const size_t head = (sizeof(Meeting) + 4095) / 4096 * 4096;
    bool mapped = ftruncate(file, (off_t)(head + comm->size())) == 0;
    auto map = [&](size_t size, size_t at) {
        void *found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)at);
        mapped &= found != MAP_FAILED;
        return found;
    };
    comm->meeting = (Meeting *)map(sizeof(Meeting), 0);
    comm->data = (char *)map(comm->size(), head);
    close(file);
    if (!mapped) abort();
    if (++comm->meeting->joined == (uint32_t)ranks) unlink(id.path);
    comm->in_progress = true;
    *to = new ncclComm{comm};
    comm->context->runners += s.settings.peers > 0;
    std::thread(progress, comm).detach();
    return ncclInProgress;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
    ENTER_NCCL(ncclCommGetAsyncError);
    Comm &c = *comm->shared;
    const bool joins = c.meeting->joined < (uint32_t)c.ranks,
               ends = c.finalized && c.meeting->finalized < (uint32_t)c.ranks;
    *error = c.lost ? ncclRemoteError : joins || ends ? ncclInProgress : ncclSuccess;
    if (!joins && !ends) c.in_progress = false;
    return ncclSuccess;
}

static ncclResult_t begin(State &s, ncclComm_t comm, CUstream stream, Kind kind,
    std::vector<Part> give, std::vector<Part> take) {
    std::shared_ptr<Comm> c = comm->shared;
    if (c->finalized || pushed.empty() || pushed.back() != c->context ||
        !c->context->streams.count(stream)) {
        s.misused("NCCL: an exchange in a stream of another context, or after the end");
        return ncclInvalidUsage;
    }
    std::shared_ptr<int> recorded = stream->recording ? c->graphs : nullptr;
    s.enqueue(stream, [c, recorded, kind, give = std::move(give), take = std::move(take)] {
        return exchange(*c, kind, give, take);
    });
    // Now and then a call is said to be in progress.
    c->in_progress = s.settings.seed && s.random % 4 == 0;
    return c->in_progress ? ncclInProgress : ncclSuccess;
}

API ncclResult_t ncclAllGather(
    const void *from, void *to, size_t n, int type, ncclComm_t comm, CUstream stream) {
    ENTER_NCCL(ncclAllGather);
    NOT_IN_PROGRESS(comm);
    if (type != ncclFloat32 || grouped) return ncclInvalidArgument;
    std::vector<Part> take;
    for (int r = 0; r < comm->shared->ranks; r++)
        take.push_back({(CUdeviceptr)to + (size_t)r * 4 * n, 4 * n, r});
    return begin(s, comm, stream, ALL_GATHER, {{(CUdeviceptr)from, 4 * n, 0}}, take);
}

static ncclResult_t add(std::vector<Part> &to, const void *at, size_t n, int type, int peer,
    ncclComm_t comm, CUstream stream) {
    if (type != ncclFloat32 || !grouped || (of_group && of_group != comm) || peer != (int)to.size())
        return ncclInvalidArgument;
    of_group = comm, stream_of_group = stream;
    to.push_back({(CUdeviceptr)at, 4 * n, peer});
    return ncclSuccess;
}

API ncclResult_t ncclSend(
    const void *from, size_t n, int type, int peer, ncclComm_t comm, CUstream stream) {
    ENTER_NCCL(ncclSend);
    NOT_IN_PROGRESS(comm);
    return add(sends, from, n, type, peer, comm, stream);
}

API ncclResult_t ncclRecv(
    void *to, size_t n, int type, int peer, ncclComm_t comm, CUstream stream) {
    ENTER_NCCL(ncclRecv);
    NOT_IN_PROGRESS(comm);
    return add(receives, to, n, type, peer, comm, stream);
}

API ncclResult_t ncclGroupStart() {
    ENTER_NCCL(ncclGroupStart);
    grouped = true, of_group = nullptr;
    sends.clear(), receives.clear();
    return ncclSuccess;
}

API ncclResult_t ncclGroupEnd() {
    State &s = state();
    std::lock_guard<std::mutex> hold(s.lock);
    const CUresult failed = s.enter("ncclGroupEnd");
    grouped = false;
    if (failed) return (ncclResult_t)failed;
    if (!of_group) return ncclSuccess;
    const size_t ranks = (size_t)of_group->shared->ranks;
    bool whole = sends.size() == ranks && receives.size() == ranks;
    for (size_t r = 0; whole && r < ranks; r++)
        whole = sends[r].bytes == sends[0].bytes && receives[r].bytes == sends[0].bytes;
    if (!whole) {
        s.misused("NCCL: a group that is no exchange among all ranks");
        return ncclInvalidUsage;
    }
    return begin(s, of_group, stream_of_group, ALL_TO_ALL, sends, receives);
}

API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    ENTER_NCCL(ncclCommFinalize);
    NOT_IN_PROGRESS(comm);
    Comm &c = *comm->shared;
    if (c.finalized) return ncclInvalidUsage;
    c.finalized = c.in_progress = true;
    c.meeting->finalized++;
    return ncclInProgress;
}

// Waits for graphs that refer to the communicator, and forgets it.
static void end(State &s, ncclComm_t comm, const char *function) {
    for (int rests = 0; comm->shared->graphs.use_count() > 1; rests++) {
        if (rests == 40000) {
            s.misused(std::string(function) + " while a graph refers to the communicator");
            break;
        }
        s.rest();
    }
    unlink(comm->shared->path.c_str());
    comm->shared->ended = true;
    comm->shared->context->runners -= s.settings.peers > 0;
    delete comm;
}

API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    ENTER_NCCL(ncclCommDestroy);
    NOT_IN_PROGRESS(comm);
    Comm &c = *comm->shared;
    if (!c.finalized) s.misused("ncclCommDestroy before ncclCommFinalize");
    end(s, comm, "ncclCommDestroy");
    return ncclSuccess;
}

API ncclResult_t ncclCommAbort(ncclComm_t comm) {
    ENTER_NCCL(ncclCommAbort);
    comm->shared->aborted = true;
    end(s, comm, "ncclCommAbort");
    return ncclSuccess;
}
