#include "state.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

State &state() {
    static State *s = [] {
        auto *made = new State; // never freed: threads may call until the process ends
        if (const char *text = getenv("EMU_CUDA")) made->set(text);
        return made;
    }();
    return *s;
}

void State::set(const char *text) {
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        size_t equals = word.find('=');
        std::string key = word.substr(0, equals),
                    value = equals == std::string::npos ? "" : word.substr(equals + 1);
        auto number = [&] { return strtoull(value.c_str(), nullptr, 0); };
        Settings &s = settings;
        if (key == "driver")
            s.driver = (int)number();
        else if (key == "devices")
            s.devices = (int)number();
        else if (key == "arch")
            s.arch = (int)number();
        else if (key == "ptx")
            s.ptx = (int)number();
        else if (key == "strict")
            emu_strict(s.strict = (int)number());
        else if (key == "blaslt")
            s.blaslt = (int)number();
        else if (key == "nccl")
            s.nccl = (int)number();
        else if (key == "hang")
            s.hang = number();
        else if (key == "stuck")
            s.stuck = number();
        else if (key == "peers")
            s.peers = (int)number();
        else if (key == "full")
            s.full = number();
        else if (key == "lost")
            s.lost = number();
        else if (key == "pitch")
            s.pitch = (int)number();
        else if (key == "shared")
            s.shared = (int)number();
        else if (key == "fixed")
            s.fixed = (int)number();
        else if (key == "kept")
            s.kept = (int)number();
        else if (key == "carveout")
            s.carveout = (int)number();
        else if (key == "captures")
            s.captures = (int)number();
        else if (key == "memory")
            s.memory = number();
        else if (key == "graph")
            s.graph = number();
        else if (key == "seed")
            s.seed = random = number();
        else if (key == "fail") {
            size_t first = value.find(':'), second = value.find(':', first + 1);
            s.fail = value.substr(0, first);
            s.fail_in = value.empty() ? 0 : strtoull(value.c_str() + first + 1, nullptr, 0);
            s.fail_code =
                value.empty() ? 0 : (unsigned)strtoul(value.c_str() + second + 1, nullptr, 0);
        } else {
            fprintf(stderr, "EMU_CUDA: unknown setting %s\n", word.c_str());
            abort();
        }
    }
}

CUresult State::enter(const char *function) {
    const std::string name = function;
    const bool polls =
        name == "cuEventQuery" || name == "cuStreamQuery" || name == "ncclCommGetAsyncError";
    calls += !polls;
    Settings &s = settings;
    if (!s.fail_in || !(s.fail == name || (s.fail == "*" && !polls)) || --s.fail_in)
        return CUDA_SUCCESS;
    s.failed = function;
    return (CUresult)s.fail_code;
}

void State::misused(const std::string &text) {
    std::lock_guard<std::mutex> hold(misuse_lock);
    if (!misuses++) misuse = text;
    fprintf(stderr, "the stand-in driver: %s\n", text.c_str());
}

void State::enqueue(CUstream stream, Work work) {
    if (stream->recording) {
        stream->recording->work.push_back(std::move(work));
        return;
    }
    stream->queue.push_back(std::move(work));
    if (settings.full && stream->queue.size() > settings.full)
        misused("more work in a stream than a driver takes without waiting");
    if (!settings.seed || stream->context->runners) return;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    run(stream, random % (stream->queue.size() + 1));
}

size_t State::run(CUstream stream, size_t pieces) {
    while (stream->running) ended.wait(lock);
    size_t done = 0;
    for (; done < pieces && !stream->queue.empty(); done++) {
        Work work = std::move(stream->queue.front());
        stream->queue.pop_front();
        CUresult result = CUDA_SUCCESS;
        Settings &s = settings;
        if (s.fail_in && s.fail == "work" && --s.fail_in == 0) {
            result = (CUresult)s.fail_code;
        } else if (s.strict) {
            result = work();
        } else {
            stream->running = true;
            lock.unlock();
            result = work();
            lock.lock();
            stream->running = false;
            ended.notify_all();
        }
        if (stream->fired) stream->fired->done = stream->fired_as;
        stream->fired = nullptr;
        if (result == CUDA_ERROR_NOT_READY) {
            stream->queue.push_front(std::move(work));
            break;
        }
        if (result != CUDA_SUCCESS) {
            stream->context->error = result;
            stream->queue.clear();
        }
    }
    return done;
}

void State::rest() {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
}

CUresult State::finish(CUstream stream) {
    if (stream->recording) {
        misused("waiting for a stream that records");
        stream->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    while (!stream->queue.empty() || stream->running)
        if (!run(stream, stream->queue.size())) rest();
    return stream->context->error;
}

bool State::spoils(const char *function) {
    if (settings.captures && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
        misused(std::string(function) + " while the host records a stream");
        return true;
    }
    for (auto &[device, context] : contexts)
        for (CUstream one : context.streams) {
            if (!one->recording || one->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
            if (one->mode != CU_STREAM_CAPTURE_MODE_GLOBAL &&
                one->recorder != std::this_thread::get_id())
                continue;
            misused(std::string(function) + " while a stream records");
            one->invalid = true;
            return true;
        }
    return false;
}

template <class Key> static bool within(const std::map<Key, size_t> &ranges, Key at, size_t size) {
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return false;
    auto &[start, length] = *--next;
    size_t offset = (size_t)(at - start);
    return offset <= length && size <= length - offset;
}

bool CUctx_st::on_device(CUdeviceptr at, size_t size) const { return within(memory, at, size); }
bool CUctx_st::is_pinned(const void *at, size_t size) const {
    return within(pinned, (const char *)at, size);
}

void State::idle(CUcontext context, const char *function) {
    for (CUstream stream : context->streams)
        if (stream->queue.empty() && !stream->running) return;
    if (!context->streams.empty()) misused(std::string(function) + " while work is under way");
}

void State::release(CUcontext context) {
    CUctx_st &c = *context;
    size_t alive = c.memory.size() + c.pinned.size() + c.streams.size() + c.events.size() +
                   c.modules.size() + c.graphs.size() + c.execs.size();
    if (alive && !c.error) {
        char text[200];
        snprintf(text, sizeof text,
            "left behind: %zu allocations, %zu pinned, %zu streams, %zu events, %zu modules, %zu graphs",
            c.memory.size(), c.pinned.size(), c.streams.size(), c.events.size(), c.modules.size(),
            c.graphs.size() + c.execs.size());
        misused(text);
    }
    char error[512];
    for (auto &[at, bytes] : c.memory) emu_free(at, error, sizeof error);
    for (auto &[at, bytes] : c.pinned) free((void *)at);
    for (CUstream one : c.streams) delete one;
    for (CUevent one : c.events) delete one;
    for (CUmodule one : c.modules) delete one;
    for (CUgraph one : c.graphs) delete one;
    for (CUgraphExec one : c.execs) delete one;
    c = CUctx_st();
}
