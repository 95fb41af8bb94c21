// The stand-in driver's modules, launches and tensor maps.
#include "../../params.h"
#include "api.h"

#include <cstdio>
#include <cstring>

// Takes a fatbin with its header. The code of a real fatbin cannot run here; its module has every
// kernel of the emulator. A fatbin of the tests holds "emu\n" and names of kernels; its module has
// these kernels.
API CUresult cuModuleLoadDataEx(
    CUmodule *module, const void *image, unsigned n, CUjit_option *options, void **values) {
    ENTER_CONTEXT(cuModuleLoadDataEx);
    NOT_RECORDING;
    struct Header {
        uint32_t magic;
        uint16_t version, header;
        uint64_t bytes;
    } header;
    memcpy(&header, image, sizeof header);
    if ((uintptr_t)image % 8 || header.magic != 0xba55ed50 || header.version != 1 ||
        header.header != 16) {
        char *log = nullptr;
        size_t size = 0;
        for (unsigned i = 0; i < n; i++) {
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER) log = (char *)values[i];
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) size = (size_t)values[i];
        }
        if (log) snprintf(log, size, "device kernel image is invalid\n");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    std::string text((const char *)image + 16, header.bytes);
    CUmod_st made = {text.compare(0, 4, "emu\n") != 0, {}, {}};
    for (size_t at = 4, end; !made.all && (end = text.find('\n', at)) != std::string::npos;
        at = end + 1)
        made.names.insert(text.substr(at, end - at));
    c.modules.insert(*module = new CUmod_st(std::move(made)));
    return CUDA_SUCCESS;
}

API CUresult cuModuleUnload(CUmodule module) {
    ENTER_CONTEXT(cuModuleUnload);
    ALIVE(modules, module);
    s.idle(&c, "cuModuleUnload");
    c.modules.erase(module);
    delete module;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    ENTER_CONTEXT(cuModuleGetFunction);
    ALIVE(modules, module);
    const emu::Entry *entry = emu::find(name);
    if (!entry || !(module->all || module->names.count(name))) return CUDA_ERROR_NOT_FOUND;
    *function = &module->functions.insert({name, CUfunc_st{entry}}).first->second;
    return CUDA_SUCCESS;
}

static bool alive(const CUctx_st &c, CUfunction function) {
    for (CUmodule module : c.modules)
        for (auto &[name, one] : module->functions)
            if (&one == function) return true;
    return false;
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    ENTER_CONTEXT(cuFuncSetAttribute);
    if (!alive(c, function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (!s.settings.carveout || value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
        return CUDA_SUCCESS;
    }
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 ||
        value > s.settings.shared - s.settings.fixed - s.settings.kept)
        return CUDA_ERROR_INVALID_VALUE;
    function->shared = value;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    ENTER_CONTEXT(cuFuncGetAttribute);
    if (!alive(c, function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_PTX_VERSION)
        *value = s.settings.ptx;
    else if (attribute == CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        *value = s.settings.fixed;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

// Whether a kernel may use what it is told to use on the other devices.
static void check_peers(State &s, const CUctx_st &c, const ReducePeersParams &p) {
    s.met++;
    for (uint32_t rank = 0; rank < p.ranks; rank++)
        for (const auto &[at, bytes] : {std::pair{(CUdeviceptr)p.parts[rank], 4 * p.n},
                 std::pair{(CUdeviceptr)p.turns[rank], (uint64_t)GPU_PEERS * 4}}) {
            bool reached = c.on_device(at, bytes);
            for (const CUctx_st *other : c.reached) reached |= other->on_device(at, bytes);
            if (!reached) s.misused("reduce_peers: memory that the device does not reach");
        }
    if (!c.is_pinned((const void *)p.given_up, 4) || !c.on_device((CUdeviceptr)p.next, 4 * p.n))
        s.misused("reduce_peers: a word or a part that is nowhere");
}

API CUresult cuLaunchKernelEx(
    const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    ENTER_CONTEXT(cuLaunchKernelEx);
    const CUlaunchConfig l = *config;
    CUstream stream = l.hStream;
    ALIVE(streams, stream);
    if (!alive(c, function)) {
        s.misused("cuLaunchKernelEx of a function that is not alive");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!l.gridDimX || !l.gridDimY || !l.gridDimZ || l.gridDimY > 65535 || l.gridDimZ > 65535 ||
        l.blockDimX * l.blockDimY * l.blockDimZ > 1024 ||
        (int)l.sharedMemBytes > function->shared || extra)
        return CUDA_ERROR_INVALID_VALUE;
    bool dependent = false;
    unsigned cluster = 1;
    for (unsigned i = 0; i < l.numAttrs; i++) {
        const CUlaunchAttributeValue &value = l.attrs[i].value;
        if (l.attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            dependent = value.programmaticStreamSerializationAllowed != 0;
        else if (l.attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || s.settings.arch < 90 ||
                 value.clusterDim.y != 1 || value.clusterDim.z != 1)
            return CUDA_ERROR_INVALID_VALUE;
        else
            cluster = value.clusterDim.x;
    }
    if (!cluster || l.gridDimX % cluster) return CUDA_ERROR_INVALID_VALUE;
    // Machine code for older architectures does not wait for the previous launch.
    if (dependent && s.settings.ptx < 90)
        s.misused("a programmatic launch of a kernel that cannot wait");
    const emu::Entry *entry = function->entry;
    const int carveout = function->carveout;
    std::vector<char> params(
        (const char *)arguments[0], (const char *)arguments[0] + entry->params_size);
    if (!strcmp(entry->name, "reduce_peers"))
        check_peers(s, c, *(const ReducePeersParams *)params.data());
    s.enqueue(stream, [=] {
        const unsigned grid[] = {l.gridDimX, l.gridDimY, l.gridDimZ},
                       block[] = {l.blockDimX, l.blockDimY, l.blockDimZ};
        char text[600];
        State &now = state();
        now.dependent += dependent;
        const int before = now.carveout.exchange(carveout);
        now.recarved += dependent && carveout != before;
        now.clustered += cluster > 1;
        const uint64_t seed = now.launches++;
        if (!(dependent ? emu_launch_dependent(entry->name, params.data(), params.size(), grid,
                              block, l.sharedMemBytes, cluster, seed, text, sizeof text)
                        : emu_launch_clusters(entry->name, params.data(), params.size(), grid,
                              block, l.sharedMemBytes, cluster, seed, text, sizeof text)))
            return CUDA_SUCCESS;
        now.misused(text);
        return CUDA_ERROR_LAUNCH_FAILED;
    });
    return CUDA_SUCCESS;
}

// Supports only what the emulator has: matrices of 16-bit numbers.
API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
    void *address, const cuuint64_t *dimensions, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    ENTER_CONTEXT(cuTensorMapEncodeTiled);
    if (s.settings.arch < 90 || type != CU_TENSOR_MAP_DATA_TYPE_UINT16 || rank != 2 ||
        element_strides[0] != 1 || element_strides[1] != 1 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B ||
        fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    char text[512];
    if (!emu_tensor_map(map, (uint64_t)address, dimensions[0], dimensions[1], strides[0], box[0],
            box[1], text, sizeof text))
        return CUDA_SUCCESS;
    s.misused(text);
    return CUDA_ERROR_INVALID_VALUE;
}
