#ifndef LLAMABI_TESTS_MACHINE_H
#define LLAMABI_TESTS_MACHINE_H

#include <stdint.h>

struct MachineParams {
    float *out;
    const uint16_t *in;
    uint32_t which, n;
};

#define MACHINE_KERNELS(X)                                                                         \
    X(lanes, MachineParams, 64)                                                                    \
    X(tensor, MachineParams, 32)                                                                   \
    X(named, MachineParams, 96)                                                                    \
    X(wrong, MachineParams, 64)                                                                    \
    X(warpgroup, MachineParams, 128)                                                               \
    X(fragments, MachineParams, 128)

#endif
