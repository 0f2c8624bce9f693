// Version 7: version 6 without waves. A fixed number of workers, one a multiprocessor, shares all tiles of all rows: each
// takes a run of them (schedule.cu), going from a row to the next without emptying its pipeline.
//
// A worker is M_TILES x 16 heads (blockIdx.x says which) and a run of tiles of TILE entries (blockIdx.y).
//   score warp w   multiplies dims 128 (w & 3) .. +127 of half the tile's entries for all heads (queries stay in
//                  M_TILES x 32 registers), then does the softmax of heads w and w + 8 of each 16
//   value warp w   owns dims 64 w .. 64 w + 63 of all heads (w = 7: the rotary ones), and fetches an eighth of a tile
// Where the entries of a tile lie is written into a ring, a tile each by the value warps in turn, early enough that nobody
// waits for it: indices are loaded eight tiles before. Score warps write beside the weights of a tile whether it ends a row.
//
// Who waits for whom, by tile i (all barriers count tiles from the start of the launch):
//   entries full   by copies of value warps      score and value warps wait before they read tile i
//   weights full   by score warps                value warps wait; also covers growth, totals and words
//   weights empty  by value warps, after tile i  score warps wait before weights of i + 2; value warps before they fetch
//                                                tile i + STAGES; also covers the ring's place and mask of i + STAGES
// Totals and words have four places: place i is written again for i + 4, after all value warps left i + 1.
//
// Shared memory (bytes)      M 1, TILE 64, 4 stages   M 2, TILE 64, 4 stages   M 1, TILE 32, 4 stages   M 2, TILE 32, 3 stages
//   entries                       153,600                  153,600                   76,800                   57,600
//   scores  M x 4 x TILE/8 x 576   18,432                   36,864                    9,216                   18,432
//   weights 2 x heads x pitch       4,608                    9,216                    2,560                    5,120
//   factors 8 x TILE x 2            1,024                    1,024                      512                      512
//   ring    4 x TILE x 16           4,096                    4,096                    2,048                    2,048
//   the rest                        1,344                    2,240                    1,184                    2,040
// A block may have 101,376 on sm_120 and 232,448 on sm_90: tiles of 32 are for the former.
//
// Taught (H200, window 128 + top-k 512; version 6 in brackets, in one run): 16 heads 33 us at 133 rows (42), 32 heads 33.5 at
// 80 (42.5), 64 heads 54.4 at 80 (63.3); one long list of 8,192 among 128 rows 32 us (204). Where all rows fit the device
// at once it is 1 to 3 us slower. Two warps that placed tiles for all held up the score warps at their barriers (50.7 us at 256
// rows, 45.7 since value warps take turns); masked entries that all read one address of zeros cost three times the time.
// What bounds it now: a tile's scores, then its softmax, one after the other in the same warps, 1.55 us; without values it
// is 6 to 10 % quicker, without copies 8 to 11 %. One arrival a warp and the softmax of a tile between the scores of the next
// (ARRIVE_ONCE, SCORES_AHEAD) were no remedy. levers/gpu-decode-*.toml have the rest.
//
// Softmax weights are f16 relative to a maximum that follows only in steps of 2^4; those below 2^-24 of the largest
// vanish. Exponents of one group may lie up to 16 below the largest so far on the fast path; a tile that has others
// takes the slow path (float32, any exponent), for that warp alone.
#include "merge.cuh"

#ifndef M_TILES
#define M_TILES 1
#endif
#ifndef TILE
#define TILE 64
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef QUERY_AHEAD   // 1: the next row's queries are copied to shared memory while this row is computed
#define QUERY_AHEAD 1
#endif
#ifndef ARRIVE_ONCE   // 1: one lane of a warp arrives at weights full and empty, not each
#define ARRIVE_ONCE 0
#endif
#ifndef SCORES_AHEAD  // 1: the softmax of a tile runs between the scores of the next; two buffers of scores
#define SCORES_AHEAD 0
#endif
#ifndef ABLATE        // to place the time, with wrong results: 1 no copies but the first, 2 no scores, 4 no values, 8 no softmax
#define ABLATE 0
#endif
#include "cursor.cuh"

constexpr int PITCH = 592;              // 37 x 16: eight rows lie in eight different groups of banks
constexpr int WARPS = 16, THREADS = 32 * WARPS, HEADS = 16 * M_TILES, GROUP = 256;
constexpr int OWN = TILE / 8;           // entries of a tile that a value warp fetches
constexpr int HALVES = TILE / 32;       // also the warps that place entries, one each a lane
constexpr int STAGE_BYTES = TILE * (PITCH + SCALE_BYTES);
constexpr int SCORE_BLOCK = 576;        // 16 heads x 8 entries as the MMA leaves them, 512 bytes, and 64 against conflicts
constexpr int SCORE_BYTES = M_TILES * 4 * (TILE / 8) * SCORE_BLOCK;
constexpr int WEIGHT_PITCH = TILE * 2 + 16, WEIGHT_BYTES = HEADS * WEIGHT_PITCH;
constexpr int PLACES = 4, RING_PLACES = 8, RING_BYTES = TILE * 16;
constexpr int AT_SCORES = STAGES * STAGE_BYTES, AT_WEIGHTS = AT_SCORES + (1 + SCORES_AHEAD) * SCORE_BYTES;
constexpr int AT_FACTORS = AT_WEIGHTS + 2 * WEIGHT_BYTES, AT_RING = AT_FACTORS + 8 * TILE * 2;
constexpr int AT_GROWTH = AT_RING + RING_PLACES * RING_BYTES, AT_TOTALS = AT_GROWTH + 2 * HEADS * 4;
constexpr int AT_TOPS = AT_TOTALS + PLACES * HEADS * 8, AT_CURSORS = AT_TOPS + M_TILES * 4 * 16 * 4;
constexpr int AT_WORDS = AT_CURSORS + 8 * 32, AT_MERGES = AT_WORDS + PLACES * 4;
constexpr int AT_BARRIERS = AT_MERGES + 16;                 // entries full, then weights full and empty
constexpr int AT_FULL = AT_BARRIERS + STAGES * 8, AT_EMPTY = AT_FULL + 16, AT_MASKS = (AT_EMPTY + 31) / 16 * 16;
constexpr int QUERY_PITCH = HEAD_DIMS * 2 + 32;               // four heads lie in four different groups of banks
constexpr int AT_QUERY = AT_MASKS + RING_PLACES * TILE, SHARED_BYTES = AT_QUERY + QUERY_AHEAD * HEADS * QUERY_PITCH;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/decode/variant.rs counts other shared memory");
#endif

#define MINUS_INFINITY __uint_as_float(0xff800000u)
constexpr float GROWTH_STEP = 4.f;      // the maximum follows when a score passes it by more (log2)
constexpr int WEIGHT_BITS = 10;         // weights are at most 2^4; times 2^10 they end at f16's 2^14
constexpr int SPREAD = 16;              // 1.0 at the smallest exponent is then 2^-6: full precision down to 2^-8

// A word for each tile: 0 when its row goes on, otherwise the row and what becomes of its answer.
constexpr u32 ROW_ENDS = 1, IS_PART = 2, IS_FIRST_PART = 4, ROW_SHIFT = 4;

template <int ID>
__device__ __forceinline__ void sync_group() { sync_some<ID, GROUP>(); }

// What this warp read and wrote so far is done with or there, for those who wait.
constexpr int ARRIVALS = ARRIVE_ONCE ? WARPS / 2 : GROUP;
__device__ __forceinline__ void arrive(u32 barrier, int lane) {
    if (ARRIVE_ONCE) warp_arrive(barrier, lane);
    else barrier_arrive(barrier);
}

// Everything both groups of warps know.
struct Block {
    u32 base;
    int lane, w, r, c;      // warp of its group; row and column of an MMA fragment
};

// Scores of one tile for all heads, in shared memory as partial sums over a quarter of the dims each. `meanwhile` runs
// while the first of them are on their way through the MMA units.
template <typename Meanwhile>
__device__ __forceinline__ void scores(const Block& b, const u32 (&query)[M_TILES][2][4][4], u32 i, Meanwhile meanwhile) {
    const int quarter = b.w & 3, token_half = b.w >> 2;
    const u32 slot = i % STAGES;
    const bool rotary = quarter == 3;
    const u32 entries = b.base + slot * STAGE_BYTES;
    barrier_wait(b.base + AT_BARRIERS + slot * 8, (i / STAGES) & 1);
    const u32 keys = entries + (token_half * (TILE / 2) + (b.lane & 7)) * PITCH + (b.lane >> 3) * 16 + quarter * 128;
    const u32 to = b.base + AT_SCORES + SCORES_AHEAD * (i & 1) * SCORE_BYTES + (quarter * (TILE / 8) + token_half * (TILE / 16)) * SCORE_BLOCK + b.lane * 16;
    const u32 scales = entries + TILE * PITCH + (token_half * (TILE / 2) + 2 * b.c) * SCALE_BYTES + 2 * quarter;
    constexpr int AT_ONCE = M_TILES == 1 ? 2 : 1;   // blocks of 8 tokens: four chains of MMA either way
    #pragma unroll
    for (int first = 0; first < TILE / 16; first += AT_ONCE) {
        float part[2][AT_ONCE][M_TILES][4] = {};    // [half of the 128 dims]
        u32 k[AT_ONCE][4], e[AT_ONCE][2];
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            load_matrices(k[n], keys + (first + n) * 8 * PITCH);
            e[n][0] = load_shared_u16(scales + (first + n) * 8 * SCALE_BYTES);
            e[n][1] = load_shared_u16(scales + (first + n) * 8 * SCALE_BYTES + SCALE_BYTES);
        }
        if (ABLATE & 2) {
        } else if (!rotary) {
            u32 l[AT_ONCE][4];
            #pragma unroll
            for (int n = 0; n < AT_ONCE; n++) load_matrices(l[n], keys + 64 + (first + n) * 8 * PITCH);
            #pragma unroll
            for (int j = 0; j < 4; j++)
                #pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    u32 k0, k1, l0, l1;
                    f16x4_of_e4m3x4(k[n][j], k0, k1);
                    f16x4_of_e4m3x4(l[n][j], l0, l1);
                    #pragma unroll
                    for (int m = 0; m < M_TILES; m++) {
                        mma_f16(part[0][n][m], query[m][0][j], k0, k1);
                        mma_f16(part[1][n][m], query[m][1][j], l0, l1);
                    }
                }
        } else {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 l[AT_ONCE][4];
                #pragma unroll
                for (int n = 0; n < AT_ONCE; n++) load_matrices(l[n], keys + 64 + half * 64 + (first + n) * 8 * PITCH);
                #pragma unroll
                for (int j = 0; j < 2; j++)
                    #pragma unroll
                    for (int n = 0; n < AT_ONCE; n++) {
                        const int s = half * 2 + j;
                        u32 k0, k1;
                        f16x4_of_e4m3x4(k[n][s], k0, k1);
                        #pragma unroll
                        for (int m = 0; m < M_TILES; m++) {
                            mma_f16(part[0][n][m], query[m][0][s], k0, k1);
                            mma_bf16(part[1][n][m], query[m][1][s], l[n][2 * j], l[n][2 * j + 1]);
                        }
                    }
            }
        }
        if (first == 0) meanwhile();
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const u32 e0 = e[n][0], e1 = e[n][1];
            const float f0 = float_of_ue8m0(e0 & 255), f1 = float_of_ue8m0(e1 & 255);
            const float g0 = rotary ? 1.f : __uint_as_float((e0 & 0xff00) << 15), g1 = rotary ? 1.f : __uint_as_float((e1 & 0xff00) << 15);
            #pragma unroll
            for (int m = 0; m < M_TILES; m++)
                store_shared_floats(to + (m * 4 * (TILE / 8) + first + n) * SCORE_BLOCK,
                                    part[0][n][m][0] * f0 + part[1][n][m][0] * g0, part[0][n][m][1] * f1 + part[1][n][m][1] * g1,
                                    part[0][n][m][2] * f0 + part[1][n][m][2] * g0, part[0][n][m][3] * f1 + part[1][n][m][3] * g1);
        }
    }
}

struct Softmax {
    float scale, maximum, sum;   // of one head; the sum is over this lane's tokens only
};

// Weights of this lane's head in each 16 heads; lanes with bit 2 have head w + 8, the others head w. All 16-head tiles side
// by side: one after the other is twice the wait.
__device__ __forceinline__ void softmax(const Block& b, Softmax (&head)[M_TILES], u32 i) {
    const int half = (b.lane >> 2) & 1, block = b.lane >> 3;   // tokens 8 block + 2c, + 1, and 32 on
    const u32 from = b.base + AT_SCORES + SCORES_AHEAD * (i & 1) * SCORE_BYTES + block * SCORE_BLOCK + b.w * 64 + b.c * 16 + half * 8;
    float2 s[M_TILES][HALVES];
    float largest[M_TILES], growth[M_TILES];
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        #pragma unroll
        for (int n = 0; n < HALVES; n++) {
            float2 x[4];
            #pragma unroll
            for (int part = 0; part < 4; part++) x[part] = load_shared_float2(from + (m * 4 * (TILE / 8) + part * (TILE / 8) + n * 4) * SCORE_BLOCK);
            s[m][n].x = x[0].x + x[1].x + x[2].x + x[3].x;
            s[m][n].y = x[0].y + x[1].y + x[2].y + x[3].y;
        }
        largest[m] = MINUS_INFINITY;
    }
    #pragma unroll
    for (int n = 0; n < HALVES; n++) {
        const u32 present = load_shared_u16(b.base + AT_MASKS + i % RING_PLACES * TILE + n * 32 + block * 8 + 2 * b.c);
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            s[m][n].x = present & 1 ? s[m][n].x : MINUS_INFINITY;
            s[m][n].y = present & 256 ? s[m][n].y : MINUS_INFINITY;
            largest[m] = fmaxf(largest[m], fmaxf(s[m][n].x, s[m][n].y));
        }
    }
    #pragma unroll
    for (int bit = 0; bit < (ABLATE & 8 ? 0 : 4); bit++)
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) largest[m] = fmaxf(largest[m], __shfl_xor_sync(~0u, largest[m], bit < 2 ? 1 << bit : 2 << bit));
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        largest[m] = fminf(__fmul_rn(largest[m], head[m].scale), 1e30f);
        growth[m] = 1.f;
        if (largest[m] > head[m].maximum + GROWTH_STEP) {
            growth[m] = exp2_approx(head[m].maximum - largest[m]);
            head[m].maximum = largest[m];
        }
        head[m].sum *= growth[m];
        #pragma unroll
        for (int n = 0; n < HALVES; n++) {
            // Rounded before the difference, as the maximum was: with a fused one the largest of huge scores is not 0
            // apart from itself. The minimum only matters to scores that are no numbers: they get a weight all the same.
            s[m][n].x = exp2_approx(fminf(__fmul_rn(s[m][n].x, head[m].scale) - head[m].maximum, GROWTH_STEP));
            s[m][n].y = exp2_approx(fminf(__fmul_rn(s[m][n].y, head[m].scale) - head[m].maximum, GROWTH_STEP));
            head[m].sum += s[m][n].x + s[m][n].y;
        }
    }
    if (i >= 2) barrier_wait(b.base + AT_EMPTY + (i & 1) * 8, ((i >> 1) - 1) & 1);
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        const int own = m * 16 + b.w + 8 * half;
        const u32 to = b.base + AT_WEIGHTS + (i & 1) * WEIGHT_BYTES + own * WEIGHT_PITCH + b.c * (TILE / 2) + block * 4;
        #pragma unroll
        for (int n = 0; n < HALVES; n++) store_shared_u32(to + n * 16, f16x2_of(s[m][n].x, s[m][n].y));
        if ((b.lane & 27) == 0) store_shared_float(b.base + AT_GROWTH + ((i & 1) * HEADS + own) * 4, growth[m]);
    }
}

// Says where the entries of tile i lie, the one that `cursor` is at: addresses of their data, then of their scales, with bit 0
// set for masked entries. All zero for a tile behind the last.
__device__ __forceinline__ void place(const Args& a, const Block& b, const Run& run, const Cursor& cursor, const int (&index)[HALVES], u32 i) {
    const bool exists = cursor.row <= run.last, in_window = cursor.in_window();
    const u32 page_entries = in_window ? a.window.page_entries : a.extra.page_entries;
    const u64 page_bytes = in_window ? a.window.page_bytes : a.extra.page_bytes, pool = (u64)(in_window ? a.window.data : a.extra.data);
    #pragma unroll
    for (int n = 0; n < HALVES; n++) {
        const int own = n * 32 + b.lane;
        u64 data = exists ? pool + 1 : 0, scales = data;
        const bool there = exists && is_entry(in_window ? a.window : a.extra, index[n]);
        if (there) {
            const u32 page = (u32)index[n] / page_entries, at = (u32)index[n] - page * page_entries;
            const u64 start = pool + page * page_bytes;
            data = start + at * ENTRY_BYTES;
            scales = start + page_entries * ENTRY_BYTES + at * SCALE_BYTES;
        }
        const u32 to = b.base + AT_RING + i % RING_PLACES * RING_BYTES + own * 8;
        store_shared_8(to, data);
        store_shared_8(to + TILE * 8, scales);
        store_shared_u8(b.base + AT_MASKS + i % RING_PLACES * TILE + own, there);
    }
}

// The indices of the tile eight behind the one just placed; its place in the run is kept in shared memory until then.
__device__ __forceinline__ void look_ahead(const Args& a, const Block& b, const Run& run, Cursor& cursor, int (&index)[HALVES]) {
    cursor.advance(a, run, 8);
    #pragma unroll
    for (int n = 0; n < HALVES; n++) index[n] = cursor.index(a, run, n * 32 + b.lane);
    __syncwarp();
    if (b.lane == 0) cursor.save(b.base + AT_CURSORS + b.w * 32);
    __syncwarp();
}

// Tile w of value warp w.
__device__ __forceinline__ void place_first(const Args& a, const Block& b, const Run& run, int (&index)[HALVES]) {
    Cursor cursor;
    cursor.start(a, run, run.first);
    cursor.advance(a, run, b.w);
    #pragma unroll
    for (int n = 0; n < HALVES; n++) index[n] = cursor.index(a, run, n * 32 + b.lane);
    place(a, b, run, cursor, index, b.w);
    look_ahead(a, b, run, cursor, index);
}

extern __shared__ __align__(128) u8 memory[];

__device__ __forceinline__ void load_query(const Args& a, const Block& b, u32 (&query)[M_TILES][2][4][4], Softmax (&head)[M_TILES], int row) {
    const int quarter = b.w & 3, head0 = blockIdx.x * HEADS;
    const bool rotary = quarter == 3;
    // 16 heads x 128 dims in A fragments. Dims are permuted within 16 as the bytes of an entry fall: column c of the
    // fragment holds dims 4c .. 4c+3. Rotary dims (quarter 3, second half) keep the usual order.
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        u32 top[2] = {0, 0};
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            const int own = m * 16 + b.r + 8 * k;
            const u16* q = QUERY_AHEAD ? (const u16*)(memory + AT_QUERY + own * QUERY_PITCH) + quarter * 128
                                       : a.q + (i64)row * a.q_stride + min(head0 + own, a.heads - 1) * HEAD_DIMS + quarter * 128;
            #pragma unroll
            for (int h = 0; h < 2; h++)
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint2 v;
                    if (h == 1 && rotary) v = make_uint2(*(const u32*)(q + h * 64 + 16 * j + 2 * b.c), *(const u32*)(q + h * 64 + 16 * j + 8 + 2 * b.c));
                    else v = *(const uint2*)(q + h * 64 + 16 * j + 4 * b.c);
                    query[m][h][j][k] = v.x;
                    query[m][h][j][2 + k] = v.y;
                    top[k] = max_u16x2(top[k], max_u16x2(v.x & 0x7fff7fff, v.y & 0x7fff7fff));   // sizes of bf16 order as integers
                }
        }
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            top[k] = max(top[k] & 0xffff, top[k] >> 16);
            top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 1));
            top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 2));
            if (b.c == 0 && b.w < 4) store_shared_u32(b.base + AT_TOPS + ((m * 4 + quarter) * 16 + b.r + 8 * k) * 4, top[k]);
        }
    }
    sync_group<1>();
    // Each head's queries are scaled by a power of two so that the largest lies in [2^14, 2^15): f16 then holds every
    // bf16 number within 2^-38 of the largest.
    auto query_shift = [&](int m, int head) -> int {
        u32 largest = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++) largest = max(largest, load_shared_u32(b.base + AT_TOPS + ((m * 4 + i) * 16 + head) * 4));
        return min(max(127 + 14 - (int)(largest >> 7), -120), 120);
    };
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        const float up[2] = {float_of_ue8m0(127 + query_shift(m, b.r)), float_of_ue8m0(127 + query_shift(m, b.r + 8))};
        head[m] = {a.scale_log2 * float_of_ue8m0(127 - query_shift(m, b.w + 8 * ((b.lane >> 2) & 1))), NOTHING, 0.f};
        #pragma unroll
        for (int h = 0; h < 2; h++)
            #pragma unroll
            for (int j = 0; j < 4; j++)
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float low = low_bf16(query[m][h][j][k]) * up[k & 1], high = high_bf16(query[m][h][j][k]) * up[k & 1];
                    query[m][h][j][k] = h == 1 && rotary ? bf16x2_of(low, high) : f16x2_of(low, high);
                }
    }
}

// log2 of each head's sum, and its inverse, for the tile that ends a row.
__device__ __forceinline__ void totals(const Block& b, const Softmax (&head)[M_TILES], u32 i) {
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        float sum = head[m].sum;
        #pragma unroll
        for (int bit = 0; bit < 4; bit++) sum += __shfl_xor_sync(~0u, sum, bit < 2 ? 1 << bit : 2 << bit);
        if ((b.lane & 27) == 0) {
            const u32 to = b.base + AT_TOTALS + (i % PLACES * HEADS + m * 16 + b.w + 8 * ((b.lane >> 2) & 1)) * 8;
            store_shared_float(to, sum > 0.f ? head[m].maximum + __log2f(sum) : NOTHING);
            store_shared_float(to + 4, sum > 0.f ? 1.f / sum : 0.f);
        }
    }
}

// The answer of a row without entries.
__device__ __forceinline__ void write_zeros(const Args& a, int row) {
    for (int at = threadIdx.x; at < HEADS * (HEAD_DIMS / 8); at += GROUP) {
        const int head = blockIdx.x * HEADS + at / (HEAD_DIMS / 8);
        if (head < a.heads) *(uint4*)(a.out + (i64)row * a.out_stride + head * HEAD_DIMS + at % (HEAD_DIMS / 8) * 8) = make_uint4(0, 0, 0, 0);
    }
}

// Brings the queries of a row nearer: to shared memory, or where there is no room, into the L2 cache.
__device__ __forceinline__ void fetch_query(const Args& a, const Block& b, int row) {
    const u16* q = a.q + (i64)row * a.q_stride;
#if QUERY_AHEAD
    #pragma unroll
    for (int n = 0; n < HEADS / 4; n++) {
        const int own = n * 4 + threadIdx.x / 64, head = min(blockIdx.x * HEADS + own, a.heads - 1), at = threadIdx.x % 64;
        copy_16_bytes(b.base + AT_QUERY + own * QUERY_PITCH + at * 16, q + head * HEAD_DIMS + at * 8);
    }
#else
    const int head = blockIdx.x * HEADS + threadIdx.x / 8;
    if (threadIdx.x < HEADS * 8 && head < a.heads) prefetch_l2(q + head * HEAD_DIMS + threadIdx.x % 8 * 64);
#endif
}

__device__ __forceinline__ void score_warps(const Args& a, const Block& b, const Run& run) {
    u32 i = 0;
    int near = run.first;                // the row whose queries were fetched
    for (int row = run.first; row <= run.last; row++) {
        Cursor at;
        at.start(a, run, row);
        int left = at.end - at.tile;
        if (left <= 0) {
            write_zeros(a, row);
            continue;
        }
        const int part = row == run.first ? run.part : 0;
        const int parts = row == run.first ? run.parts_first : row == run.last ? run.parts_last : 1;
        const u32 word = ROW_ENDS | (parts > 1 ? IS_PART : 0) | (part == 0 ? IS_FIRST_PART : 0) | ((u32)row << ROW_SHIFT);
        u32 query[M_TILES][2][4][4];
        Softmax head[M_TILES];
        if (near != row) fetch_query(a, b, row);
        if (QUERY_AHEAD) {
            wait_for_copies();
            sync_group<1>();
        }
        load_query(a, b, query, head, row);
        near = row;
        auto weights = [&] {
            softmax(b, head, i);
            if (left == 1) totals(b, head, i);
            if (threadIdx.x == 0) store_shared_u32(b.base + AT_WORDS + i % PLACES * 4, left == 1 ? word : 0);
            arrive(b.base + AT_FULL + (i & 1) * 8, b.lane);
        };
        if (SCORES_AHEAD) scores(b, query, i, [] {});
        for (; left > 0; left--, i++) {
            if (!SCORES_AHEAD) scores(b, query, i, [] { sync_group<1>(); });   // the scores of the tile before are read
            sync_group<1>();             // the scores of tile i are there
            if (near == row && row < run.last) fetch_query(a, b, near = row + 1);
            if (SCORES_AHEAD && left > 1) scores(b, query, i + 1, weights);
            else weights();
        }
    }
}

#include "values.cuh"

__device__ __forceinline__ bool exists(const Block& b, u32 i) { return load_shared_8(b.base + AT_RING + i % RING_PLACES * RING_BYTES) != 0; }

// Every value warp fetches OWN entries of tile i.
__device__ __forceinline__ void fetch(const Block& b, u32 i) {
    const u32 slot = i % STAGES, own = b.w * OWN, ring = b.base + AT_RING + i % RING_PLACES * RING_BYTES + own * 8;
    const u32 to = b.base + slot * STAGE_BYTES + own * PITCH + b.lane * 16;
    uint4 two[OWN / 2];                  // addresses of two entries each, all read before the first is needed
    #pragma unroll
    for (int k = 0; k < OWN / 2; k++) two[k] = load_shared_16(ring + k * 16);
    constexpr int TAILS = (OWN + 7) / 8; // the last 64 bytes of eight entries at once
    const int k = b.lane >> 2;
    u64 tail[TAILS] = {}, scales = 0;
    #pragma unroll
    for (int n = 0; n < TAILS; n++)
        if (k < OWN) tail[n] = load_shared_8(ring + (n * 8 + k) * 8);
    if (b.lane < OWN) scales = load_shared_8(ring + TILE * 8 + b.lane * 8);
    u32 masked = 0;
    #pragma unroll
    for (int k = 0; k < OWN / 2; k++) masked |= two[k].x | two[k].z;
    const u32 tail_to = b.base + slot * STAGE_BYTES + (own + k) * PITCH + 512 + b.c * 16;
    const u32 scales_to = b.base + slot * STAGE_BYTES + TILE * PITCH + (own + b.lane) * SCALE_BYTES;
    if ((ABLATE & 1) && i >= STAGES) {
    } else if (masked & 1) {             // zeros instead of what is masked, and no traffic for it
        const auto size = [](u64 from, int bytes) { return from & 1 ? 0 : bytes; };
        #pragma unroll
        for (int k = 0; k < OWN; k++) {
            const u64 from = k & 1 ? (u64)two[k / 2].w << 32 | two[k / 2].z : (u64)two[k / 2].y << 32 | two[k / 2].x;
            copy_16_bytes(to + k * PITCH, (const u8*)(from & ~1ull) + b.lane * 16, size(from, 16));
        }
        #pragma unroll
        for (int n = 0; n < TAILS; n++)
            if (k < OWN) copy_16_bytes(tail_to + n * 8 * PITCH, (const u8*)(tail[n] & ~1ull) + 512 + b.c * 16, size(tail[n], 16));
        if (b.lane < OWN) copy_8_bytes(scales_to, (const u8*)(scales & ~1ull), size(scales, 8));
    } else {
        #pragma unroll
        for (int k = 0; k < OWN / 2; k++) {
            copy_16_bytes(to + 2 * k * PITCH, (const u8*)((u64)two[k].y << 32 | two[k].x) + b.lane * 16);
            copy_16_bytes(to + (2 * k + 1) * PITCH, (const u8*)((u64)two[k].w << 32 | two[k].z) + b.lane * 16);
        }
        #pragma unroll
        for (int n = 0; n < TAILS; n++)
            if (k < OWN) copy_16_bytes(tail_to + n * 8 * PITCH, (const u8*)tail[n] + 512 + b.c * 16);
        if (b.lane < OWN) copy_8_bytes(scales_to, (const u8*)scales);
    }
    barrier_arrive_after_copies(b.base + AT_BARRIERS + slot * 8);
}

// Writes the answer of a row, or of this worker's part of it, which tile i ended.
__device__ __forceinline__ void write_answer(const Args& a, const Block& b, const float (&output)[M_TILES][8][4], int exponent, u32 i, u32 word) {
    const bool whole = !(word & IS_PART);
    const int row = word >> ROW_SHIFT, slot = 2 * blockIdx.y + (word & IS_FIRST_PART ? 1 : 0);
    const int half_exponent = (exponent - 127 - WEIGHT_BITS) / 2;   // in two steps: 2^(exponent - 137) may be no float
    const float step0 = float_of_ue8m0(127 + half_exponent), step1 = float_of_ue8m0(exponent - WEIGHT_BITS - half_exponent);
    #pragma unroll
    for (int line = 0; line < 2 * M_TILES; line++) {
        const int m = line >> 1, k = line & 1, own = m * 16 + b.r + 8 * k, head = blockIdx.x * HEADS + own;
        if (head >= a.heads) continue;
        const float2 total = load_shared_float2(b.base + AT_TOTALS + (i % PLACES * HEADS + own) * 8);
        const float scale = total.y * (whole ? share_beside_sink(total.x, a.sink[head]) : 1.f);
        const size_t part = (size_t)slot * a.heads + head;
        u16* whole_out = a.out + (i64)row * a.out_stride + head * HEAD_DIMS;
        float* part_out = a.partial + part * HEAD_DIMS;
        if (b.w < 7) {
            #pragma unroll
            for (int block = 0; block < 4; block++) {
                float x[4];
                #pragma unroll
                for (int d = 0; d < 4; d++) x[d] = output[m][2 * block + (d & 1)][2 * k + (d >> 1)] * step0 * scale * step1;
                const int dim = b.w * 64 + block * 16 + 4 * b.c;
                if (whole) *(uint2*)(whole_out + dim) = make_uint2(bf16x2_of(x[0], x[1]), bf16x2_of(x[2], x[3]));
                else *(float4*)(part_out + dim) = make_float4(x[0], x[1], x[2], x[3]);
            }
        } else {
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                const float x = output[m][n][2 * k] * scale, y = output[m][n][2 * k + 1] * scale;
                const int dim = NOPE_DIMS + n * 8 + 2 * b.c;
                if (whole) *(u32*)(whole_out + dim) = bf16x2_of(x, y);
                else *(float2*)(part_out + dim) = make_float2(x, y);
            }
        }
        if (!whole && b.w == 0 && b.c == 0) a.partial_log[part] = total.x;
    }
}

// Says that this worker's part is written, and notes whether it was the last of its row to be.
__device__ __forceinline__ void arrive(const Args& a, const Block& b, const Run& run, u32 word) {
    __threadfence();
    sync_group<2>();
    if (threadIdx.x != GROUP) return;
    const bool first = word & IS_FIRST_PART;
    const int worker = blockIdx.y - (first ? 0 : run.part), parts = first ? run.parts_last : run.parts_first;
    int* arrivals = a.arrivals + worker * gridDim.x + blockIdx.x;
    if (atomicAdd(arrivals, 1) < parts - 1) return;
    *arrivals = 0;                       // ready for the next launch, also in a replayed graph
    store_shared_u32(b.base + AT_MERGES + (first ? 4 : 0), 1);
}

__device__ __forceinline__ void value_warps(const Args& a, const Block& b, const Run& run, int (&index)[HALVES]) {
    u32 fetched = 0;                     // tiles; a tile is fetched before its values, so this also says whether one is there
    for (; fetched < STAGES && exists(b, fetched); fetched++) fetch(b, fetched);
    float output[M_TILES][8][4] = {};
    int exponent = 0;
    for (u32 i = 0; i < fetched; i++) {
        values(b, output, exponent, i);
        const u32 word = load_shared_u32(b.base + AT_WORDS + i % PLACES * 4);
        if (i + STAGES >= RING_PLACES && (i + STAGES) % RING_PLACES == (u32)b.w) {
            Cursor cursor;
            cursor.restore(b.base + AT_CURSORS + b.w * 32);
            place(a, b, run, cursor, index, i + STAGES);
            look_ahead(a, b, run, cursor, index);
        }
        arrive(b.base + AT_EMPTY + (i & 1) * 8, b.lane);
        if (i >= 1 && fetched == i - 1 + STAGES) {            // a tile late, so that nobody waits for the slowest warp
            barrier_wait(b.base + AT_EMPTY + ((i - 1) & 1) * 8, ((i - 1) >> 1) & 1);
            if (exists(b, fetched)) fetch(b, fetched++);
        }
        if (word) {
            write_answer(a, b, output, exponent, i, word);
            if (word & IS_PART) arrive(a, b, run, word);
            exponent = 0;
            #pragma unroll
            for (int m = 0; m < M_TILES; m++)
                #pragma unroll
                for (int n = 0; n < 8; n++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) output[m][n][k] = 0.f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode(const Args a) {
    const Run& run = a.runs[blockIdx.y];   // read again where it is needed: registers are dearer
    if (run.first > run.last) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = {shared_address(memory), lane, warp & 7, lane >> 2, lane & 3};
    if (threadIdx.x < STAGES) barrier_init(b.base + AT_BARRIERS + threadIdx.x * 8, GROUP);
    else if (threadIdx.x < STAGES + 4) barrier_init(b.base + AT_FULL + (threadIdx.x - STAGES) * 8, ARRIVALS);
    else if (threadIdx.x < STAGES + 6) store_shared_u32(b.base + AT_MERGES + (threadIdx.x - STAGES - 4) * 4, 0);
    int index[HALVES];                   // of value warp w: those of the tile it places next
    if (warp >= 8) place_first(a, b, run, index);
    else fetch_query(a, b, run.first);
    __syncthreads();
    if (warp < 8) score_warps(a, b, run);
    else value_warps(a, b, run, index);
    __syncthreads();
    #pragma unroll 1
    for (int last = 0; last < 2; last++) {
        if (!load_shared_u32(b.base + AT_MERGES + last * 4)) continue;
        __threadfence();
        const int worker = blockIdx.y - (last ? 0 : run.part);
        merge<HEADS, WARPS>(a, last ? run.last : run.first, blockIdx.x, last ? run.parts_last : run.parts_first,
                            [&](int part) { return (size_t)(2 * (worker + part) + (part == 0)); });
    }
}
