// A decode step, with an adapter in its second layer, in which each launch may start before the
// previous one has ended. Until a kernel waits, it cannot see what earlier launches wrote
// (emu_strict). The results must be the same as with ordinary launches.
//
// Blocks count one another wherever they can: two chunks of keys in both layers, products that
// share a K, and three slices of logits, of which tokens are chosen twice. A block of the product
// that makes the logits has more tiles than wait to be joined, if launches start early.
#include "products.h"

#include <algorithm>

namespace {

void must(int failed, const char *error) {
    if (failed) die(error);
}

// Runs a step of two layers. Returns the bits of the sampler's output and of the residual stream.
std::vector<uint8_t> step(int kv_type, bool dependent, uint64_t seed) {
    const uint32_t dim = 48, n_heads = 4, n_kv_heads = 2, head_dim = 16, ffn_dim = 72,
                   vocab = 2 * GPU_SLICE + 90, n = 3, padded = 4, page_count = 21, chunks = 2;
    const uint32_t q_dim = n_heads * head_dim, kv_dim = n_kv_heads * head_dim,
                   out_stride = 5 + 2 * GPU_MAX_TOP;
    const size_t page_bytes = n_kv_heads * head_bytes(kv_type, head_dim);
    Random random{7};
    const Matrix table(GPU_BF16, vocab, dim, random, 1), head(GPU_BF16, vocab, dim, random, 0.3f);
    const Buffer norm(vector_of(dim, pad32(dim), random, 1, 0.2f)),
        cos(vector_of(301 * 8, 301 * 8, random, 0, 1)),
        sin(vector_of(301 * 8, 301 * 8, random, 0, 1));
    Buffer x(4 * n * pad32(dim)), q(4 * n * pad32(q_dim)), y(4 * n * pad32(q_dim)),
        h(std::vector<float>(n * pad32(ffn_dim))), logits(4 * n * pad32(vocab));
    Buffer partial(4 * n * n_heads * chunks * (head_dim + 4)),
        counters(std::vector<uint32_t>(n * n_kv_heads)), fresh(4 * n * 2 * kv_dim),
        head_norms(vector_of(2 * head_dim, 2 * head_dim, random, 1, 0.2f)),
        prepared(2 * padded * 96);
    const Buffer tokens(std::vector<int32_t>{5, 60, 71, -1}),
        rows(std::vector<int32_t>{0, 1, 2, -1}), positions(std::vector<int32_t>{0, 300, 2});
    std::vector<uint32_t> own_place(page_count);
    for (uint32_t i = 0; i < page_count; i++) own_place[i] = i;
    const Buffer slots(std::vector<uint32_t>{0, 19 * 16 + 12, 20 * 16 + 2, GPU_NO_SLOT}),
        row_pages(std::vector<uint32_t>{0, 1, 20}), pages(own_place);
    // The scratch of the second layer, where four blocks share a K: the counters, and the sums of
    // at most two such groups of blocks.
    const uint32_t splits = 4;
    Buffer scratch(std::vector<uint8_t>(GPU_SPLIT_BELOW * 4 + 2 * splits * 512 * 16));
    SampleRow row = {};
    row.given = GPU_DRAW, row.n_tokens = vocab, row.history = GPU_NO_HISTORY, row.penalty = 1,
    row.top_p = 0xffffffffu, row.min_low = 1;
    std::vector<SampleRow> all(padded, row);
    all[n].given = GPU_NO_ROW;
    const Buffer greedy(all);
    // Of these rows the first is drawn at temperature 1, and the last is scored.
    SampleRow &drawn = all[0];
    drawn.halvings = 1.44269502f, drawn.high = 0.693145752f, drawn.low = 1.42860677e-6f;
    drawn.inverse = 1, drawn.top_p = 0xe0000000u, drawn.draw = 1 << 23;
    all[2].scored = 1, all[2].n_top = 4;
    // The last two are changed: token 7 of the one gets 90 more, and the other has no odd ids.
    all[1].n_edits = 1, all[2].mask = 1;
    const Buffer choices(all), edits(std::vector<SampleEdit>{{7, 90}}),
        masks(std::vector<uint32_t>(tiles(vocab, 32), 0x55555555u)),
        possible(std::vector<uint32_t>(padded, 0));
    Buffer changed(4 * n * pad32(vocab));
    const uint32_t n_slices = tiles(vocab, GPU_SLICE);
    Buffer first(std::vector<uint32_t>(n * out_stride)), out(std::vector<uint32_t>(n * out_stride)),
        slices(n * n_slices * sizeof(SampleSlice));
    std::vector<Buffer> caches;
    std::vector<Matrix> weights;
    std::vector<uint8_t> earlier(page_count * page_bytes);
    for (int i = 0; i < 4; i++) {
        for (size_t at = 0; at + 4 <= earlier.size(); at += 4) {
            float v = random.normal() * 0.2f;
            if (kv_type == GPU_INT8 && at % (page_bytes / n_kv_heads) < 16 * head_dim)
                memset(&earlier[at], 100 + (int)random.below(50), 4);
            else
                memcpy(&earlier[at], &v, 4);
        }
        caches.emplace_back(earlier);
    }
    for (int layer = 0; layer < 2; layer++) {
        weights.emplace_back(layer ? GPU_INT4 : GPU_BF16, q_dim + 2 * kv_dim, dim, random, 0.3f);
        weights.emplace_back(layer ? GPU_INT8 : GPU_BF16, dim, q_dim, random, 0.3f);
        weights.emplace_back(layer ? GPU_NF4 : GPU_BF16, 2 * ffn_dim, dim, random, 0.3f);
        weights.emplace_back(layer ? GPU_INT8 : GPU_BF16, dim, ffn_dim, random, 0.3f);
    }
    // An adapter of all matrices of the second layer. Rows 0 and 2 have it.
    const uint32_t rank = 8, rows_of[7] = {q_dim, kv_dim, kv_dim, dim, ffn_dim, ffn_dim, dim},
                   cols_of[7] = {dim, dim, dim, q_dim, dim, dim, ffn_dim};
    std::vector<Matrix> numbers;
    std::vector<AdapterPart> parts;
    for (uint32_t i = 0; i < 7; i++) {
        numbers.emplace_back(GPU_BF16, rank, cols_of[i], random, 0.3f);
        // A row of B has no padding.
        numbers.emplace_back(GPU_BF16, rows_of[i] * rank / 32, 32, random, 0.3f);
    }
    for (uint32_t i = 0; i < 7; i++)
        parts.push_back(AdapterPart{
            numbers[2 * i].device.as<void>(), numbers[2 * i + 1].device.as<void>(), rank, 0.5f});
    const Buffer adapter(parts), adapters(std::vector<uint64_t>{adapter.at, 0, adapter.at, 0});
    const auto *of_rows = adapters.as<const AdapterPart *>();
    Buffer thin(4 * padded * GPU_THIN), sums(4 * padded * pad32(2 * ffn_dim));
    char error[600];
    auto run = [&](const std::string &kernel, const auto &p, unsigned gx, unsigned gy, unsigned gz,
                   unsigned block, size_t shared, bool first = false) {
        const unsigned grid[] = {gx, gy, gz}, blocks[] = {block, 1, 1};
        auto launch = dependent && !first ? emu_launch_dependent : emu_launch_clusters;
        must(launch(kernel.c_str(), &p, sizeof p, grid, blocks, shared, 1, seed++, error,
                 sizeof error),
            error);
    };
    // Launches a product of `pairs` pairs of weight rows, with `of_block` tiles for a block of few
    // rows. In the second layer, a product with a norm gets its rows from prepare, which reads
    // `from`.
    auto product = [&](const char *op, const Matrix &w, uint32_t pairs, bool batch, auto &p,
                       auto &from, auto &stride, const Buffer *norms, uint32_t of_block = 2) {
        if (batch && norms) {
            const int type = quantised(w.type) ? GPU_F16 : w.type;
            const PrepareParams ready = {prepared.as<void>(), (const float *)from,
                norms->as<float>(), rows.as<int32_t>(), padded, w.cols, stride, pad32(w.cols),
                1e-5f, 0, quantised(w.type) ? (uint32_t)GPU_F16_FINITE : (uint32_t)type, 0};
            run(std::string("prepare_") + name_of(type), ready, padded, 1, 1, 256, 32);
            from = prepared.as<void>(), stride = pad32(w.cols);
        }
        run(std::string(op) + (batch ? "batch_" : "") + name_of(w.type), p,
            batch ? 1 : tiles(pairs, 8 * of_block), batch ? tiles(pairs, GPU_BATCH_PAIRS) : 1,
            batch ? splits : 1, 256,
            batch ? batch_shared(w.type, 16, splits)
                  : few_shared(w.type, w.cols, padded, of_block, norms));
    };

    // Launches the kernels before and behind a product of the second layer.
    auto adapt_in = [&](const void *from, uint32_t type, uint32_t cols, uint32_t first,
                        uint32_t n) {
        run("adapt_in_bf16",
            AdaptInParams{thin.as<float>(), from, type == GPU_F32 ? norm.as<float>() : nullptr,
                of_rows, padded, cols, pad32(cols), type, 0, first, n, rank, 1e-5f, 0},
            n * rank / 4, padded, 1, 256, GPU_ADAPT_SHARED);
    };
    auto adapt_out = [&](float *to, uint32_t stride, uint32_t n, uint32_t first) {
        const bool is_qkv = first == 0;
        run("adapt_out_bf16",
            AdaptOutParams{to, is_qkv ? fresh.as<float>() : nullptr, thin.as<float>(), of_rows,
                padded, n, stride, 2 * kv_dim, is_qkv ? q_dim : n, is_qkv ? q_dim + kv_dim : n,
                first, 1},
            tiles(n, 256), padded, 1, 256, 0);
    };

    emu_strict(dependent);
    run("embed_bf16",
        EmbedParams{x.as<float>(), table.device.as<void>(), tokens.as<int32_t>(), padded, dim,
            pad32(dim), table.stride, 0, table.rows},
        padded, 1, 1, 128, 0, true);
    for (int layer = 0; layer < 2; layer++) {
        const Matrix *w = &weights[layer * 4];
        const Buffer &k = caches[layer * 2], &v = caches[layer * 2 + 1];
        // In the second layer, heads have norms.
        const bool scaled = kv_type == GPU_INT8 || layer == 1;
        float *k_to = scaled ? fresh.as<float>() : k.as<float>(),
              *v_to = scaled ? fresh.as<float>() + kv_dim : v.as<float>();
        const bool batch = layer == 1;
        QkvParams qkv = {q.as<float>(), k_to, v_to, x.as<void>(), norm.as<float>(),
            w[0].device.as<void>(), nullptr, cos.as<float>(), sin.as<float>(), rows.as<int32_t>(),
            positions.as<int32_t>(), slots.as<uint32_t>(), scratch.as<void>(), padded, dim,
            pad32(dim), w[0].stride, pad32(q_dim), n_heads, n_kv_heads, head_dim, head_dim,
            (uint32_t)kv_type, 1e-5f, splits, 0, w[0].rows, (uint32_t)layer, 0};
        if (layer == 1) adapt_in(x.as<void>(), GPU_F32, dim, 0, 3);
        product("qkv_", w[0], w[0].rows / 2, batch, qkv, qkv.x, qkv.x_stride, &norm);
        if (layer == 1) adapt_out(q.as<float>(), pad32(q_dim), q_dim + 2 * kv_dim, 0);
        AppendParams append = {};
        append.k_pages = k.as<void>(), append.v_pages = v.as<void>();
        append.fresh = fresh.as<float>(), append.slots = slots.as<uint32_t>();
        append.n_rows = padded, append.n_kv_heads = n_kv_heads;
        append.head_dim = append.head_stride = head_dim;
        if (layer == 1)
            append.q = q.as<float>(), append.q_norm = head_norms.as<float>(),
            append.k_norm = append.q_norm + head_dim, append.cos = qkv.cos, append.sin = qkv.sin,
            append.tokens = tokens.as<int32_t>(), append.positions = qkv.positions,
            append.n_heads = n_heads, append.q_stride = qkv.q_stride, append.eps = 1e-5f;
        if (scaled)
            run(std::string("append_") + name_of(kv_type), append,
                2 * n_kv_heads + (layer == 1 ? n_heads : 0), padded, 1, 32, 0);
        run(std::string("attend_") + name_of(kv_type),
            AttendParams{y.as<void>(), q.as<float>(), k.as<void>(), v.as<void>(),
                partial.as<float>(), counters.as<uint32_t>(), rows.as<int32_t>(),
                positions.as<int32_t>(), row_pages.as<uint32_t>(), pages.as<uint32_t>(), padded,
                n_heads, n_kv_heads, head_dim, head_dim, pad32(q_dim), pad32(q_dim), chunks, 0.25f,
                (uint32_t)(layer ? GPU_F16 : GPU_BF16), layer ? 200u : 0, n_heads / n_kv_heads},
            n_kv_heads, chunks, padded, attend_threads(kv_type), attend_shared(kv_type, head_dim));
        MatmulAddParams wo = {x.as<float>(), y.as<void>(), w[1].device.as<void>(), nullptr,
            rows.as<int32_t>(), scratch.as<void>(), padded, dim, q_dim, pad32(dim), pad32(q_dim),
            w[1].stride, splits, 0, 1, 0};
        if (layer == 1) adapt_in(y.as<void>(), GPU_F16, q_dim, 3, 1);
        product("matmul_add_", w[1], dim / 2, batch, wo, wo.y, wo.y_stride, nullptr);
        if (layer == 1) adapt_out(x.as<float>(), pad32(dim), dim, 3);
        FfnUpParams up = {h.as<void>(), x.as<void>(), norm.as<float>(), w[2].device.as<void>(),
            rows.as<int32_t>(), scratch.as<void>(), padded, ffn_dim, dim, pad32(dim), w[2].stride,
            pad32(ffn_dim), 1e-5f, splits, (uint32_t)(layer ? GPU_F16 : GPU_BF16), 0, nullptr};
        if (layer == 1) {
            // Gate and up are launched as a q before RoPE.
            adapt_in(x.as<void>(), GPU_F32, dim, 4, 2);
            QkvParams raw = qkv;
            raw.q = sums.as<float>(), raw.x = x.as<void>(), raw.w = w[2].device.as<void>();
            raw.x_stride = pad32(dim), raw.w_stride = w[2].stride,
            raw.q_stride = pad32(2 * ffn_dim);
            raw.n_heads = ffn_dim, raw.n_kv_heads = 0, raw.head_dim = raw.head_stride = 2;
            raw.n = 2 * ffn_dim, raw.raw = 1;
            product("qkv_", w[2], ffn_dim, batch, raw, raw.x, raw.x_stride, &norm);
            run("adapt_up_bf16",
                AdaptUpParams{h.as<void>(), sums.as<float>(), thin.as<float>(), of_rows,
                    rows.as<int32_t>(), padded, ffn_dim, pad32(2 * ffn_dim), pad32(ffn_dim),
                    GPU_F16, 0, 4, 0},
                tiles(ffn_dim, 256), padded, 1, 256, 0);
            adapt_in(h.as<void>(), GPU_F16, ffn_dim, 6, 1);
        } else
            product("ffn_up_", w[2], ffn_dim, batch, up, up.x, up.x_stride, &norm);
        MatmulAddParams down = {x.as<float>(), h.as<void>(), w[3].device.as<void>(), nullptr,
            rows.as<int32_t>(), scratch.as<void>(), padded, dim, ffn_dim, pad32(dim),
            pad32(ffn_dim), w[3].stride, splits, 0, 0.5f, 0};
        product("matmul_add_", w[3], dim / 2, batch, down, down.y, down.y_stride, nullptr);
        if (layer == 1) adapt_out(x.as<float>(), pad32(dim), dim, 6);
    }
    LogitsParams last = {logits.as<float>(), x.as<void>(), norm.as<float>(), head.device.as<void>(),
        rows.as<int32_t>(), nullptr, padded, vocab, dim, pad32(dim), head.stride, pad32(vocab),
        1e-5f, 0};
    product("logits_", head, vocab / 2, false, last, last.x, last.x_stride, &norm,
        dependent ? 2 * GPU_FEW_TILES + 1 : 2);
    SampleParams picks = {first.as<uint32_t>(), logits.as<float>(), greedy.as<SampleRow>(), nullptr,
        tokens.as<int32_t>(), slices.as<SampleSlice>(), counters.as<uint32_t>(), nullptr, nullptr,
        padded, vocab, pad32(vocab), 3, out_stride, 1.44269502f, 0.693145752f, 1.42860677e-6f, 1,
        0};
    run("sample_max", picks, n_slices, padded, 1, 512, GPU_SAMPLE_MAX_SHARED);
    picks.out = out.as<uint32_t>(), picks.rows = choices.as<SampleRow>();
    picks.changed = changed.as<float>(), picks.possible = possible.as<uint32_t>();
    run("change",
        ChangeParams{changed.as<float>(), picks.logits, picks.rows, nullptr, edits.as<SampleEdit>(),
            masks.as<uint32_t>(), picks.possible, padded, vocab, pad32(vocab), 3, tiles(vocab, 32),
            0},
        n_slices, padded, 1, 512, 0);
    run("sample_max", picks, n_slices, padded, 1, 512, GPU_SAMPLE_MAX_SHARED);
    run("sample_draw", picks, n_slices, padded, 1, 512, GPU_SAMPLE_DRAW_SHARED);
    emu_strict(0);
    auto counted = counters.get<uint32_t>(), shared_k = scratch.get<uint32_t>();
    counted.insert(counted.end(), shared_k.begin(), shared_k.begin() + GPU_SPLIT_BELOW);
    for (uint32_t count : counted) CHECK(count == 0, "a kernel left a counter at %u", count);
    const auto values = logits.get<float>();
    const auto picked = first.get<int32_t>(), again = out.get<int32_t>();
    for (uint32_t i = 0; i < n && !dependent; i++) {
        const float *of = &values[i * pad32(vocab)];
        const int32_t best = (int32_t)(std::max_element(of, of + vocab) - of);
        int32_t even = 0;
        for (uint32_t id = 0; id < vocab; id += 2)
            if (of[id] > of[even]) even = (int32_t)id;
        const int32_t then = again[i * out_stride];
        CHECK(picked[i * out_stride] == best && (i == 0 || then == (i == 1 ? 7 : even)),
            "row %u: token %d, then %d, but %d has the largest logit", i, picked[i * out_stride],
            then, best);
    }
    std::vector<uint8_t> bits;
    for (const Buffer *part : {&first, &out, &x, &logits}) {
        const auto more = part->get<uint8_t>();
        bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
}

void chain() {
    if (__tsan_init) {
        puts("   hides memory behind TSan's back: not under TSan");
        return;
    }
    for (int kv_type : {GPU_F32, GPU_INT8}) {
        const std::vector<uint8_t> want = step(kv_type, false, 1);
        for (int seed = 2; seed <= 1 + schedules(); seed++)
            CHECK(step(kv_type, true, (uint64_t)seed * 100) == want,
                "cache of %s: started early, a kernel gives other bits", name_of(kv_type));
    }
}

// The same for a step of 70 rows of a prompt, by kernels for compute capability 9.0. Returns the
// bits of the residual stream and of the caches.
std::vector<uint8_t> prompt_step(int type, bool dependent, uint64_t seed) {
    const uint32_t dim = 128, n_heads = 4, n_kv_heads = 2, head_dim = 32, ffn_dim = 160, n = 70,
                   page_count = 5, of_head = GPU_PAGE * head_dim;
    const int rounded = prepared_type(type);
    const bool codes = quantised(type);
    Random random{9};
    const Matrix table(GPU_BF16, n, dim, random, 1);
    const Buffer norm(vector_of(dim, dim, random, 1, 0.2f)),
        cos(vector_of(n * 16, n * 16, random, 0, 1)), sin(vector_of(n * 16, n * 16, random, 0, 1));
    Buffer x(4 * n * dim), q(4 * n * dim), in(2 * n * dim), y(2 * n * dim), h(2 * n * ffn_dim);
    std::vector<int32_t> of_rows(n);
    std::vector<uint32_t> places(n), page_list(page_count);
    for (uint32_t i = 0; i < n; i++) of_rows[i] = (int32_t)i, places[i] = i;
    for (uint32_t i = 0; i < page_count; i++) page_list[i] = i;
    const Buffer rows(of_rows), slots(places), pages(page_list),
        list(std::vector<AttendTile>{{0, n, 0, 0}});
    std::vector<Buffer> caches;
    std::vector<Matrix> weights;
    for (int layer = 0; layer < 2; layer++) {
        weights.emplace_back(type, dim + 2 * n_kv_heads * head_dim, dim, random, 0.1f);
        weights.emplace_back(type, dim, dim, random, 0.1f);
        weights.emplace_back(type, 2 * ffn_dim, dim, random, 0.1f);
        weights.emplace_back(type, dim, ffn_dim, random, 0.1f);
        for (int i = 0; i < 2; i++) caches.emplace_back(2 * page_count * n_kv_heads * of_head);
    }
    char error[600];
    const auto run = [&](const std::string &kernel, const auto &p, unsigned gx, unsigned gy,
                         unsigned threads, size_t shared) {
        const unsigned grid[] = {gx, gy, 1}, block[] = {threads, 1, 1};
        must((early ? emu_launch_dependent : emu_launch_clusters)(
                 kernel.c_str(), &p, sizeof p, grid, block, shared, 1, seed++, error, sizeof error),
            error);
    };
    const auto prepare = [&] {
        run(std::string("prepare_") + name_of(rounded),
            PrepareParams{in.as<void>(), x.as<float>(), norm.as<float>(), rows.as<int32_t>(), n,
                dim, dim, dim, 1e-5f, codes, codes ? (uint32_t)GPU_F16_FINITE : (uint32_t)rounded,
                0},
            n, 1, 256, 32);
    };
    const auto add = [&](const Buffer &from, const Matrix &w) {
        const MatmulAddParams p = {x.as<float>(), nullptr, w.device.as<void>(), nullptr,
            rows.as<int32_t>(), nullptr, n, dim, w.cols, dim, w.cols, w.stride, 1, 0, 1, 0};
        launch_hopper(
            std::string("matmul_add_hopper") + suffix(type), p, from, n, w, dim, 256, n, seed++);
    };
    emu_strict(dependent);
    run("embed_bf16",
        EmbedParams{x.as<float>(), table.device.as<void>(), rows.as<int32_t>(), n, dim, dim,
            table.stride, 0, n},
        n, 1, 128, 0);
    early = dependent;
    for (int layer = 0; layer < 2; layer++) {
        const Matrix *w = &weights[layer * 4];
        const Buffer &k = caches[layer * 2], &v = caches[layer * 2 + 1];
        prepare();
        launch_hopper(std::string("qkv_hopper") + suffix(type),
            QkvParams{q.as<float>(), k.as<void>(), v.as<void>(), nullptr, nullptr,
                w[0].device.as<void>(), nullptr, cos.as<float>(), sin.as<float>(),
                rows.as<int32_t>(), rows.as<int32_t>(), slots.as<uint32_t>(), nullptr, n, dim, dim,
                w[0].stride, dim, n_heads, n_kv_heads, head_dim, head_dim, GPU_BF16, 1e-5f, 1, 0,
                w[0].rows, 0, 0},
            in, n, w[0], w[0].rows, 256, n, seed++);
        AttendHopperParams attend = {};
        attend.p = {y.as<void>(), q.as<float>(), k.as<void>(), v.as<void>(), list.as<AttendTile>(),
            rows.as<int32_t>(), pages.as<uint32_t>(), 1, n_heads, n_kv_heads, head_dim, head_dim,
            dim, dim, 0.2f, (uint32_t)rounded, codes, 0, 0};
        attend.end = page_count * n_kv_heads * GPU_PAGE;
        for (auto [map, cache] : {std::pair{&attend.k, &k}, std::pair{&attend.v, &v}})
            must(emu_tensor_map(map, cache->at, head_dim, attend.end, 2 * head_dim, 64, GPU_PAGE,
                     error, sizeof error),
                error);
        run("attend_hopper_bf16_64", attend, n_heads, 1, 384, 1280 * 64 + 128);
        add(y, w[1]);
        prepare();
        launch_hopper(std::string("ffn_up_hopper") + suffix(type),
            FfnUpParams{h.as<void>(), nullptr, nullptr, w[2].device.as<void>(), rows.as<int32_t>(),
                nullptr, n, ffn_dim, dim, dim, w[2].stride, ffn_dim, 1e-5f, 1, (uint32_t)rounded, 0,
                nullptr},
            in, n, w[2], ffn_dim, 128, n, seed++);
        add(h, w[3]);
    }
    early = false;
    emu_strict(0);
    std::vector<uint8_t> bits = x.get<uint8_t>();
    for (const Buffer &cache : caches) {
        const auto more = cache.get<uint8_t>();
        bits.insert(bits.end(), more.begin(), more.end());
    }
    return bits;
}

void chain_prompt() {
    if (__tsan_init) {
        puts("   hides memory behind TSan's back: not under TSan");
        return;
    }
    for (int type : {GPU_BF16, GPU_INT8}) {
        const std::vector<uint8_t> want = prompt_step(type, false, 1);
        for (int how = 0; how < 3; how++) {
            half_tiles = how > 0, alone = how > 1, paired = true;
            for (int seed = 1; seed <= (how == 1 ? 1 : schedules()); seed++)
                CHECK(prompt_step(type, true, (uint64_t)seed * 100) == want,
                    "prompt, %s: started early, a kernel gives other bits", name_of(type));
            half_tiles = alone = paired = false;
        }
    }
}

} // namespace

extern const Test CHAIN[];
const Test CHAIN[] = {{"chain", chain}, {"chain_prompt", chain_prompt}, {nullptr, nullptr}};
