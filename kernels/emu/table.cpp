// The library's kernels by name. kernels/tests/machine.cpp replaces this file with a table of its
// own.
#include "table.h"

#include "../params.h"

EMU_TABLE(GPU_KERNELS)
