// Version 2: the plain tile kernel, with the knobs that people turn: BLOCK_H heads and BLOCK_T tokens a block, WARPS,
// STAGES of raw entries in flight, a scale byte read for each element or once for 8 (SCALE_PER_ELEMENT). The number of
// blocks (a fixed target, as split kernels often have) is the launch's. Versions that only differ in these knobs ask the
// question "which of them is it?" on one kernel.
//
// Per tile: wait for raw entries, convert them to a bf16 tile in shared memory, scores (mma.sync on 16 x 8 units), softmax,
// values (each warp 512 / WARPS dims of all heads). Four barriers a tile, nothing overlaps but the copies.
//
// For 32 heads and 640 entries: 374 kB + 66 kB moved, 42 MFLOP; a tile of 16 entries is 9.3 kB and 1 MFLOP.
//
// Shared memory (bytes)              BLOCK_H 32, BLOCK_T 16, STAGES 2
//   queries  BLOCK_H x 1,040                      33,280
//   keys     BLOCK_T x 1,040                      16,640
//   raw      STAGES x BLOCK_T x 600               19,200
//   scores   BLOCK_H x (BLOCK_T + 8) x 4           3,072
//   weights  BLOCK_H x (BLOCK_T + 8) x 2           1,536
//   growth, sums, presence                           416
//   sum                                           74,144
// One block fits an sm_120 multiprocessor's 100 KB, two fit an H200, where 254 registers are the limit.
//
// Taught (H200, 64 heads, window 128 + top-k 512, 64 rows; BLOCK_H 32, BLOCK_T 16, 4 warps, 2 stages, scales per element:
// 144 us): 8 warps 110, 3 stages 131, BLOCK_H 16 178, scales per eight 138, BLOCK_T 32 with 8 warps 87. Here, where shared
// memory does not limit the blocks, more warps and more copies in flight help, and a narrower block loses; all of them are
// far from version 6 (40): the conversion of every byte through shared memory and four barriers a tile cost more than any
// of the knobs brings. 254 registers come from 32 heads x 128 dims of sums a warp, and go with the number of warps.
#include "merge.cuh"

#ifndef BLOCK_H
#define BLOCK_H 32
#endif
#ifndef BLOCK_T
#define BLOCK_T 16
#endif
#ifndef BLOCK_WARPS
#define BLOCK_WARPS 4
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef SCALE_PER_ELEMENT
#define SCALE_PER_ELEMENT 0
#endif

constexpr int WARPS = BLOCK_WARPS, THREADS = 32 * WARPS, M_TILES = BLOCK_H / 16, N_TILES = BLOCK_T / 8;
constexpr int ROW = 1040, RAW_ROW = 592, S_ROW = BLOCK_T + 8;
constexpr int RAW_BYTES = BLOCK_T * (RAW_ROW + SCALE_BYTES);
constexpr int AT_KEYS = BLOCK_H * ROW, AT_RAW = AT_KEYS + BLOCK_T * ROW, AT_SCORES = AT_RAW + STAGES * RAW_BYTES;
constexpr int AT_WEIGHTS = AT_SCORES + BLOCK_H * S_ROW * 4, AT_GROWTH = AT_WEIGHTS + BLOCK_H * S_ROW * 2;
constexpr int AT_SUMS = AT_GROWTH + BLOCK_H * 4, AT_PRESENT = AT_SUMS + BLOCK_H * 8;
constexpr int SHARED_BYTES = AT_PRESENT + STAGES * BLOCK_T;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/decode/variant.rs counts other shared memory");
#endif
constexpr int DIMS_EACH = HEAD_DIMS / WARPS, D_TILES = DIMS_EACH / 8;

extern "C" __global__ void __launch_bounds__(THREADS) decode(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 base = shared_address(memory);
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, r = lane >> 2, c = lane & 3;
    const int row = blockIdx.z, head0 = blockIdx.y * BLOCK_H;
    const Share share = share_of(a, row, blockIdx.x, BLOCK_T);
    if ((int)blockIdx.x >= share.active) return;

    auto fetch = [&](int i) {
        if (i < share.count) {
            const int tile = share.first + i;
            const bool window = tile < share.window_tiles;
            const Pool& pool = window ? a.window : a.extra;
            const int start = (window ? tile : tile - share.window_tiles) * BLOCK_T, length = window ? share.window_length : share.extra_length;
            const u32 to = base + AT_RAW + i % STAGES * RAW_BYTES;
            for (int chunk = tid; chunk < BLOCK_T * 37; chunk += THREADS) {
                const int token = chunk / 37, part = chunk % 37;
                const int index = index_of(pool, row, start + token, length);
                const bool there = is_entry(pool, index);
                const u32 entry = there ? index : 0, page = entry / pool.page_entries, at = entry % pool.page_entries;
                const u8* from = pool.data + page * pool.page_bytes;
                if (part < 36) copy_16_bytes(to + token * RAW_ROW + part * 16, from + at * ENTRY_BYTES + part * 16, there ? 16 : 0);
                else {
                    copy_8_bytes(to + BLOCK_T * RAW_ROW + token * SCALE_BYTES, from + pool.page_entries * ENTRY_BYTES + at * SCALE_BYTES, there ? 8 : 0);
                    memory[AT_PRESENT + i % STAGES * BLOCK_T + token] = there;
                }
            }
        }
        commit_copies();
    };
    #pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch(i);

    for (int chunk = tid; chunk < BLOCK_H * 64; chunk += THREADS) {
        const int head = chunk / 64, part = chunk % 64;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (head0 + head < a.heads) v = *(const uint4*)(a.q + (i64)row * a.q_stride + (head0 + head) * HEAD_DIMS + part * 8);
        store_shared_16(base + head * ROW + part * 16, v.x, v.y, v.z, v.w);
    }
    float output[M_TILES][D_TILES][4] = {};
    constexpr int ROWS_EACH = BLOCK_H / WARPS;
    float maximum[ROWS_EACH], sum[ROWS_EACH];
    #pragma unroll
    for (int k = 0; k < ROWS_EACH; k++) { maximum[k] = NOTHING; sum[k] = 0.f; }

    for (int i = 0; i < share.count; i++) {
        fetch(i + STAGES - 1);
        wait_for_groups<STAGES - 1>();
        __syncthreads();
        const u8* raw = memory + AT_RAW + i % STAGES * RAW_BYTES;
        for (int chunk = tid; chunk < BLOCK_T * 64; chunk += THREADS) {   // 8 dims
            const int token = chunk / 64, dim = chunk % 64 * 8;
            u32 x[4];
            if (dim < NOPE_DIMS) {
                const volatile u8* scales = raw + BLOCK_T * RAW_ROW + token * SCALE_BYTES;
                const u8* codes = raw + token * RAW_ROW + dim;
                float scale = float_of_ue8m0(scales[dim / 64]);
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    const u32 pair = f16x2_of_e4m3x2(*(const u16*)(codes + 2 * k));
                    if (SCALE_PER_ELEMENT) scale = float_of_ue8m0(scales[(dim + 2 * k) / 64]);
                    const float low = float_of_f16((u16)pair) * scale;
                    if (SCALE_PER_ELEMENT) scale = float_of_ue8m0(scales[(dim + 2 * k + 1) / 64]);
                    x[k] = bf16x2_of(low, float_of_f16((u16)(pair >> 16)) * scale);
                }
            } else {
                const u32* values = (const u32*)(raw + token * RAW_ROW + NOPE_DIMS + (dim - NOPE_DIMS) * 2);
                #pragma unroll
                for (int k = 0; k < 4; k++) x[k] = values[k];
            }
            store_shared_16(base + AT_KEYS + token * ROW + dim * 2, x[0], x[1], x[2], x[3]);
        }
        __syncthreads();
        for (int unit = warp; unit < M_TILES * N_TILES; unit += WARPS) {
            const int m = unit / N_TILES, n = unit % N_TILES;
            float s[2][4] = {};
            const u32 q = base + (m * 16 + (lane & 15)) * ROW + (lane >> 4) * 16;
            const u32 k = base + AT_KEYS + (n * 8 + (lane & 7)) * ROW + (lane >> 3) * 16;
            #pragma unroll 4
            for (int step = 0; step < 16; step++) {                       // 32 dims
                u32 q0[4], q1[4], keys[4];
                load_matrices(q0, q + step * 64);
                load_matrices(q1, q + step * 64 + 32);
                load_matrices(keys, k + step * 64);
                mma_bf16(s[0], q0, keys[0], keys[1]);
                mma_bf16(s[1], q1, keys[2], keys[3]);
            }
            float* to = (float*)(memory + AT_SCORES) + (m * 16 + r) * S_ROW + n * 8 + 2 * c;
            to[0] = s[0][0] + s[1][0];
            to[1] = s[0][1] + s[1][1];
            to[8 * S_ROW] = s[0][2] + s[1][2];
            to[8 * S_ROW + 1] = s[0][3] + s[1][3];
        }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < ROWS_EACH; k++) {
            const int head = warp * ROWS_EACH + k;
            const bool there = lane < BLOCK_T && memory[AT_PRESENT + i % STAGES * BLOCK_T + lane % BLOCK_T];
            float s = there ? ((const float*)(memory + AT_SCORES))[head * S_ROW + lane % BLOCK_T] * a.scale_log2 : 2 * NOTHING;
            s = there ? fmaxf(fminf(s, 5e29f), -5e29f) : 2 * NOTHING;
            float largest = s;
            #pragma unroll
            for (int bit = 16; bit; bit /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
            const float next = fmaxf(maximum[k], largest), growth = exp2_approx(maximum[k] - next), p = exp2_approx(s - next);
            maximum[k] = next;
            sum[k] = sum[k] * growth + p;
            if (lane < BLOCK_T) ((u16*)(memory + AT_WEIGHTS))[head * S_ROW + lane] = (u16)bf16x2_of(p, 0.f);
            if (lane == 0) ((float*)(memory + AT_GROWTH))[head] = growth;
        }
        __syncthreads();
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            const float g0 = ((const float*)(memory + AT_GROWTH))[m * 16 + r], g1 = ((const float*)(memory + AT_GROWTH))[m * 16 + r + 8];
            #pragma unroll
            for (int n = 0; n < D_TILES; n++) { output[m][n][0] *= g0; output[m][n][1] *= g0; output[m][n][2] *= g1; output[m][n][3] *= g1; }
        }
        #pragma unroll
        for (int step = 0; step < BLOCK_T / 16; step++) {
            u32 p[M_TILES][4];
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) load_matrices(p[m], base + AT_WEIGHTS + (m * 16 + (lane & 15)) * S_ROW * 2 + step * 32 + (lane >> 4) * 16);
            #pragma unroll
            for (int n = 0; n < D_TILES; n += 2) {
                u32 v[4];
                load_matrices_transposed(v, base + AT_KEYS + (step * 16 + (lane & 15)) * ROW + (warp * DIMS_EACH + n * 8) * 2 + (lane >> 4) * 16);
                #pragma unroll
                for (int m = 0; m < M_TILES; m++) {
                    mma_bf16(output[m][n], p[m], v[0], v[1]);
                    mma_bf16(output[m][n + 1], p[m], v[2], v[3]);
                }
            }
        }
        __syncthreads();
    }
    #pragma unroll
    for (int k = 0; k < ROWS_EACH; k++) {
        #pragma unroll
        for (int bit = 16; bit; bit /= 2) sum[k] += __shfl_xor_sync(~0u, sum[k], bit);
        float* to = (float*)(memory + AT_SUMS) + (warp * ROWS_EACH + k) * 2;
        if (lane == 0) {
            to[0] = sum[k] > 0.f ? maximum[k] + __log2f(sum[k]) : NOTHING;
            to[1] = sum[k] > 0.f ? 1.f / sum[k] : 0.f;
        }
    }
    __syncthreads();
    const bool whole = share.active == 1;
    #pragma unroll
    for (int half = 0; half < 2 * M_TILES; half++) {
        const int m = half >> 1, k = half & 1, own = m * 16 + r + 8 * k, head = head0 + own;
        if (head >= a.heads) continue;
        const float* total = (const float*)(memory + AT_SUMS) + own * 2;
        const float scale = total[1] * (whole ? share_beside_sink(total[0], a.sink[head]) : 1.f);
        const size_t part = ((size_t)row * a.splits + blockIdx.x) * a.heads + head;
        #pragma unroll
        for (int n = 0; n < D_TILES; n++) {
            const int dim = warp * DIMS_EACH + n * 8 + 2 * c;
            const float x = output[m][n][2 * k] * scale, y = output[m][n][2 * k + 1] * scale;
            if (whole) *(u32*)(a.out + (i64)row * a.out_stride + head * HEAD_DIMS + dim) = bf16x2_of(x, y);
            else *(float2*)(a.partial + part * HEAD_DIMS + dim) = make_float2(x, y);
        }
        if (!whole && warp == 0 && c == 0) a.partial_log[part] = total[0];
    }
    if (!whole) merge_if_last<BLOCK_H, WARPS>(a, row, blockIdx.y, share.active);
}
