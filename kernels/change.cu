// Changes rows of logits before tokens are drawn from them: penalty, then edits (biases, other
// penalties, bans), then the mask of a grammar. The raw logits stay, because log probabilities are
// of them. src/engine/sampler/filters.rs does the same on the host, to the bit.
//
// Where logits are masked does not matter for edits, which leave an impossible token impossible. So
// a block writes the penalised and masked logits of its slice first, and then adds the edits that
// fall into it. A row has few edits, so every block of the row looks at all of them.
#include "gpu.h"

using namespace choice;

KERNEL(change) {
    start_next();
    wait_for_last();
    const SampleRow &c = p.rows[blockIdx.y];
    if (!is_changed(c)) return;
    const uint32_t t = threadIdx.x, first = blockIdx.x * GPU_SLICE,
                   end = smaller(first + GPU_SLICE, c.n_tokens);
    const size_t at = (size_t)blockIdx.y * p.stride;
    const Row row = {
        p.logits + at, history_of(c, p.histories, p.history_stride), c.penalty, c.n_tokens};
    const uint32_t *const mask = c.mask ? p.masks + (size_t)(c.mask - 1) * p.mask_stride : nullptr;
    float *const out = p.changed + at;
    bool possible = false;
    each<2>(row, first, end, t, THREADS, [&](uint32_t id, float v) {
        if (v > -INFINITY_F) possible = true;
        out[id] = !mask || (mask[id / 32] >> id % 32 & 1) ? v : -INFINITY_F;
    });
    if (group_max(possible ? 1.0f : 0.0f, 32) > 0 && t % 32 == 0)
        atomic_add(p.possible + blockIdx.y, 1);
#ifndef PLANT_NO_BARRIER_CHANGE
    block_sync();
#endif
    for (uint32_t i = t; i < c.n_edits; i += THREADS) {
        const SampleEdit edit = p.edits[c.first_edit + i];
        if (edit.token < first || edit.token >= end) continue;
        const float v = out[edit.token], most = as_float(0x7f7fffffu);
        if (v == -INFINITY_F) continue;
        out[edit.token] =
            edit.add == -INFINITY_F ? edit.add : fminf(fmaxf(v + edit.add, -most), most) + 0.0f;
    }
}
