// Compares what the ranks of a model do together with scalar twins: bit for bit, because the order
// of the ranks is a promise.
#include "harness.h"

#include <algorithm>
#include <thread>

namespace {

const float GUARD = -7;

void reduce(uint32_t ranks, uint32_t n, bool adds) {
    Random random{ranks * 1000 + n};
    std::vector<float> x(n + 4, GUARD), own(n + 4, GUARD), parts((size_t)ranks * n);
    for (uint32_t i = 0; i < n; i++) x[i] = random.normal(), own[i] = random.normal();
    // Parts of very different sizes, so that another order rounds otherwise.
    for (float &v : parts) v = random.normal() * (random.below(3) ? 1.0f : 3e4f);
    parts[0] = INFINITY, x[1] = NAN;
    auto got = view_as<float>(on_schedules("reduce", [&](uint64_t seed) {
        Buffer xd(x), od(own), pd(parts);
        const ReduceParams p = {
            xd.as<float>(), pd.as<float>(), od.as<float>(), n, ranks, (uint32_t)adds};
        launch("reduce", p, tiles(n, 1024), 1, 1, 256, 0, seed);
        auto bytes = xd.get<uint8_t>(), left = od.get<uint8_t>();
        bytes.insert(bytes.end(), left.begin(), left.end());
        return bytes;
    }));
    const float *sums = got.data(), *left = sums + n + 4;
    for (uint32_t i = 0; i < n + 4; i++) {
        if (i >= n) {
            CHECK(sums[i] == GUARD && left[i] == GUARD, "reduce writes number %u of %u", i, n);
            continue;
        }
        float want = parts[i];
        for (uint32_t rank = 1; rank < ranks; rank++) want += parts[(size_t)rank * n + i];
        if (adds) want = x[i] + want;
        CHECK(same_bits(&sums[i], &want, 1) || (std::isnan(want) && std::isnan(sums[i])),
            "reduce of %u ranks, number %u: %.9g, twin says %.9g", ranks, i, sums[i], want);
        CHECK(left[i] == 0, "reduce leaves %g", left[i]);
    }
}

void test_reduce() {
    for (uint32_t ranks : {2u, 3u, 4u, 5u, 8u, 64u})
        for (uint32_t n : {4u, 32u, 1020u, 1024u, 1028u, 3072u})
            for (bool adds : {false, true}) reduce(ranks, n, adds);
}

// What one rank has for sums through peers' memory.
struct Peer {
    std::vector<Buffer> parts;
    Buffer turns, turn, x;
    Peer(uint32_t most, float start)
        : turns(std::vector<uint32_t>(GPU_PEERS)), turn(std::vector<uint32_t>(GPU_PEER_BLOCKS)),
          x(std::vector<float>(most + 4, start)) {
        for (int i = 0; i < 3; i++) parts.emplace_back(std::vector<float>(most + 4));
    }
};

// Number `i` of what `rank` adds in a turn. The sizes differ so much that another order rounds
// otherwise.
float part_of(uint32_t rank, uint32_t turn, uint32_t i) {
    Random random{((uint64_t)turn << 40) + ((uint64_t)rank << 32) + i};
    random.bits();
    const float v = random.normal();
    return random.below(3) ? v : v * 3e4f;
}

// Steps of several sums, each rank on a thread of its own: the first part of a step, then two in
// turns. `lengths` has the numbers of each step; the first launch is one that counts from `before`.
void reduce_peers(uint32_t ranks, const std::vector<uint32_t> &lengths, uint32_t before) {
    const uint32_t most = *std::max_element(lengths.begin(), lengths.end()), sums = 4;
    for (int schedule = 0; schedule < schedules(); schedule++) {
        std::vector<Peer> peers;
        for (uint32_t rank = 0; rank < ranks; rank++) peers.emplace_back(most, GUARD);
        for (Peer &peer : peers) {
            peer.turn.put(std::vector<uint32_t>(GPU_PEER_BLOCKS, before));
            peer.turns.put(std::vector<uint32_t>(GPU_PEERS, before));
        }
        Buffer word(std::vector<uint32_t>(1));
        auto run = [&](uint32_t rank) {
            Peer &own = peers[rank];
            std::vector<float> want(most, GUARD);
            uint32_t turn = 0;
            for (uint32_t n : lengths)
                for (uint32_t sum = 0; sum < sums; sum++, turn++) {
                    // The first part is overwritten, to the others is added.
                    const uint32_t at = sum == 0 ? 0 : 1 + (sum - 1) % 2, next = at == 1 ? 2 : 1;
                    std::vector<float> part = own.parts[at].get<float>();
                    for (uint32_t i = 0; i < n; i++) {
                        CHECK(at == 0 || part[i] == 0, "reduce_peers leaves %g", part[i]);
                        part[i] = part_of(rank, turn, i);
                    }
                    own.parts[at].put(part);
                    ReducePeersParams p = {};
                    p.x = own.x.as<float>();
                    for (uint32_t r = 0; r < ranks; r++) {
                        p.parts[r] = peers[r].parts[at].as<float>();
                        p.turns[r] = peers[r].turns.as<uint32_t>();
                    }
                    p.turn = own.turn.as<uint32_t>(), p.next = own.parts[next].as<float>();
                    p.given_up = word.as<uint32_t>(), p.n = n;
                    p.rank = rank, p.ranks = ranks, p.adds = sum > 0;
                    launch("reduce_peers", p, GPU_PEER_BLOCKS, 1, 1, 256, 0,
                        (uint64_t)schedule * 1000 + turn * ranks + rank);
                    const std::vector<float> got = own.x.get<float>();
                    for (uint32_t i = 0; i < n; i++) {
                        float all = part_of(0, turn, i);
                        for (uint32_t r = 1; r < ranks; r++) all += part_of(r, turn, i);
                        want[i] = sum > 0 ? want[i] + all : all;
                        CHECK(same_bits(&got[i], &want[i], 1),
                            "reduce_peers of %u ranks, sum %u, number %u: %.9g, twin says %.9g",
                            ranks, turn, i, got[i], want[i]);
                    }
                    for (uint32_t i = n; i < most + 4; i++)
                        CHECK(got[i] == (i < most ? want[i] : GUARD),
                            "reduce_peers writes number %u of %u", i, n);
                }
        };
        std::vector<std::thread> threads;
        for (uint32_t rank = 0; rank < ranks; rank++) threads.emplace_back(run, rank);
        for (std::thread &thread : threads) thread.join();
    }
}

// The host gives up: a launch whose peers never come ends.
void reduce_peers_alone() {
    Peer peer(4, 0), other(4, 0);
    Buffer word(std::vector<uint32_t>(1));
    ReducePeersParams p = {};
    p.x = peer.x.as<float>();
    for (uint32_t r = 0; r < 2; r++) {
        p.parts[r] = (r ? other : peer).parts[1].as<float>();
        p.turns[r] = (r ? other : peer).turns.as<uint32_t>();
    }
    p.turn = peer.turn.as<uint32_t>(), p.next = peer.parts[2].as<float>();
    p.given_up = word.as<uint32_t>(), p.n = 4, p.ranks = 2;
    std::thread host([&] {
        usleep(20000);
        __atomic_store_n(word.as<uint32_t>(), 1u, __ATOMIC_RELEASE);
    });
    launch("reduce_peers", p, GPU_PEER_BLOCKS, 1, 1, 256, 0, 1);
    host.join();
    CHECK(other.turns.get<uint32_t>()[0] == 1, "reduce_peers has not told its peer");
}

void test_reduce_peers() {
    for (uint32_t ranks : {2u, 3u, 4u, 8u}) reduce_peers(ranks, {4, 1020, 1028, 32, 4}, 0);
    // Many blocks in other orders on each device; more numbers than threads; turns that begin anew.
    reduce_peers(2, {20480, 65540}, 0xfffffffcu);
    reduce_peers_alone();
}

void gather(const std::vector<uint32_t> &widths, uint32_t rows, uint32_t out_stride) {
    const uint32_t ranks = (uint32_t)widths.size();
    std::vector<uint32_t> firsts = {0};
    uint32_t stride = 0;
    for (uint32_t width : widths) {
        firsts.push_back(firsts.back() + width);
        stride = pad32(width) > stride ? pad32(width) : stride;
    }
    const uint32_t columns = firsts.back();
    if (out_stride == 0) out_stride = columns;
    Random random{columns};
    std::vector<float> shares((size_t)ranks * rows * stride, NAN);
    for (uint32_t i = 0; i < ranks * rows; i++)
        for (uint32_t j = 0; j < widths[i / rows]; j++) shares[i * stride + j] = random.normal();
    auto got = view_as<float>(on_schedules("gather", [&](uint64_t seed) {
        Buffer out(std::vector<float>(rows * out_stride, GUARD)), sd(shares), fd(firsts);
        const GatherParams p = {
            out.as<float>(), sd.as<float>(), fd.as<uint32_t>(), rows, ranks, stride, out_stride};
        launch("gather", p, tiles(stride, 1024), rows, ranks, 256, 0, seed);
        return out.get<uint8_t>();
    }));
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t j = 0; j < out_stride; j++) {
            uint32_t rank = 0;
            while (rank < ranks && firsts[rank + 1] <= j) rank++;
            const float y = got[row * out_stride + j],
                        want = j < columns ? shares[(rank * rows + row) * stride + j - firsts[rank]]
                                           : GUARD;
            CHECK(y == want, "gather [%u, %u]: %g, twin says %g", row, j, y, want);
        }
}

void test_gather() {
    for (uint32_t rows : {1u, 3u}) {
        gather({16, 16}, rows, 0);
        gather({48, 32, 19}, rows, 0);
        gather({48, 32, 19}, rows, 128);
        gather({1040, 1024}, rows, pad32(2064));
        gather(std::vector<uint32_t>(64, 17), rows, 0);
    }
}

// The table of each rank has its own rows of the vocabulary, and nothing behind them.
void embed_ranks(int type, uint32_t dim) {
    const std::vector<uint32_t> firsts = {0, 5, 6, 11};
    const std::vector<int32_t> tokens = {0, 4, 5, 6, 10, -1, 5};
    const uint32_t rows = (uint32_t)tokens.size();
    for (size_t rank = 0; rank + 1 < firsts.size(); rank++) {
        const uint32_t first = firsts[rank], n = firsts[rank + 1] - first;
        Random random{rank + 1};
        Matrix table(type, n, dim, random, 1);
        Buffer ids(tokens);
        auto got = view_as<float>(on_schedules("embed", [&](uint64_t seed) {
            Buffer x(std::vector<float>(rows * pad32(dim), GUARD));
            const EmbedParams p = {x.as<float>(), table.device.as<void>(), ids.as<int32_t>(), rows,
                dim, pad32(dim), table.stride, first, n};
            launch(std::string("embed_") + name_of(type), p, rows, 1, 1, 128, 0, seed);
            return x.get<uint8_t>();
        }));
        for (uint32_t i = 0; i < rows; i++)
            for (uint32_t j = 0; j < pad32(dim); j++) {
                const uint32_t row = (uint32_t)tokens[i] - first;
                const double want = tokens[i] < 0 || j >= dim ? GUARD
                                    : row < n                 ? (float)table.row(row)[j]
                                                              : 0;
                CHECK(got[i * pad32(dim) + j] == want,
                    "embed %s [%u, %u] of rank %zu: %g, twin says %g", name_of(type), i, j, rank,
                    got[i * pad32(dim) + j], want);
            }
    }
}

void test_embed_ranks() {
    for (int type : {GPU_F32, GPU_BF16, GPU_INT8})
        for (uint32_t dim : {31u, 64u, 300u}) embed_ranks(type, dim);
    for (int type : {GPU_INT4, GPU_K6}) embed_ranks(type, 256);
}

} // namespace

extern const Test RANKS[] = {
    {"reduce", test_reduce},
    {"reduce_peers", test_reduce_peers},
    {"gather", test_gather},
    {"embed_ranks", test_embed_ranks},
    {nullptr, nullptr},
};
