// Version 3: the prototype, before its barriers were counted. Raw bytes in shared memory, converted by whoever multiplies them;
// every stage by all warps, a barrier after each; one launch, the last block of a row merges.
//
// A block is 16 heads of one row and a run of 64-token tiles; eight warps, three barriers a tile.
//   scores   warp w multiplies all 512 dims of tokens 8 w .. 8 w + 7: queries lie in shared memory as MMA fragments, E4M3
//            becomes f16 in registers (exact), UE8M0 multiplies the 64-wide partial sums (exact)
//   softmax  the same warp for the same tokens: maxima of all warps meet in shared memory, the weights go there twice, as f16
//            for the values of E4M3 and as bf16 for the rotary ones
//   values   warp w owns dims 64 w .. 64 w + 63 of all 16 heads (w = 7: the rotary ones)
//
// For 16 heads and 640 entries: 374 kB + 33 kB moved, 21 MFLOP. Per tile and block 512 MMA.
//
// Taught (H200, the prototype itself, 16 heads, 640 entries: 25 us at 64 rows, 34 at 128, 52 at 256; 1.2 to 1.7 times as quick
// as FlashMLA padded to 64 heads from 32 rows up, level or slower at 32 and 64 heads):
//   - one scale byte a group and token instead of one an element, eight warps instead of four (28.3 us to 25.6 at 64 rows), and
//     one division a token instead of one a 16-byte copy are worth more than more blocks or more stages: a third stage
//     costs the second block of a multiprocessor and brings nothing;
//   - leaving out copies, scores or values takes about as much time as each takes alone: nothing overlaps, as every stage ends
//     at a barrier. Versions 4 and on are about that;
//   - queries in shared memory are read again for each tile by each warp: 16 kB x 8 warps; registers hold them from version 4 on.
// This port is not the prototype's times: those took exponents of 107 to 136 only and |q| below 65,504. Here queries are scaled
// a head and exponents follow the largest, as in version 5, so that it passes the checks of all versions. It was checked in the
// emulator; its own times are to be measured.
//
// Shared memory (bytes)
//   queries   32 x 512                16,384
//   entries   2 x 64 x (592+8)        76,800
//   weights   2 x 16 x 144             4,608
//   factors   8 x 128                  1,024
//   maxima    8 x 16 x 4                 512
//   places    4 x 64 x 8               2,048
//   sum                              101,376
// Which is all that a block may have on sm_120: one there, two on sm_90.
#include "merge.cuh"

constexpr int TILE = 64, PITCH = 592, STAGES = 2, WARPS = 8, THREADS = 32 * WARPS, HEADS = 16;
constexpr int STAGE_BYTES = TILE * (PITCH + SCALE_BYTES), STEPS = TILE / 16;
constexpr int WEIGHT_PITCH = 2 * (TILE + 8);   // bytes
constexpr int AT_ENTRIES = 32 * 512, AT_F16 = AT_ENTRIES + STAGES * STAGE_BYTES, AT_BF16 = AT_F16 + HEADS * WEIGHT_PITCH;
constexpr int AT_FACTORS = AT_BF16 + HEADS * WEIGHT_PITCH, AT_MAXIMA = AT_FACTORS + WARPS * TILE * 2;
constexpr int AT_PLACES = AT_MAXIMA + WARPS * HEADS * 4, PLACES = 4;
constexpr int SHARED_BYTES = AT_PLACES + PLACES * TILE * 8;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/decode/variant.rs counts other shared memory");
#endif

#define MINUS_INFINITY __uint_as_float(0xff800000u)
constexpr u64 NOWHERE = ~0ull;
constexpr int WEIGHT_BITS = 14;         // weights are at most 1: times 2^14 they are within f16
constexpr int SPREAD = 16;              // 1.0 at the smallest exponent is then 2^-2

extern "C" __global__ void __launch_bounds__(THREADS, 2) decode(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 base = shared_address(memory);
    const int thread = threadIdx.x, lane = thread & 31, w = thread >> 5;
    const int r = lane >> 2, c = lane & 3;                   // row and column of an MMA fragment
    const int row = blockIdx.z, head0 = blockIdx.y * HEADS;

    const Share share = share_of(a, row, blockIdx.x, TILE);
    if ((int)blockIdx.x >= share.active) return;
    const int count = share.count;

    // ---- copies: a place is where a token's page begins, and its slot there
    auto index_at = [&](int i) -> int {
        const int tile = share.first + i;
        if (i >= count) return -1;
        return tile < share.window_tiles
            ? index_of(a.window, row, tile * TILE + thread, share.window_length)
            : index_of(a.extra, row, (tile - share.window_tiles) * TILE + thread, share.extra_length);
    };
    auto place_at = [&](int i) -> u32 { return base + AT_PLACES + (i % PLACES) * TILE * 8; };
    auto put_place = [&](int i, int index) {
        const bool window = share.first + i < share.window_tiles;
        const Pool& pool = window ? a.window : a.extra;
        u64 place = NOWHERE;
        if (is_entry(pool, index)) {
            const int page = index / pool.page_entries;
            place = (u64)page * (u64)pool.page_bytes << 20 | (u32)(index - page * pool.page_entries);
        }
        store_shared_8(place_at(i) + thread * 8, place);
    };
    auto gather = [&](int i) {
        if (i < count) {
            const bool window = share.first + i < share.window_tiles;
            const u8* data = window ? a.window.data : a.extra.data;
            const u32 page_entries = window ? a.window.page_entries : a.extra.page_entries;
            const u32 places = place_at(i), to = base + AT_ENTRIES + (i % STAGES) * STAGE_BYTES;
            auto copy = [&](int token, int byte) {
                const u64 place = load_shared_8(places + token * 8), known = place == NOWHERE ? 0 : place;
                copy_16_bytes(to + token * PITCH + byte, data + (known >> 20) + (known & 0xfffff) * ENTRY_BYTES + byte, place == NOWHERE ? 0 : 16);
            };
            #pragma unroll
            for (int k = 0; k < TILE / WARPS; k++) copy(w * (TILE / WARPS) + k, lane * 16);
            copy(w * (TILE / WARPS) + (lane >> 2), 512 + c * 16);   // the last 64 bytes of eight entries at once
            if (thread < TILE) {
                const u64 place = load_shared_8(places + thread * 8), known = place == NOWHERE ? 0 : place;
                copy_8_bytes(to + TILE * PITCH + thread * SCALE_BYTES,
                             data + (known >> 20) + (u64)page_entries * ENTRY_BYTES + (known & 0xfffff) * SCALE_BYTES, place == NOWHERE ? 0 : 8);
            }
        }
        commit_copies();
    };
    if (thread < TILE)
        #pragma unroll
        for (int i = 0; i < STAGES; i++) put_place(i, index_at(i));
    __syncthreads();
    gather(0);

    // ---- queries: fragment f holds dims 16 f .. 16 f + 15 of all heads, permuted as the bytes of an entry fall: column c has
    // dims 4c .. 4c+3. Rotary dims (f from 28 on) keep the usual order. Each head is scaled by a power of two, so that its
    // largest number lies in [2^14, 2^15).
    u32 query[4][4], top[2] = {0, 0};
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        const int f = w + 8 * j;
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            const int head = head0 + r + 8 * k;
            const u16* q = a.q + (i64)row * a.q_stride + head * HEAD_DIMS + f * 16;
            uint2 v = make_uint2(0, 0);
            if (head < a.heads) v = f < 28 ? *(const uint2*)(q + 4 * c) : make_uint2(*(const u32*)(q + 2 * c), *(const u32*)(q + 8 + 2 * c));
            query[j][k] = v.x;
            query[j][2 + k] = v.y;
            top[k] = max(max(max(top[k], v.x & 0x7fff), (v.x >> 16) & 0x7fff), max(v.y & 0x7fff, (v.y >> 16) & 0x7fff));
        }
    }
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 1));
        top[k] = max(top[k], __shfl_xor_sync(~0u, top[k], 2));
        if (c == 0) store_shared_u32(base + AT_MAXIMA + (w * HEADS + r + 8 * k) * 4, top[k]);
    }
    __syncthreads();
    float score_scale[2];
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        u32 largest = 0;
        #pragma unroll
        for (int other = 0; other < WARPS; other++) largest = max(largest, load_shared_u32(base + AT_MAXIMA + (other * HEADS + r + 8 * k) * 4));
        const int shift = min(max(127 + 14 - (int)(largest >> 7), -120), 120);
        const float up = float_of_ue8m0(127 + shift);
        score_scale[k] = a.scale_log2 * float_of_ue8m0(127 - shift);
        #pragma unroll
        for (int j = 0; j < 4; j++)
            #pragma unroll
            for (int half = 0; half < 2; half++) {
                u32& v = query[j][2 * half + k];
                const float low = low_bf16(v) * up, high = high_bf16(v) * up;
                v = w + 8 * j < 28 ? f16x2_of(low, high) : bf16x2_of(low, high);
            }
    }
    #pragma unroll
    for (int j = 0; j < 4; j++) store_shared_16(base + (w + 8 * j) * 512 + lane * 16, query[j][0], query[j][1], query[j][2], query[j][3]);

    float output[8][4] = {};
    float maximum[2] = {NOTHING, NOTHING}, sum[2] = {0.f, 0.f};   // of heads r and r + 8; the sums over this lane's tokens only
    int exponent = 0;                                             // output is in units of 2^(exponent - 127 - WEIGHT_BITS)
    auto fragment = [&](int f, u32 (&q)[4]) {
        const uint4 v = load_shared_16(base + f * 512 + lane * 16);
        q[0] = v.x; q[1] = v.y; q[2] = v.z; q[3] = v.w;
    };

    for (int i = 0; i < count; i++) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();   // entries of i are there; values of i - 1 are done with theirs
        gather(i + STAGES - 1);
        const int next_index = thread < TILE ? index_at(i + STAGES) : -1;
        const u32 entries = base + AT_ENTRIES + (i % STAGES) * STAGE_BYTES, scales = entries + TILE * PITCH;

        // ---- scores of tokens 8 w .. 8 w + 7
        float s[4] = {};
        const u32 keys = entries + (w * 8 + (lane & 7)) * PITCH + (lane >> 3) * 16;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 k[4], q[4];
            load_matrices(k, keys + NOPE_DIMS + half * 64);
            #pragma unroll
            for (int j = 0; j < 2; j++) {
                fragment(28 + 2 * half + j, q);
                mma_bf16(s, q, k[2 * j], k[2 * j + 1]);
            }
        }
        const u64 e0 = load_shared_8(scales + (w * 8 + 2 * c) * SCALE_BYTES), e1 = load_shared_8(scales + (w * 8 + 2 * c + 1) * SCALE_BYTES);
        #pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            float part[4] = {};
            u32 k[4], q[4];
            load_matrices(k, keys + g * 64);
            #pragma unroll
            for (int j = 0; j < 4; j++) {
                fragment(4 * g + j, q);
                mma_f16(part, q, f16x2_of_e4m3x2((u16)k[j]), f16x2_of_e4m3x2((u16)(k[j] >> 16)));
            }
            const float f0 = float_of_ue8m0((u32)(e0 >> (8 * g)) & 255), f1 = float_of_ue8m0((u32)(e1 >> (8 * g)) & 255);
            s[0] += part[0] * f0; s[1] += part[1] * f1;
            s[2] += part[2] * f0; s[3] += part[3] * f1;
        }

        // ---- softmax: the maximum over all warps, then the weights
        const bool there0 = load_shared_8(place_at(i) + (w * 8 + 2 * c) * 8) != NOWHERE, there1 = load_shared_8(place_at(i) + (w * 8 + 2 * c + 1) * 8) != NOWHERE;
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            s[2 * k] = there0 ? __fmul_rn(s[2 * k], score_scale[k]) : MINUS_INFINITY;
            s[2 * k + 1] = there1 ? __fmul_rn(s[2 * k + 1], score_scale[k]) : MINUS_INFINITY;
            float largest = fmaxf(s[2 * k], s[2 * k + 1]);
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            if (c == 0) store_shared_float(base + AT_MAXIMA + (w * HEADS + r + 8 * k) * 4, largest);
        }
        __syncthreads();   // all maxima are there
        float growth[2];
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            float largest = maximum[k];
            #pragma unroll
            for (int other = 0; other < WARPS; other++) largest = fmaxf(largest, load_shared_float(base + AT_MAXIMA + (other * HEADS + r + 8 * k) * 4));
            largest = fminf(largest, 1e30f);
            growth[k] = exp2_approx(maximum[k] - largest);
            maximum[k] = largest;
            // The minimum only matters to scores that are no numbers: they get a weight all the same.
            const float p0 = exp2_approx(fminf(s[2 * k] - largest, 0.f)), p1 = exp2_approx(fminf(s[2 * k + 1] - largest, 0.f));
            sum[k] = sum[k] * growth[k] + p0 + p1;
            const u32 at = (r + 8 * k) * WEIGHT_PITCH + (w * 8 + 2 * c) * 2;
            store_shared_u32(base + AT_F16 + at, f16x2_of(p0, p1));
            store_shared_u32(base + AT_BF16 + at, bf16x2_of(p0, p1));
        }
        __syncthreads();   // all weights are there

        // ---- values
        bool slow = false;
        if (w < 7) {
            u32 e[2];
            #pragma unroll
            for (int n = 0; n < 2; n++) e[n] = load_shared_u8(scales + (lane + 32 * n) * SCALE_BYTES + w);
            const int largest = (int)__reduce_max_sync(~0u, max(e[0], e[1]));
            const int smallest = (int)__reduce_min_sync(~0u, min(e[0] ? e[0] : 255u, e[1] ? e[1] : 255u));
            if (largest > exponent) {
                const float shrink = float_of_ue8m0(max(127 + exponent - largest, 0));
                growth[0] *= shrink;
                growth[1] *= shrink;
                exponent = largest;
            }
            slow = smallest + SPREAD < exponent;
            #pragma unroll
            for (int n = 0; n < 2; n++)
                store_shared_u16(base + AT_FACTORS + (w * TILE + lane + 32 * n) * 2, (u16)(e[n] ? (e[n] + (WEIGHT_BITS + 15) - exponent) << 10 : 0));
            __syncwarp();
        }
        #pragma unroll
        for (int n = 0; n < 8; n++) {
            output[n][0] *= growth[0]; output[n][1] *= growth[0];
            output[n][2] *= growth[1]; output[n][3] *= growth[1];
        }
        const u32 weights = base + (w == 7 ? AT_BF16 : AT_F16) + (lane & 15) * WEIGHT_PITCH + (lane >> 4) * 16;
        const u32 columns = entries + lane * PITCH;          // transposed: 32 tokens x 16 bytes at a time
        if (!slow) {
            u32 p[STEPS][4];
            #pragma unroll
            for (int k = 0; k < STEPS; k++) load_matrices(p[k], weights + k * 32);
            if (w == 7) {
                #pragma unroll
                for (int half = 0; half < 2; half++)
                    #pragma unroll
                    for (int n = 0; n < 8; n++) {
                        u32 v[4];
                        load_matrices_transposed(v, columns + half * 32 * PITCH + NOPE_DIMS + n * 16);
                        mma_bf16(output[n], p[2 * half], v[0], v[1]);
                        mma_bf16(output[n], p[2 * half + 1], v[2], v[3]);
                    }
            } else {
                #pragma unroll
                for (int k = 0; k < STEPS; k++) {
                    const u32 at = base + AT_FACTORS + (w * TILE + k * 16 + 2 * c) * 2, f0 = load_shared_u32(at), f1 = load_shared_u32(at + 16);
                    p[k][0] = multiply_f16x2(p[k][0], f0); p[k][1] = multiply_f16x2(p[k][1], f0);
                    p[k][2] = multiply_f16x2(p[k][2], f1); p[k][3] = multiply_f16x2(p[k][3], f1);
                }
                #pragma unroll
                for (int half = 0; half < 2; half++)
                    #pragma unroll
                    for (int block = 0; block < 4; block++) { // 16 dims: the even ones and the odd ones are two MMA columns
                        u32 v[4];
                        load_matrices_transposed(v, columns + half * 32 * PITCH + w * 64 + block * 16);
                        #pragma unroll
                        for (int m = 0; m < 4; m++) v[m] = __byte_perm(v[m], 0, 0x3120);   // (token, token + 1) of an even dim, then of an odd one
                        #pragma unroll
                        for (int k = 0; k < 2; k++) {
                            mma_f16(output[2 * block], p[2 * half + k], f16x2_of_e4m3x2((u16)v[2 * k]), f16x2_of_e4m3x2((u16)v[2 * k + 1]));
                            mma_f16(output[2 * block + 1], p[2 * half + k], f16x2_of_e4m3x2((u16)(v[2 * k] >> 16)), f16x2_of_e4m3x2((u16)(v[2 * k + 1] >> 16)));
                        }
                    }
            }
        } else {
            #pragma unroll 1
            for (int token = 0; token < TILE; token++) {
                const u32 e = load_shared_u8(scales + token * SCALE_BYTES + w), at = base + AT_F16 + r * WEIGHT_PITCH + token * 2;
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
        if (thread < TILE) put_place(i + STAGES, next_index);
    }

    // ---- the end: sums over lanes and warps, then each warp writes its dims
    __syncthreads();       // the maxima are read
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        sum[k] += __shfl_xor_sync(~0u, sum[k], 1);
        sum[k] += __shfl_xor_sync(~0u, sum[k], 2);
        if (c == 0) store_shared_float(base + AT_MAXIMA + (w * HEADS + r + 8 * k) * 4, sum[k]);
    }
    __syncthreads();
    const bool whole = share.active == 1;
    const int half_exponent = (exponent - 127 - WEIGHT_BITS) / 2;   // in two steps: 2^(exponent - 141) may be no float
    const float step0 = float_of_ue8m0(127 + half_exponent), step1 = float_of_ue8m0(exponent - WEIGHT_BITS - half_exponent);
    #pragma unroll
    for (int k = 0; k < 2; k++) {
        const int head = head0 + r + 8 * k;
        if (head >= a.heads) continue;
        float total = 0.f;
        #pragma unroll
        for (int other = 0; other < WARPS; other++) total += load_shared_float(base + AT_MAXIMA + (other * HEADS + r + 8 * k) * 4);
        const float log = total > 0.f ? maximum[k] + __log2f(total) : NOTHING;
        const float scale = (total > 0.f ? 1.f / total : 0.f) * (whole ? share_beside_sink(log, a.sink[head]) : 1.f);
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
        if (!whole && w == 0 && c == 0) a.partial_log[part] = log;
    }
    if (!whole) merge_if_last<HEADS, WARPS>(a, row, blockIdx.y, share.active);
}
