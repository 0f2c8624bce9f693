// Version 5: version 4's division of labour on tiles of 64 tokens, with two barriers instead of one a 32-token tile.
//
// A block is HEAD_GROUPS x 16 heads of one row and a run of 64-token tiles; eight warps a head group.
//   scores   warp w multiplies dims 128 (w & 3) .. +127 of 32 tokens: its queries stay in 32 registers for the whole
//            run, E4M3 becomes f16 in registers (exact), UE8M0 multiplies the 64-wide partial sums (exact)
//   softmax  warp w owns heads w and w + 8: adds up the four partial scores, keeps maximum and sum in registers
//   values   warp w owns dims 64 w .. 64 w + 63 of all 16 heads (w = 7: the rotary ones)
// Between the barrier after softmax i and the one after scores i + 1 a warp does values i and scores i + 1 without
// waiting for anybody but the copies.
//
// For 16 heads and 640 entries: 374 kB + 33 kB moved, 21 MFLOP. Per tile and block 512 MMA and about 6,600 warp
// instructions (version 4: 8,200 for 64 tokens). MMA alone takes 0.56 us of one multiprocessor, the copy of 37.4 kB 1.15 us at
// 4.3 TB/s over 132.
//
// Taught (H200, 16 heads, 640 entries): 34 us at 128 rows and 51 at 256. Of the 51: 11 with neither copies nor work, 34 with
// copies only, 38 with all work but no copies: they overlap, but not by half. Alone on a multiprocessor a tile takes 2.24 us, with
// a second block beside it 4.15 for two: a chain of waits, not the issue rate (45 %), is what a tile costs.
// The same kernel with unused shared memory, so that only one block fits: 67 us at 256 rows instead of 51.
//
// Shared memory (bytes)         1 head group   2
//   entries   2 x 64 x (592+8)        76,800   76,800
//   scores    4 x 8 x 576             18,432   36,864
//   weights   16 x 144                 2,304    4,608
//   growth    16 x 4                      64      128
//   factors   8 x 128                  1,024    2,048
//   masks, barriers, totals              288      416
//   sum                               98,912  120,864
// The limit of a block is 101,376 on sm_120 and 232,448 on sm_90: one head group fits once and twice, two need sm_90.
//
// Softmax weights are f16 relative to a maximum that follows only in steps of 2^4; those below 2^-24 of the largest
// vanish. Exponents of one group may lie up to 16 below the largest so far on the fast path; a tile that has others
// takes the slow path (float32, any exponent), for that warp alone.
#include "merge.cuh"

#ifndef HEAD_GROUPS
#define HEAD_GROUPS 1
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef BLOCKS_PER_SM
#define BLOCKS_PER_SM 2
#endif
#ifndef ABLATE      // to place the time, with wrong results: 1 no copies, 2 no scores, 4 no values, 8 no softmax
#define ABLATE 0
#endif

constexpr int TILE = 64, PITCH = 592;   // 37 x 16: eight rows lie in eight different groups of banks
constexpr int WARPS = 8 * HEAD_GROUPS, THREADS = 32 * WARPS, HEADS = 16 * HEAD_GROUPS;
constexpr int OWN = TILE / WARPS;       // entries of a tile that a warp fetches
constexpr int STAGE_BYTES = TILE * (PITCH + SCALE_BYTES);
constexpr int SCORE_BLOCK = 576;        // 16 heads x 8 tokens as the MMA leaves them, 512 bytes, and 64 against conflicts
constexpr int WEIGHT_PITCH = 144;       // 64 weights of a head, and 16 bytes against conflicts
constexpr int AT_SCORES = STAGES * STAGE_BYTES, AT_WEIGHTS = AT_SCORES + 4 * 8 * SCORE_BLOCK * HEAD_GROUPS;
constexpr int AT_GROWTH = AT_WEIGHTS + HEADS * WEIGHT_PITCH, AT_FACTORS = AT_GROWTH + HEADS * 4;
constexpr int AT_MASKS = AT_FACTORS + WARPS * TILE * 2, AT_TOTALS = AT_MASKS + STAGES * TILE;
constexpr int AT_BARRIERS = AT_TOTALS + HEADS * 8;
constexpr int SHARED_BYTES = AT_BARRIERS + STAGES * 16;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/decode/variant.rs counts other shared memory");
#endif

#define MINUS_INFINITY __uint_as_float(0xff800000u)
constexpr float GROWTH_STEP = 4.f;      // the maximum follows when a score passes it by more (log2)
constexpr int WEIGHT_BITS = 10;         // weights are at most 2^4; times 2^10 they end at f16's 2^14
constexpr int SPREAD = 16;              // 1.0 at the smallest exponent is then 2^-6: full precision down to 2^-8

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) decode(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 base = shared_address(memory);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int w = warp & 7, head_group = warp >> 3;
    const int quarter = w & 3, token_half = w >> 2;          // scores: which 128 dims, which 32 tokens
    const int r = lane >> 2, c = lane & 3;                   // row and column of an MMA fragment
    const int row = blockIdx.z, head0 = (blockIdx.y * HEAD_GROUPS + head_group) * 16;

    const Share share = share_of(a, row, blockIdx.x, TILE);
    if ((int)blockIdx.x >= share.active) return;
    const int count = share.count;

    // ---- copies: every warp fetches OWN entries of a tile; lane k knows where entry k lies
    auto index_at = [&](int i) -> int {
        const int tile = share.first + i, own = warp * OWN + (lane & (OWN - 1));
        if (i >= count) return -1;
        return tile < share.window_tiles
            ? index_of(a.window, row, tile * TILE + own, share.window_length)
            : index_of(a.extra, row, (tile - share.window_tiles) * TILE + own, share.extra_length);
    };
    int index = index_at(0);
    auto fetch = [&](int i) {
        const int slot = i % STAGES;
        const bool window = share.first + i < share.window_tiles;
        const u8* data = window ? a.window.data : a.extra.data;
        const u32 page_entries = window ? a.window.page_entries : a.extra.page_entries;
        const u32 page_words = (u32)((window ? a.window.page_bytes : a.extra.page_bytes) >> 4);   // of 16 bytes
        const bool there = is_entry(window ? a.window : a.extra, index);
        const u32 entry = there ? index : 0, page = entry / page_entries, at = entry - page * page_entries;
        const u32 present = __ballot_sync(~0u, there);
        const u32 words = page * page_words + at * (ENTRY_BYTES / 16);   // 32 bits reach 64 GiB
        const u32 to = base + slot * STAGE_BYTES + warp * OWN * PITCH + lane * 16, barrier = base + AT_BARRIERS + slot * 8;
        const u8* from = data + lane * 16;
        if (!(ABLATE & 1)) {
            #pragma unroll
            for (int k = 0; k < OWN; k++)
                copy_16_bytes(to + k * PITCH, from + (u64)__shfl_sync(~0u, words, k) * 16, (present >> k) & 1 ? 16 : 0);
            const int k = lane >> 2;                          // the last 64 bytes of eight entries at once
            const u32 tail = __shfl_sync(~0u, words, k);
            if (k < OWN)
                copy_16_bytes(base + slot * STAGE_BYTES + (warp * OWN + k) * PITCH + 512 + c * 16, data + (u64)tail * 16 + 512 + c * 16, (present >> k) & 1 ? 16 : 0);
            if (lane < OWN)
                copy_8_bytes(base + slot * STAGE_BYTES + TILE * PITCH + (warp * OWN + lane) * SCALE_BYTES,
                             data + (u64)page * page_words * 16 + page_entries * ENTRY_BYTES + at * SCALE_BYTES, there ? 8 : 0);
        }
        if (lane < OWN) store_shared_u8(base + AT_MASKS + slot * TILE + warp * OWN + lane, there);
        barrier_arrive_after_copies(barrier);
        index = index_at(i + 1);
    };

    // ---- queries: 16 heads x 128 dims in A fragments. Dims are permuted within 16 as the bytes of an entry fall:
    // column c of the fragment holds dims 4c .. 4c+3. Rotary dims (quarter 3, second half) keep the usual order.
    u32 query[2][4][4];
    const bool rotary = quarter == 3;
    u32 top[2] = {0, 0};
    #pragma unroll
    for (int h = 0; h < 2; h++)
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            #pragma unroll
            for (int k = 0; k < 2; k++) {
                const int head = head0 + r + 8 * k;
                const u16* q = a.q + (i64)row * a.q_stride + head * HEAD_DIMS + quarter * 128 + h * 64 + 16 * j;
                uint2 v = make_uint2(0, 0);
                if (head < a.heads) {
                    if (h == 1 && rotary) v = make_uint2(*(const u32*)(q + 2 * c), *(const u32*)(q + 8 + 2 * c));
                    else v = *(const uint2*)(q + 4 * c);
                }
                query[h][j][k] = v.x;
                query[h][j][2 + k] = v.y;
                top[k] = max(max(max(top[k], v.x & 0x7fff), (v.x >> 16) & 0x7fff), max(v.y & 0x7fff, (v.y >> 16) & 0x7fff));
            }
        }
    if (threadIdx.x < STAGES) barrier_init(base + AT_BARRIERS + threadIdx.x * 8, THREADS);
    // Each head's queries are scaled by a power of two so that the largest lies in [2^14, 2^15): f16 then holds every
    // bf16 number within 2^-38 of the largest.
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 1));
        top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 2));
        if (c == 0 && token_half == 0)
            store_shared_u32(base + AT_SCORES + ((head_group * 4 + quarter) * 16 + r + 8 * k) * 4, top[k]);
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < STAGES; i++)
        if (i < count) fetch(i);
    auto query_shift = [&](int head) -> int {
        u32 largest = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++)
            largest = max(largest, load_shared_u32(base + AT_SCORES + ((head_group * 4 + i) * 16 + head) * 4));
        return min(max(127 + 14 - (int)(largest >> 7), -120), 120);
    };
    const float up[2] = {float_of_ue8m0(127 + query_shift(r)), float_of_ue8m0(127 + query_shift(r + 8))};
    const int own_half = (lane >> 2) & 1, own_head = w + 8 * own_half, own_block = lane >> 3;   // softmax: tokens 8 own_block + 2c, + 1, + 32, + 33
    const float score_scale = a.scale_log2 * float_of_ue8m0(127 - query_shift(own_head));
    #pragma unroll
    for (int h = 0; h < 2; h++)
        #pragma unroll
        for (int j = 0; j < 4; j++)
            #pragma unroll
            for (int k = 0; k < 4; k++) {
                const float low = low_bf16(query[h][j][k]) * up[k & 1], high = high_bf16(query[h][j][k]) * up[k & 1];
                query[h][j][k] = h == 1 && rotary ? bf16x2_of(low, high) : f16x2_of(low, high);
            }
    __syncthreads();   // the maxima are read: their place is the scores' now

    float output[8][4];
    #pragma unroll
    for (int n = 0; n < 8; n++) output[n][0] = output[n][1] = output[n][2] = output[n][3] = 0.f;
    float maximum = NOTHING, sum = 0.f;   // of own_head; the sum is over this lane's tokens only
    int exponent = 0;                     // output is in units of 2^(exponent - 127 - WEIGHT_BITS)

    auto scores = [&](int i) {
        const int slot = i % STAGES;
        const u32 entries = base + slot * STAGE_BYTES;
        barrier_wait(base + AT_BARRIERS + slot * 8, (i / STAGES) & 1);
        const u32 keys = entries + (token_half * 32 + (lane & 7)) * PITCH + (lane >> 3) * 16 + quarter * 128;
        const u32 to = base + AT_SCORES + ((head_group * 4 + quarter) * 8 + token_half * 4) * SCORE_BLOCK + lane * 16;
        const u32 scales = entries + TILE * PITCH + (token_half * 32 + 2 * c) * SCALE_BYTES + 2 * quarter;
        #pragma unroll
        for (int pair = 0; pair < (ABLATE & 2 ? 0 : 2); pair++) {   // 16 tokens: four chains of four MMA
            float part[2][2][4] = {};         // [half of the 128 dims][8 tokens]
            const u32 rows = keys + pair * 16 * PITCH;
            u32 k[2][4];
            load_matrices(k[0], rows);
            load_matrices(k[1], rows + 8 * PITCH);
            if (!rotary) {
                u32 l[2][4];
                load_matrices(l[0], rows + 64);
                load_matrices(l[1], rows + 64 + 8 * PITCH);
                #pragma unroll
                for (int j = 0; j < 4; j++)
                    #pragma unroll
                    for (int n = 0; n < 2; n++) {
                        mma_f16(part[0][n], query[0][j], f16x2_of_e4m3x2((u16)k[n][j]), f16x2_of_e4m3x2((u16)(k[n][j] >> 16)));
                        mma_f16(part[1][n], query[1][j], f16x2_of_e4m3x2((u16)l[n][j]), f16x2_of_e4m3x2((u16)(l[n][j] >> 16)));
                    }
            } else {
                #pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 l[2][4];
                    load_matrices(l[0], rows + 64 + half * 64);
                    load_matrices(l[1], rows + 64 + half * 64 + 8 * PITCH);
                    #pragma unroll
                    for (int j = 0; j < 2; j++)
                        #pragma unroll
                        for (int n = 0; n < 2; n++) {
                            const int s = half * 2 + j;
                            mma_f16(part[0][n], query[0][s], f16x2_of_e4m3x2((u16)k[n][s]), f16x2_of_e4m3x2((u16)(k[n][s] >> 16)));
                            mma_bf16(part[1][n], query[1][s], l[n][2 * j], l[n][2 * j + 1]);
                        }
                }
            }
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                const u32 at = scales + (pair * 16 + n * 8) * SCALE_BYTES;
                const u32 e0 = load_shared_u16(at), e1 = load_shared_u16(at + SCALE_BYTES);
                const float f0 = float_of_ue8m0(e0 & 255), f1 = float_of_ue8m0(e1 & 255);
                const float g0 = rotary ? 1.f : __uint_as_float((e0 & 0xff00) << 15), g1 = rotary ? 1.f : __uint_as_float((e1 & 0xff00) << 15);
                store_shared_floats(to + (pair * 2 + n) * SCORE_BLOCK,
                                    part[0][n][0] * f0 + part[1][n][0] * g0, part[0][n][1] * f1 + part[1][n][1] * g1,
                                    part[0][n][2] * f0 + part[1][n][2] * g0, part[0][n][3] * f1 + part[1][n][3] * g1);
            }
        }
    };

    auto softmax = [&](int i) {
        const u32 from = base + AT_SCORES + (head_group * 32 + own_block) * SCORE_BLOCK + w * 64 + c * 16 + own_half * 8;
        float2 s[2];
        #pragma unroll
        for (int n = 0; n < 2; n++) {
            s[n] = load_shared_float2(from + n * 4 * SCORE_BLOCK);
            #pragma unroll
            for (int part = 1; part < 4; part++) {
                const float2 x = load_shared_float2(from + (part * 8 + n * 4) * SCORE_BLOCK);
                s[n].x += x.x;
                s[n].y += x.y;
            }
            const u32 present = load_shared_u16(base + AT_MASKS + (i % STAGES) * TILE + n * 32 + own_block * 8 + 2 * c);
            s[n].x = present & 1 ? s[n].x : MINUS_INFINITY;
            s[n].y = present & 256 ? s[n].y : MINUS_INFINITY;
        }
        float largest = fmaxf(fmaxf(s[0].x, s[0].y), fmaxf(s[1].x, s[1].y));
        #pragma unroll
        for (int bit = 0; bit < 4; bit++) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit < 2 ? 1 << bit : 2 << bit));
        largest = fminf(__fmul_rn(largest, score_scale), 1e30f);
        float growth = 1.f;
        if (largest > maximum + GROWTH_STEP) {
            growth = exp2_approx(maximum - largest);
            maximum = largest;
        }
        sum *= growth;
        // A lane of the values part reads its 16 tokens (those with its c) as 32 consecutive bytes.
        const u32 to = base + AT_WEIGHTS + (head_group * 16 + own_head) * WEIGHT_PITCH + c * 32 + own_block * 4;
        #pragma unroll
        for (int n = 0; n < 2; n++) {
            // Rounded before the difference, as the maximum was: with a fused one the largest of huge scores is not 0
            // apart from itself. The minimum only matters to scores that are no numbers: they get a weight all the same.
            const float p0 = exp2_approx(fminf(__fmul_rn(s[n].x, score_scale) - maximum, GROWTH_STEP));
            const float p1 = exp2_approx(fminf(__fmul_rn(s[n].y, score_scale) - maximum, GROWTH_STEP));
            sum += p0 + p1;
            store_shared_u32(to + n * 16, f16x2_of(p0, p1));
        }
        if ((lane & 27) == 0) store_shared_float(base + AT_GROWTH + (head_group * 16 + own_head) * 4, growth);
    };

    auto values = [&](int i) {
        const u32 entries = base + (i % STAGES) * STAGE_BYTES;
        const u32 weights = base + AT_WEIGHTS + (head_group * 16 + r) * WEIGHT_PITCH + c * 32;
        const u32 growths = base + AT_GROWTH + (head_group * 16 + r) * 4;
        float growth0 = load_shared_float(growths), growth1 = load_shared_float(growths + 32);
        const u32 scales = entries + TILE * PITCH + w;
        bool slow = false, odd = growth0 != 1.f || growth1 != 1.f;
        if (w < 7) {
            u32 e[2];
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                e[n] = load_shared_u8(scales + (lane + 32 * n) * SCALE_BYTES);
                odd |= (u32)(exponent - (int)e[n]) > SPREAD && e[n];
            }
            if (__any_sync(~0u, odd)) {
                const int largest = (int)__reduce_max_sync(~0u, max(e[0], e[1]));
                const int smallest = (int)__reduce_min_sync(~0u, min(e[0] ? e[0] : 255u, e[1] ? e[1] : 255u));
                if (largest > exponent) {
                    const float shrink = float_of_ue8m0(max(127 + exponent - largest, 0));
                    growth0 *= shrink;
                    growth1 *= shrink;
                    exponent = largest;
                }
                slow = smallest + SPREAD < exponent && !(ABLATE & 1);
                #pragma unroll
                for (int n = 0; n < 8; n++) {
                    output[n][0] *= growth0; output[n][1] *= growth0;
                    output[n][2] *= growth1; output[n][3] *= growth1;
                }
            }
            const u32 factors = base + AT_FACTORS + warp * TILE * 2 + ((lane >> 1) & 3) * 32 + (lane >> 3) * 4 + (lane & 1) * 2;
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                const u32 bits = (e[n] + (WEIGHT_BITS + 15) - exponent) << 10;
                store_shared_u16(factors + n * 16, (u16)(e[n] ? bits : 0));
            }
            __syncwarp();
        } else if (__any_sync(~0u, odd)) {
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                output[n][0] *= growth0; output[n][1] *= growth0;
                output[n][2] *= growth1; output[n][3] *= growth1;
            }
        }
        const u32 columns = entries + lane * PITCH;           // transposed: 32 tokens x 16 bytes at a time
        if (w == 7) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 p0 = load_shared_16(weights + half * 16), p1 = load_shared_16(weights + half * 16 + 8 * WEIGHT_PITCH);
                u32 p[2][4] = {{p0.x, p1.x, p0.y, p1.y}, {p0.z, p1.z, p0.w, p1.w}};   // A fragments of 16 tokens each
                #pragma unroll
                for (int s = 0; s < 2; s++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) p[s][k] = bf16x2_of(float_of_f16((u16)p[s][k]), float_of_f16((u16)(p[s][k] >> 16)));
                #pragma unroll
                for (int n = 0; n < 8; n++) {
                    u32 v[4];
                    load_matrices_transposed(v, columns + half * 32 * PITCH + NOPE_DIMS + n * 16);
                    mma_bf16(output[n], p[0], v[0], v[1]);
                    mma_bf16(output[n], p[1], v[2], v[3]);
                }
            }
        } else if (!slow) {
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 p0 = load_shared_16(weights + half * 16), p1 = load_shared_16(weights + half * 16 + 8 * WEIGHT_PITCH);
                const uint4 f = load_shared_16(base + AT_FACTORS + warp * TILE * 2 + c * 32 + half * 16);
                const u32 p[2][4] = {
                    {multiply_f16x2(p0.x, f.x), multiply_f16x2(p1.x, f.x), multiply_f16x2(p0.y, f.y), multiply_f16x2(p1.y, f.y)},
                    {multiply_f16x2(p0.z, f.z), multiply_f16x2(p1.z, f.z), multiply_f16x2(p0.w, f.w), multiply_f16x2(p1.w, f.w)}};
                #pragma unroll
                for (int block = 0; block < 4; block++) {     // 16 dims: the even ones and the odd ones are two MMA columns
                    u32 v[4];
                    load_matrices_transposed(v, columns + half * 32 * PITCH + w * 64 + block * 16);
                    #pragma unroll
                    for (int m = 0; m < 4; m++) v[m] = __byte_perm(v[m], 0, 0x3120);   // (token, token + 1) of an even dim, then of an odd one
                    #pragma unroll
                    for (int s = 0; s < 2; s++) {
                        mma_f16(output[2 * block], p[s], f16x2_of_e4m3x2((u16)v[2 * s]), f16x2_of_e4m3x2((u16)v[2 * s + 1]));
                        mma_f16(output[2 * block + 1], p[s], f16x2_of_e4m3x2((u16)(v[2 * s] >> 16)), f16x2_of_e4m3x2((u16)(v[2 * s + 1] >> 16)));
                    }
                }
            }
        } else {
            #pragma unroll 1
            for (int token = 0; token < TILE; token++) {
                const u32 e = load_shared_u8(scales + token * SCALE_BYTES);
                const u32 at = base + AT_WEIGHTS + (head_group * 16 + r) * WEIGHT_PITCH + ((token >> 1) & 3) * 32 + (token >> 3) * 4 + (token & 1) * 2;
                const float scale = e ? float_of_ue8m0(max(127 + (int)e - exponent, 0)) * (1 << WEIGHT_BITS) : 0.f;
                const float x = float_of_f16(load_shared_u16(at)) * scale, y = float_of_f16(load_shared_u16(at + 8 * WEIGHT_PITCH)) * scale;
                #pragma unroll
                for (int block = 0; block < 4; block++) {
                    const u32 v = load_shared_u32(entries + token * PITCH + w * 64 + block * 16 + 4 * c);
                    #pragma unroll
                    for (int d = 0; d < 4; d++) {
                        const float value = float_of_e4m3((u8)(v >> (8 * d)));
                        output[2 * block + (d & 1)][d >> 1] += x * value;
                        output[2 * block + (d & 1)][2 + (d >> 1)] += y * value;
                    }
                }
            }
        }
    };

    for (int i = 0; i < count; i++) {
        scores(i);
        __syncthreads();   // scores are there; values of i - 1 are done with their entries
        if (i > 0 && i + STAGES - 1 < count) fetch(i + STAGES - 1);
        if (!(ABLATE & 8)) softmax(i);
        __syncthreads();   // weights are there
        if (!(ABLATE & 4)) values(i);
    }

    // ---- the end: sums over lanes, then each warp writes its dims
    #pragma unroll
    for (int bit = 0; bit < 4; bit++) sum += __shfl_xor_sync(~0u, sum, bit < 2 ? 1 << bit : 2 << bit);
    const u32 totals = base + AT_TOTALS + head_group * 128;   // log2 of the sum of exponentials, and maximum's share of it
    if ((lane & 27) == 0) {
        const float log = sum > 0.f ? maximum + __log2f(sum) : NOTHING;
        store_shared_float(totals + own_head * 8, log);
        store_shared_float(totals + own_head * 8 + 4, sum > 0.f ? 1.f / sum : 0.f);
    }
    __syncthreads();
    const bool whole = share.active == 1;
    const int half_exponent = (exponent - 127 - WEIGHT_BITS) / 2;   // in two steps: 2^(exponent - 137) may be no float
    const float step0 = float_of_ue8m0(127 + half_exponent), step1 = float_of_ue8m0(exponent - WEIGHT_BITS - half_exponent);
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        const int head = head0 + r + 8 * k;
        if (head >= a.heads) continue;
        const float2 total = load_shared_float2(totals + (r + 8 * k) * 8);
        const float scale = total.y * (whole ? share_beside_sink(total.x, a.sink[head]) : 1.f);
        const size_t part = ((size_t)row * a.splits + blockIdx.x) * a.heads + head;
        u16* whole_out = a.out + (i64)row * a.out_stride + head * HEAD_DIMS;
        float* part_out = a.partial + part * HEAD_DIMS;
        if (w < 7) {
            #pragma unroll
            for (int block = 0; block < 4; block++) {
                float x[4];
                #pragma unroll
                for (int d = 0; d < 4; d++) x[d] = output[2 * block + (d & 1)][2 * k + (d >> 1)] * step0 * scale * step1;
                const int dim = w * 64 + block * 16 + 4 * c;
                if (whole) *(uint2*)(whole_out + dim) = make_uint2(bf16x2_of(x[0], x[1]), bf16x2_of(x[2], x[3]));
                else *(float4*)(part_out + dim) = make_float4(x[0], x[1], x[2], x[3]);
            }
        } else {
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                const float x = output[n][2 * k] * scale, y = output[n][2 * k + 1] * scale;
                const int dim = NOPE_DIMS + n * 8 + 2 * c;
                if (whole) *(u32*)(whole_out + dim) = bf16x2_of(x, y);
                else *(float2*)(part_out + dim) = make_float2(x, y);
            }
        }
        if (!whole && w == 0 && c == 0) a.partial_log[part] = total.x;
    }
    if (!whole) merge_if_last<HEADS, WARPS>(a, row, blockIdx.y, share.active);
}
