// The library's kernels by name. kernels/tests/machine.cpp replaces this file with a table of its
// own.
#include "table.h"

#include "../params.h"

#include <cstring>

#define DECLARE(name, Params, THREADS) extern "C" void name(const Params &);
GPU_KERNELS(DECLARE)

namespace emu {

const Entry *find(const char *name) {
#define ENTRY(name, Params, THREADS)                                                               \
    {#name, sizeof(Params), THREADS, [](const void *p) { ::name(*(const Params *)p); }},
    static const Entry table[] = {GPU_KERNELS(ENTRY)};
    for (const Entry &e : table)
        if (!strcmp(e.name, name)) return &e;
    return nullptr;
}

} // namespace emu
