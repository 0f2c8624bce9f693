// Version 6: eight warps only score, eight only add up values, so that the scores of tile i + 1 and the values of tile
// i run side by side by construction; each converted byte serves M_TILES x 16 heads.
//
// A block is M_TILES x 16 heads of one row and a run of tiles of TILE tokens.
//   score warp w   multiplies dims 128 (w & 3) .. +127 of half the tile's tokens for all heads (queries stay in
//                  M_TILES x 32 registers), then does the softmax of heads w and w + 8 of each 16
//   value warp w   owns dims 64 w .. 64 w + 63 of all heads (w = 7: the rotary ones), and fetches an eighth of a tile
// Weights go from one group to the other through two buffers; an mbarrier each says full and empty.
//
// For 32 heads and 640 entries: 374 kB + 66 kB moved, 42 MFLOP. Per tile of 64 and block 1,024 MMA, 1.15 us of one
// multiprocessor at the measured 476 TFLOP/s of mma.sync; the copy of 37.4 kB takes 1.15 us at 4.3 TB/s over 132.
//
// Shared memory (bytes)      M 1, TILE 64, 4 stages   M 2, TILE 64, 4 stages   M 1, TILE 32, 4 stages   M 2, TILE 32, 3 stages
//   entries                       153,600                  153,600                   76,800                   57,600
//   scores  M x 4 x TILE/8 x 576   18,432                   36,864                    9,216                   18,432
//   weights 2 x heads x pitch       4,608                    9,216                    2,560                    5,120
//   factors 8 x TILE x 2            1,024                    1,024                      512                      512
//   growth, totals, masks, barriers   576                      832                      448                      664
//   sum                           178,240                  201,536                   89,536                   82,328
// A block may have 101,376 on sm_120 and 232,448 on sm_90: tiles of 32 are for the former.
//
// Taught (H200, window 128 + top-k 512; version 5 in brackets): 16 heads 17.7 us at 64 rows (23.5), 23.5 at 128 (34.1), 46.5 at
// 256 (51.2: here that is two waves of one block a multiprocessor); 32 heads 41.6 at 128 (48.5), 64 heads 79 (93).
// What was tried, and what it brought, is in levers/gpu-decode-*.toml. What bounds it now: the value warps, whose 450
// instructions a tile, a third of them the fetch, wait for each other in chains; and the 6 to 8 us of starting and ending.
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
#ifndef ARRIVE_ONCE   // 1: one lane of a warp arrives at barriers, not each
#define ARRIVE_ONCE 0
#endif
#ifndef SCORE_BUFFERS   // 2: the scores of tile i + 1 and the softmax of tile i have no barrier between them
#define SCORE_BUFFERS 1
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 1
#endif
#ifndef ABLATE      // to place the time, with wrong results: 1 no copies, 2 no scores, 4 no values, 8 no softmax
#define ABLATE 0
#endif

constexpr int PITCH = 592;              // 37 x 16: eight rows lie in eight different groups of banks
constexpr int WARPS = 16, THREADS = 32 * WARPS, HEADS = 16 * M_TILES, GROUP = 256;
constexpr int OWN = TILE / 8;           // entries of a tile that a value warp fetches
constexpr int HALVES = TILE / 32;
constexpr int STAGE_BYTES = TILE * (PITCH + SCALE_BYTES);
constexpr int SCORE_BLOCK = 576;        // 16 heads x 8 tokens as the MMA leaves them, 512 bytes, and 64 against conflicts
constexpr int SCORE_BYTES = M_TILES * 4 * (TILE / 8) * SCORE_BLOCK;
constexpr int WEIGHT_PITCH = TILE * 2 + 16, WEIGHT_BYTES = HEADS * WEIGHT_PITCH;
constexpr int AT_SCORES = STAGES * STAGE_BYTES, AT_WEIGHTS = AT_SCORES + SCORE_BUFFERS * SCORE_BYTES;
constexpr int AT_FACTORS = AT_WEIGHTS + 2 * WEIGHT_BYTES, AT_GROWTH = AT_FACTORS + 8 * TILE * 2;
constexpr int AT_TOTALS = AT_GROWTH + 2 * HEADS * 4, AT_MASKS = AT_TOTALS + HEADS * 8;
constexpr int AT_BARRIERS = AT_MASKS + STAGES * TILE;       // entries full, then weights full and empty
constexpr int AT_FULL = AT_BARRIERS + STAGES * 8, AT_EMPTY = AT_FULL + 16;
constexpr int SHARED_BYTES = AT_EMPTY + 16;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/decode/variant.rs counts other shared memory");
#endif

#define MINUS_INFINITY __uint_as_float(0xff800000u)
constexpr float GROWTH_STEP = 4.f;      // the maximum follows when a score passes it by more (log2)
constexpr int WEIGHT_BITS = 10;         // weights are at most 2^4; times 2^10 they end at f16's 2^14
constexpr int SPREAD = 16;              // 1.0 at the smallest exponent is then 2^-6: full precision down to 2^-8

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
    int row, count;
};

// Scores of one tile for all heads, in shared memory as partial sums over a quarter of the dims each.
__device__ __forceinline__ void scores(const Block& b, const u32 (&query)[M_TILES][2][4][4], int i) {
    const int quarter = b.w & 3, token_half = b.w >> 2, slot = i % STAGES;
    const bool rotary = quarter == 3;
    const u32 entries = b.base + slot * STAGE_BYTES;
    barrier_wait(b.base + AT_BARRIERS + slot * 8, (i / STAGES) & 1);
    const u32 keys = entries + (token_half * (TILE / 2) + (b.lane & 7)) * PITCH + (b.lane >> 3) * 16 + quarter * 128;
    const u32 to = b.base + AT_SCORES + i % SCORE_BUFFERS * SCORE_BYTES + (quarter * (TILE / 8) + token_half * (TILE / 16)) * SCORE_BLOCK + b.lane * 16;
    const u32 scales = entries + TILE * PITCH + (token_half * (TILE / 2) + 2 * b.c) * SCALE_BYTES + 2 * quarter;
    constexpr int AT_ONCE = M_TILES == 1 ? 2 : 1;   // blocks of 8 tokens: four chains of MMA either way
    #pragma unroll
    for (int first = 0; first < TILE / 16; first += AT_ONCE) {
        float part[2][AT_ONCE][M_TILES][4] = {};    // [half of the 128 dims]
        u32 k[AT_ONCE][4];
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) load_matrices(k[n], keys + (first + n) * 8 * PITCH);
        if (!rotary) {
            u32 l[AT_ONCE][4];
            #pragma unroll
            for (int n = 0; n < AT_ONCE; n++) load_matrices(l[n], keys + 64 + (first + n) * 8 * PITCH);
            #pragma unroll
            for (int j = 0; j < 4; j++)
                #pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    const u32 k0 = f16x2_of_e4m3x2((u16)k[n][j]), k1 = f16x2_of_e4m3x2((u16)(k[n][j] >> 16));
                    const u32 l0 = f16x2_of_e4m3x2((u16)l[n][j]), l1 = f16x2_of_e4m3x2((u16)(l[n][j] >> 16));
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
                        const u32 k0 = f16x2_of_e4m3x2((u16)k[n][s]), k1 = f16x2_of_e4m3x2((u16)(k[n][s] >> 16));
                        #pragma unroll
                        for (int m = 0; m < M_TILES; m++) {
                            mma_f16(part[0][n][m], query[m][0][s], k0, k1);
                            mma_bf16(part[1][n][m], query[m][1][s], l[n][2 * j], l[n][2 * j + 1]);
                        }
                    }
            }
        }
        if (SCORE_BUFFERS == 1 && first == 0) sync_group<1>();   // the scores of the tile before are read
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const u32 at = scales + (first + n) * 8 * SCALE_BYTES;
            const u32 e0 = load_shared_u16(at), e1 = load_shared_u16(at + SCALE_BYTES);
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

// Weights of this lane's head in 16 heads `m`; lanes with bit 2 have head w + 8, the others head w.
__device__ __forceinline__ void softmax(const Block& b, Softmax& head, int m, int i) {
    const int half = (b.lane >> 2) & 1, own = m * 16 + b.w + 8 * half, block = b.lane >> 3;   // tokens 8 block + 2c, + 1, and 32 on
    const u32 from = b.base + AT_SCORES + i % SCORE_BUFFERS * SCORE_BYTES + (m * 4 * (TILE / 8) + block) * SCORE_BLOCK + b.w * 64 + b.c * 16 + half * 8;
    float2 s[HALVES];
    float largest = MINUS_INFINITY;
    #pragma unroll
    for (int n = 0; n < HALVES; n++) {
        s[n] = load_shared_float2(from + n * 4 * SCORE_BLOCK);
        #pragma unroll
        for (int part = 1; part < 4; part++) {
            const float2 x = load_shared_float2(from + (part * (TILE / 8) + n * 4) * SCORE_BLOCK);
            s[n].x += x.x;
            s[n].y += x.y;
        }
        const u32 present = load_shared_u16(b.base + AT_MASKS + (i % STAGES) * TILE + n * 32 + block * 8 + 2 * b.c);
        s[n].x = present & 1 ? s[n].x : MINUS_INFINITY;
        s[n].y = present & 256 ? s[n].y : MINUS_INFINITY;
        largest = fmaxf(largest, fmaxf(s[n].x, s[n].y));
    }
    #pragma unroll
    for (int bit = 0; bit < 4; bit++) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit < 2 ? 1 << bit : 2 << bit));
    largest = fminf(__fmul_rn(largest, head.scale), 1e30f);
    float growth = 1.f;
    if (largest > head.maximum + GROWTH_STEP) {
        growth = exp2_approx(head.maximum - largest);
        head.maximum = largest;
    }
    head.sum *= growth;
    const u32 to = b.base + AT_WEIGHTS + (i & 1) * WEIGHT_BYTES + own * WEIGHT_PITCH + b.c * (TILE / 2) + block * 4;
    #pragma unroll
    for (int n = 0; n < HALVES; n++) {
        // Rounded before the difference, as the maximum was: with a fused one the largest of huge scores is not 0
        // apart from itself. The minimum only matters to scores that are no numbers: they get a weight all the same.
        const float p0 = exp2_approx(fminf(__fmul_rn(s[n].x, head.scale) - head.maximum, GROWTH_STEP));
        const float p1 = exp2_approx(fminf(__fmul_rn(s[n].y, head.scale) - head.maximum, GROWTH_STEP));
        head.sum += p0 + p1;
        store_shared_u32(to + n * 16, f16x2_of(p0, p1));
    }
    if ((b.lane & 27) == 0) store_shared_float(b.base + AT_GROWTH + ((i & 1) * HEADS + own) * 4, growth);
}

// log2 of each head's sum, and its inverse: the weights of the last tile carry them over.
__device__ __forceinline__ void totals(const Block& b, const Softmax (&head)[M_TILES]) {
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        float sum = head[m].sum;
        #pragma unroll
        for (int bit = 0; bit < 4; bit++) sum += __shfl_xor_sync(~0u, sum, bit < 2 ? 1 << bit : 2 << bit);
        if ((b.lane & 27) == 0) {
            const u32 totals = b.base + AT_TOTALS + (m * 16 + b.w + 8 * ((b.lane >> 2) & 1)) * 8;
            store_shared_float(totals, sum > 0.f ? head[m].maximum + __log2f(sum) : NOTHING);
            store_shared_float(totals + 4, sum > 0.f ? 1.f / sum : 0.f);
        }
    }
}

__device__ __forceinline__ void score_warps(const Args& a, const Block& b) {
    const int quarter = b.w & 3, head0 = blockIdx.y * HEADS;
    const bool rotary = quarter == 3;
    // 16 heads x 128 dims in A fragments. Dims are permuted within 16 as the bytes of an entry fall: column c of the
    // fragment holds dims 4c .. 4c+3. Rotary dims (quarter 3, second half) keep the usual order.
    u32 query[M_TILES][2][4][4];
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        u32 top[2] = {0, 0};
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            const int head = head0 + m * 16 + b.r + 8 * k;
            const u16* q = a.q + (i64)b.row * a.q_stride + min(head, a.heads - 1) * HEAD_DIMS + quarter * 128;
            #pragma unroll
            for (int h = 0; h < 2; h++)
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint2 v;
                    if (h == 1 && rotary) v = make_uint2(*(const u32*)(q + h * 64 + 16 * j + 2 * b.c), *(const u32*)(q + h * 64 + 16 * j + 8 + 2 * b.c));
                    else v = *(const uint2*)(q + h * 64 + 16 * j + 4 * b.c);
                    query[m][h][j][k] = v.x;
                    query[m][h][j][2 + k] = v.y;
                    top[k] = max(max(max(top[k], v.x & 0x7fff), (v.x >> 16) & 0x7fff), max(v.y & 0x7fff, (v.y >> 16) & 0x7fff));
                }
        }
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 1));
            top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 2));
            if (b.c == 0 && b.w < 4) store_shared_u32(b.base + AT_SCORES + ((m * 4 + quarter) * 16 + b.r + 8 * k) * 4, top[k]);
        }
    }
    sync_group<1>();
    // Each head's queries are scaled by a power of two so that the largest lies in [2^14, 2^15): f16 then holds every
    // bf16 number within 2^-38 of the largest.
    auto query_shift = [&](int m, int head) -> int {
        u32 largest = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++) largest = max(largest, load_shared_u32(b.base + AT_SCORES + ((m * 4 + i) * 16 + head) * 4));
        return min(max(127 + 14 - (int)(largest >> 7), -120), 120);
    };
    Softmax head[M_TILES];
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
    sync_group<1>();                                // the maxima are read: their place is the scores' now
    if (SCORE_BUFFERS == 2 && b.count > 0) scores(b, query, 0);
    for (int i = 0; i < b.count; i++) {
        if (SCORE_BUFFERS == 1) scores(b, query, i);
        sync_group<1>();                            // the scores of tile i are there, those of i - 1 are read
        if (i >= 2) barrier_wait(b.base + AT_EMPTY + (i & 1) * 8, ((i >> 1) - 1) & 1);
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) softmax(b, head[m], m, i);
        if (i == b.count - 1) totals(b, head);
        arrive(b.base + AT_FULL + (i & 1) * 8, b.lane);
        if (SCORE_BUFFERS == 2 && i + 1 < b.count) scores(b, query, i + 1);
    }
}

// The values of one tile for all heads, 64 dims a warp; `exponent` is that of this warp's dims: the output is in units
// of 2^(exponent - 127 - WEIGHT_BITS).
__device__ __forceinline__ void values(const Block& b, float (&output)[M_TILES][8][4], int& exponent, int i) {
    const int slot = i % STAGES, w = b.w, c = b.c;
    const u32 entries = b.base + slot * STAGE_BYTES;
    barrier_wait(b.base + AT_BARRIERS + slot * 8, (i / STAGES) & 1);
    const u32 scales = entries + TILE * PITCH + w;
    const u32 factors = b.base + AT_FACTORS + w * TILE * 2;
    u32 e[HALVES];
    bool odd = false;
    #pragma unroll
    for (int n = 0; n < HALVES; n++) {
        e[n] = w < 7 ? load_shared_u8(scales + (b.lane + 32 * n) * SCALE_BYTES) : 0;
        odd |= (u32)(exponent - (int)e[n]) > SPREAD && e[n];
    }
    float shrink = 1.f;
    bool slow = false;
    if (__any_sync(~0u, odd)) {
        u32 most = e[0], least = e[0] ? e[0] : 255u;
        #pragma unroll
        for (int n = 1; n < HALVES; n++) {
            most = max(most, e[n]);
            least = min(least, e[n] ? e[n] : 255u);
        }
        const int largest = (int)__reduce_max_sync(~0u, most), smallest = (int)__reduce_min_sync(~0u, least);
        if (largest > exponent) shrink = float_of_ue8m0(max(127 + exponent - largest, 0));
        exponent = max(exponent, largest);
        slow = smallest + SPREAD < exponent;
    }
    if (w < 7) {
        #pragma unroll
        for (int n = 0; n < HALVES; n++) {
            const u32 bits = (e[n] + (WEIGHT_BITS + 15) - exponent) << 10;
            store_shared_u16(factors + ((b.lane >> 1) & 3) * (TILE / 2) + (b.lane >> 3) * 4 + (b.lane & 1) * 2 + n * 16, (u16)(e[n] ? bits : 0));
        }
        __syncwarp();
    }
    barrier_wait(b.base + AT_FULL + (i & 1) * 8, (i >> 1) & 1);
    const u32 weights = b.base + AT_WEIGHTS + (i & 1) * WEIGHT_BYTES + b.r * WEIGHT_PITCH + c * (TILE / 2);
    float growth[M_TILES][2];
    odd = false;
    #pragma unroll
    for (int m = 0; m < M_TILES; m++)
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            growth[m][k] = shrink * load_shared_float(b.base + AT_GROWTH + ((i & 1) * HEADS + m * 16 + b.r + 8 * k) * 4);
            odd |= growth[m][k] != 1.f;
        }
    if (__any_sync(~0u, odd)) {
        #pragma unroll
        for (int m = 0; m < M_TILES; m++)
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                output[m][n][0] *= growth[m][0]; output[m][n][1] *= growth[m][0];
                output[m][n][2] *= growth[m][1]; output[m][n][3] *= growth[m][1];
            }
    }
    const u32 columns = entries + b.lane * PITCH;             // transposed: 32 tokens x 16 bytes at a time
    if (w == 7) {
        #pragma unroll
        for (int half = 0; half < HALVES; half++) {
            // A weight is two bf16 numbers here: one alone would round it eight times as coarsely as f16.
            u32 p[M_TILES][2][4], rest[M_TILES][2][4];
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const uint4 p0 = load_shared_16(weights + m * 16 * WEIGHT_PITCH + half * 16), p1 = load_shared_16(weights + (m * 16 + 8) * WEIGHT_PITCH + half * 16);
                const u32 all[2][4] = {{p0.x, p1.x, p0.y, p1.y}, {p0.z, p1.z, p0.w, p1.w}};   // A fragments of 16 tokens each
                #pragma unroll
                for (int s = 0; s < 2; s++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float low = float_of_f16((u16)all[s][k]), high = float_of_f16((u16)(all[s][k] >> 16));
                        const u32 both = bf16x2_of(low, high);
                        p[m][s][k] = both;
                        rest[m][s][k] = bf16x2_of(low - low_bf16(both), high - high_bf16(both));
                    }
            }
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                u32 v[4];
                load_matrices_transposed(v, columns + half * 32 * PITCH + NOPE_DIMS + n * 16);
                #pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma_bf16(output[m][n], p[m][0], v[0], v[1]);
                    mma_bf16(output[m][n], p[m][1], v[2], v[3]);
                    mma_bf16(output[m][n], rest[m][0], v[0], v[1]);
                    mma_bf16(output[m][n], rest[m][1], v[2], v[3]);
                }
            }
        }
        __syncwarp();
        return;
    }
    if (!slow) {
        #pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const uint4 f = load_shared_16(factors + c * (TILE / 2) + half * 16);
            u32 p[M_TILES][2][4];
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const uint4 p0 = load_shared_16(weights + m * 16 * WEIGHT_PITCH + half * 16), p1 = load_shared_16(weights + (m * 16 + 8) * WEIGHT_PITCH + half * 16);
                p[m][0][0] = multiply_f16x2(p0.x, f.x); p[m][0][1] = multiply_f16x2(p1.x, f.x);
                p[m][0][2] = multiply_f16x2(p0.y, f.y); p[m][0][3] = multiply_f16x2(p1.y, f.y);
                p[m][1][0] = multiply_f16x2(p0.z, f.z); p[m][1][1] = multiply_f16x2(p1.z, f.z);
                p[m][1][2] = multiply_f16x2(p0.w, f.w); p[m][1][3] = multiply_f16x2(p1.w, f.w);
            }
            #pragma unroll
            for (int block = 0; block < 4; block++) {         // 16 dims: the even ones and the odd ones are two MMA columns
                u32 v[4];
                load_matrices_transposed(v, columns + half * 32 * PITCH + w * 64 + block * 16);
                #pragma unroll
                for (int s = 0; s < 2; s++) {
                    const u32 x = __byte_perm(v[2 * s], 0, 0x3120), y = __byte_perm(v[2 * s + 1], 0, 0x3120);   // (token, token + 1) of an even dim, then of an odd one
                    const u32 even0 = f16x2_of_e4m3x2((u16)x), even1 = f16x2_of_e4m3x2((u16)y);
                    const u32 odd0 = f16x2_of_e4m3x2((u16)(x >> 16)), odd1 = f16x2_of_e4m3x2((u16)(y >> 16));
                    #pragma unroll
                    for (int m = 0; m < M_TILES; m++) {
                        mma_f16(output[m][2 * block], p[m][s], even0, even1);
                        mma_f16(output[m][2 * block + 1], p[m][s], odd0, odd1);
                    }
                }
            }
        }
        __syncwarp();                                         // the factors are read
        return;
    }
    #pragma unroll 1
    for (int token = 0; token < TILE; token++) {
        const u32 e = load_shared_u8(scales + token * SCALE_BYTES);
        const u32 at = b.base + AT_WEIGHTS + (i & 1) * WEIGHT_BYTES + b.r * WEIGHT_PITCH + ((token >> 1) & 3) * (TILE / 2) + (token >> 3) * 4 + (token & 1) * 2;
        const float scale = e ? float_of_ue8m0(max(127 + (int)e - exponent, 0)) * (1 << WEIGHT_BITS) : 0.f;
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            const float x = float_of_f16(load_shared_u16(at + m * 16 * WEIGHT_PITCH)) * scale, y = float_of_f16(load_shared_u16(at + (m * 16 + 8) * WEIGHT_PITCH)) * scale;
            #pragma unroll
            for (int block = 0; block < 4; block++) {
                const u32 v = load_shared_u32(entries + token * PITCH + w * 64 + block * 16 + 4 * c);
                #pragma unroll
                for (int d = 0; d < 4; d++) {
                    const float value = float_of_e4m3((u8)(v >> (8 * d)));
                    output[m][2 * block + (d & 1)][d >> 1] += x * value;
                    output[m][2 * block + (d & 1)][2 + (d >> 1)] += y * value;
                }
            }
        }
    }
}

__device__ __forceinline__ int index_at(const Args& a, const Block& b, const Share& share, int i) {
    const int tile = share.first + i, own = b.w * OWN + (b.lane & (OWN - 1));
    if (i >= b.count) return -1;
    return tile < share.window_tiles
        ? index_of(a.window, b.row, tile * TILE + own, share.window_length)
        : index_of(a.extra, b.row, (tile - share.window_tiles) * TILE + own, share.extra_length);
}

// Every value warp fetches OWN entries of a tile; lane k knows where entry k lies.
__device__ __forceinline__ void fetch(const Args& a, const Block& b, const Share& share, int& index, int i) {
    const int slot = i % STAGES;
    const bool window = share.first + i < share.window_tiles;
    const u8* data = window ? a.window.data : a.extra.data;
    const u32 page_entries = window ? a.window.page_entries : a.extra.page_entries;
    const u32 page_words = (u32)((window ? a.window.page_bytes : a.extra.page_bytes) >> 4);   // of 16 bytes
    const bool there = is_entry(window ? a.window : a.extra, index);
    const u32 entry = there ? index : 0, page = entry / page_entries, at = entry - page * page_entries;
    const u32 present = __ballot_sync(~0u, there);
    const u32 words = page * page_words + at * (ENTRY_BYTES / 16);   // 32 bits reach 64 GiB
    const u32 stage = b.base + slot * STAGE_BYTES, own = b.w * OWN, barrier = b.base + AT_BARRIERS + slot * 8;
    #pragma unroll
    for (int k = 0; k < OWN; k++)
        copy_16_bytes(stage + (own + k) * PITCH + b.lane * 16, data + b.lane * 16 + (u64)__shfl_sync(~0u, words, k) * 16, (present >> k) & 1 ? 16 : 0);
    const int k = b.lane >> 2;                                // the last 64 bytes of eight entries at once
    const u32 tail = __shfl_sync(~0u, words, k);
    if (k < OWN)
        copy_16_bytes(stage + (own + k) * PITCH + 512 + b.c * 16, data + (u64)tail * 16 + 512 + b.c * 16, (present >> k) & 1 ? 16 : 0);
    if (b.lane < OWN) {
        copy_8_bytes(stage + TILE * PITCH + (own + b.lane) * SCALE_BYTES,
                     data + (u64)page * page_words * 16 + page_entries * ENTRY_BYTES + at * SCALE_BYTES, there ? 8 : 0);
        store_shared_u8(b.base + AT_MASKS + slot * TILE + own + b.lane, there);
    }
    barrier_arrive_after_copies(barrier);
    arrive(barrier, b.lane);                                  // releases the mask: the arrival above speaks of copies only
    index = index_at(a, b, share, i + 1);
}

__device__ __forceinline__ void value_warps(const Args& a, const Block& b, const Share& share) {
    int index = index_at(a, b, share, 0);
    #pragma unroll
    for (int i = 0; i < STAGES; i++)
        if (i < b.count) fetch(a, b, share, index, i);
    float output[M_TILES][8][4] = {};
    int exponent = 0;
    for (int i = 0; i < b.count; i++) {
        values(b, output, exponent, i);
        arrive(b.base + AT_EMPTY + (i & 1) * 8, b.lane);
        if (i >= 1 && i - 1 + STAGES < b.count) {             // a tile late, so that nobody waits for the slowest warp
            barrier_wait(b.base + AT_EMPTY + ((i - 1) & 1) * 8, ((i - 1) >> 1) & 1);
            fetch(a, b, share, index, i - 1 + STAGES);
        }
    }
    const bool whole = share.active == 1;
    const int half_exponent = (exponent - 127 - WEIGHT_BITS) / 2;   // in two steps: 2^(exponent - 137) may be no float
    const float step0 = float_of_ue8m0(127 + half_exponent), step1 = float_of_ue8m0(exponent - WEIGHT_BITS - half_exponent);
    #pragma unroll
    for (int row = 0; row < 2 * M_TILES; row++) {
        const int m = row >> 1, k = row & 1, own = m * 16 + b.r + 8 * k, head = blockIdx.y * HEADS + own;
        if (head >= a.heads) continue;
        const float2 total = b.count > 0 ? load_shared_float2(b.base + AT_TOTALS + own * 8) : make_float2(NOTHING, 0.f);
        const float scale = total.y * (whole ? share_beside_sink(total.x, a.sink[head]) : 1.f);
        const size_t part = ((size_t)b.row * a.splits + blockIdx.x) * a.heads + head;
        u16* whole_out = a.out + (i64)b.row * a.out_stride + head * HEAD_DIMS;
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) decode(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    const Share share = share_of(a, blockIdx.z, blockIdx.x, TILE);
    if ((int)blockIdx.x >= share.active) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = {shared_address(memory), lane, warp & 7, lane >> 2, lane & 3, (int)blockIdx.z, share.count};
    if (threadIdx.x < STAGES) barrier_init(b.base + AT_BARRIERS + threadIdx.x * 8, GROUP + ARRIVALS);
    else if (threadIdx.x < STAGES + 2) barrier_init(b.base + AT_FULL + (threadIdx.x - STAGES) * 8, ARRIVALS);
    else if (threadIdx.x < STAGES + 4) barrier_init(b.base + AT_EMPTY + (threadIdx.x - STAGES - 2) * 8, ARRIVALS);
    __syncthreads();
    if (warp < 8) score_warps(a, b);
    else value_warps(a, b, share);
    if (share.active > 1) merge_if_last<HEADS, WARPS>(a, b.row, blockIdx.y, share.active);
}
