// Which kernels there are, by name.
#ifndef LLAMABI_EMU_TABLE_H
#define LLAMABI_EMU_TABLE_H

#include <cstddef>

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

#endif
