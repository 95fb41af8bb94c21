#ifndef LLAMABI_TESTS_MACHINE_H
#define LLAMABI_TESTS_MACHINE_H

#include <stdint.h>

struct MachineParams {
    float *out;
    const uint16_t *in;
    uint32_t which, n;
};

#define MACHINE_KERNELS(X)                                                                         \
    X(lanes, 64) X(tensor, 32) X(named, 96) X(wrong, 64) X(warpgroup, 128) X(fragments, 128)

#endif
