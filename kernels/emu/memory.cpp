// Device memory with guards around it, and what a dependent launch sees of it (emu_strict).
#include "machine.h"

#include <array>
#include <map>
#include <mutex>

namespace emu {

bool strict;
bool hidden = false;

namespace {

struct Buffer {
    size_t size;
    unsigned char *raw; // with a guard before and after, except under ASan, which has its own
};
std::mutex buffers_lock;
std::map<uint64_t, Buffer> buffers;

struct Seen {
    std::vector<unsigned char> contents; // the contents before the launch
    // The words that launches have written since the last copy or ordinary launch.
    std::vector<bool> written;
};
std::map<uint64_t, Seen> seen;

uint32_t *words(uint64_t address) { return (uint32_t *)address; }

} // namespace

bool inside(uint64_t address, size_t size) {
    std::lock_guard<std::mutex> hold(buffers_lock);
    auto next = buffers.upper_bound(address);
    if (next == buffers.begin()) return false;
    auto &[start, buffer] = *--next;
    return address - start <= buffer.size && size <= buffer.size - (address - start);
}

unsigned char *allocate(size_t size) {
    void *p = nullptr;
    if (size > SIZE_MAX - 2 * GUARD || posix_memalign(&p, 256, size + 2 * GUARDED + (size == 0)))
        return nullptr;
    memset(p, 0xff, size + 2 * GUARDED);
    return (unsigned char *)p;
}

bool intact(const unsigned char *raw, size_t size) {
    static const auto guard = [] {
        std::array<unsigned char, GUARD> all;
        all.fill(0xff);
        return all;
    }();
    return !memcmp(raw, guard.data(), GUARDED) &&
           !memcmp(raw + GUARDED + size, guard.data(), GUARDED);
}

bool all_intact(size_t &damaged) {
    std::lock_guard<std::mutex> hold(buffers_lock);
    for (auto &[address, buffer] : buffers)
        if (!intact(buffer.raw, buffer.size)) {
            damaged = buffer.size;
            return false;
        }
    return true;
}

int report(char *error, size_t error_len, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (error_len) vsnprintf(error, error_len, format, args);
    va_end(args);
    return 1;
}

// Saves the contents before a launch, and hides from a dependent launch what may not be complete.
void before_launch(bool dependent) {
    for (auto &[address, buffer] : buffers) {
        Seen &s = seen[address];
        s.contents.assign((unsigned char *)address, (unsigned char *)address + buffer.size);
        s.written.resize(buffer.size / 4);
        for (size_t i = 0; i < s.written.size(); i++) {
            if (!dependent)
                s.written[i] = false;
            else if (s.written[i])
                words(address)[i] = 0xffffffffu;
        }
    }
    hidden = dependent;
}

// Makes everything visible again. Returns false if something was written in the meantime.
bool restore() {
    if (!hidden) return true;
    hidden = false;
    bool untouched = true;
    for (auto &[address, s] : seen)
        for (size_t i = 0; i < s.written.size(); i++) {
            uint32_t was;
            memcpy(&was, &s.contents[4 * i], 4);
            untouched &= words(address)[i] == (s.written[i] ? 0xffffffffu : was);
            if (s.written[i]) words(address)[i] = was;
        }
    return untouched;
}

void after_launch() {
    for (auto &[address, s] : seen)
        for (size_t i = 0; i < s.written.size(); i++)
            if (memcmp(&words(address)[i], &s.contents[4 * i], 4)) s.written[i] = true;
}

// A load by `.nc` may come from a cache that does not see what launches of the same chain write.
void const_read(const void *p, unsigned bytes, int line) {
    const uint64_t address = (uint64_t)p;
    auto next = seen.upper_bound(address);
    if (next == seen.begin()) return;
    auto &[start, s] = *--next;
    for (uint64_t at = address - start; at < address - start + bytes; at += 4) {
        const size_t i = at / 4;
        if (i >= s.written.size()) return;
        uint32_t was;
        memcpy(&was, &s.contents[4 * i], 4);
        if (s.written[i])
            fail(line, "reads by .nc what an earlier launch of its chain has written");
        if (words(start)[i] != was) fail(line, "reads by .nc what this launch has written");
    }
}

void prefetched(const void *p) { (void)*(volatile const unsigned char *)p; }

// Whether a launch of the chain that may still run has written to these bytes.
bool may_change(uint64_t address, uint64_t bytes) {
    if (!hidden) return false;
    auto next = seen.upper_bound(address);
    if (next == seen.begin()) return false;
    auto &[start, s] = *--next;
    for (uint64_t i = (address - start) / 4; i < (address - start + bytes + 3) / 4; i++)
        if (i < s.written.size() && s.written[i]) return true;
    return false;
}

void show(Machine &m) {
    const bool wrote_early = !restore();
    for (unsigned r = 0; r < m.cluster->blocks; r++) {
        Machine &one = *m.cluster->of[r];
        one.wrote_early = wrote_early;
        open(one, one.early);
    }
}

// Threads of the cluster that wait, and all that have not ended.
bool all_are_early(Machine &m, unsigned more) {
    size_t here = more, threads = 0, early = more;
    for (unsigned r = 0; r < m.cluster->blocks; r++) {
        const Machine &one = *m.cluster->of[r];
        early += one.early.arrived;
        here += one.early.arrived + one.exited;
        threads += one.warps.size() * 32;
    }
    return early > 0 && here == threads;
}

void wait_for_last(int line) {
    Machine &m = machine();
    m.waited = true;
    if (!hidden) return;
    // Nothing is shown before every thread of the block, or of its cluster, has come here or ended.
    if (all_are_early(m, 1))
        show(m);
    else
        wait_at(m, m.early, ~0u, line);
    if (m.wrote_early) fail(line, "written to global memory before wait_for_last");
}

} // namespace emu

using namespace emu;

extern "C" void emu_strict(int on) {
    strict = on;
    seen.clear();
}

extern "C" uint64_t emu_alloc(size_t size) {
    InOrder in_order;
    unsigned char *raw = allocate(size);
    if (!raw) return 0;
    uint64_t address = (uint64_t)(raw + GUARDED);
    std::lock_guard<std::mutex> hold(buffers_lock);
    buffers[address] = {size, raw};
    return address;
}

extern "C" int emu_free(uint64_t address, char *error, size_t error_len) {
    InOrder in_order;
    std::lock_guard<std::mutex> hold(buffers_lock);
    auto at = buffers.find(address);
    if (at == buffers.end())
        return report(error, error_len, "no buffer begins at %#llx", (unsigned long long)address);
    bool good = intact(at->second.raw, at->second.size);
    size_t size = at->second.size;
    free(at->second.raw);
    buffers.erase(at);
    if (strict) seen.erase(address);
    return good ? 0
                : report(error, error_len, "something was written outside a buffer of %zu bytes",
                      size);
}

extern "C" int emu_copy_to_device(
    uint64_t to, const void *from, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(to, size))
        return report(error, error_len, "%zu bytes at %#llx are not in one buffer", size,
            (unsigned long long)to);
    if (size > 0) memcpy((void *)to, from, size); // nothing may come from a null pointer
    return 0;
}

extern "C" int emu_copy_to_host(
    void *to, uint64_t from, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(from, size))
        return report(error, error_len, "%zu bytes at %#llx are not in one buffer", size,
            (unsigned long long)from);
    if (size > 0) memcpy(to, (const void *)from, size);
    return 0;
}

extern "C" int emu_copy_on_device(
    uint64_t to, uint64_t from, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(from, size) || !inside(to, size))
        return report(error, error_len, "%zu bytes at %#llx or %#llx are not in one buffer", size,
            (unsigned long long)from, (unsigned long long)to);
    memmove((void *)to, (const void *)from, size);
    return 0;
}

extern "C" int emu_fill(uint64_t to, uint8_t byte, size_t size, char *error, size_t error_len) {
    InOrder in_order;
    if (strict) seen.clear();
    if (!inside(to, size))
        return report(error, error_len, "%zu bytes at %#llx are not in one buffer", size,
            (unsigned long long)to);
    memset((void *)to, byte, size);
    return 0;
}
