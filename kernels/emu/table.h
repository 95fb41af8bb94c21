// The kernels of this build, by name.
#ifndef LLAMABI_EMU_TABLE_H
#define LLAMABI_EMU_TABLE_H

#include <cstddef>
#include <cstring>

namespace emu {

struct Entry {
    const char *name;
    size_t params_size;
    unsigned threads;
    void (*entry)(const void *params);
};

// Null if there is no such kernel.
const Entry *find(const char *name);

} // namespace emu

#define EMU_DECLARE(name, Params, THREADS) extern "C" void name(const Params &);
#define EMU_ENTRY(name, Params, THREADS)                                                           \
    {#name, sizeof(Params), THREADS, [](const void *p) { ::name(*(const Params *)p); }},

// Defines `find` for a list of kernels.
#define EMU_TABLE(KERNELS)                                                                         \
    KERNELS(EMU_DECLARE)                                                                           \
    const emu::Entry *emu::find(const char *name) {                                                \
        static const Entry table[] = {KERNELS(EMU_ENTRY)};                                         \
        for (const Entry &entry : table)                                                           \
            if (!strcmp(entry.name, name)) return &entry;                                          \
        return nullptr;                                                                            \
    }

#endif
