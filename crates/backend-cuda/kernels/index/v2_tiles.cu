// The indexer, version 2, for keys in bf16, FP8 or FP4: scores by tensor cores, many tokens to a tile of keys.
//
// What both sides of a score are rounded to (bf16; E4M3 or E2M1 times a power of two) is exact in bf16: products and sums
// are those of version 1 but for the order of sums. Float32 keys stay with version 1.
//
// Scores: a warp has all heads of TOKENS tokens in registers, as HEAD_TILES x TOKENS tiles of 16, and goes through tiles of 64 keys in
// shared memory that all warps of the block read. Which dim is which does not matter to a sum: lane (g, t) takes dims 8 t to
// 8 t + 7 of every 32 of head or key g, so that fragments are loads of 16 bytes on both sides. A block's tokens may belong to several
// rows, which then take turns.
//
// Where rows have a token or a few (`index_scores_by_keys`), taking turns would be all that a block does. There a warp has one token and
// 8 of its keys at a time, which go from memory into fragments, two times 8 on their way; no barriers. Bits are the same.
//
// 16 heads and 16,384 keys, a token: 67 MFLOP, three times its attention; 2.1 MB of keys, shared by 16 tokens of a block.
// Shared memory: 40,960 bytes, two tiles. 106 to 314 TFLOP/s on an H200 from 2,048 keys on.
#include "index.cuh"

#ifndef HEAD_TILES
#define HEAD_TILES 1
#endif

constexpr int WARPS = 8, THREADS = 32 * WARPS, TOKENS = HEAD_TILES == 1 ? 2 : 1, M_TILES = HEAD_TILES * TOKENS;
constexpr int KEY_WARPS = 4, KEYS_AHEAD = 2;
constexpr int KEYS = 64, TILES_A_BLOCK = 8, PITCH = 320;         // bytes: no two of 8 lanes' 16 bytes in a bank

// Adds up with the lane whose bit BIT differs: each of the two keeps half of the numbers.
template <int COUNT, int BIT> __device__ __forceinline__ void fold(float* x, int lane) {
    #pragma unroll
    for (int i = 0; i < COUNT / 2; i++) {
        const float given = lane & BIT ? x[i] : x[i + COUNT / 2], kept = lane & BIT ? x[i + COUNT / 2] : x[i];
        x[i] = kept + __shfl_xor_sync(~0u, given, BIT);
    }
}

// A warp a head. Lane l has dims 4 l to 4 l + 3. Leaves bf16 where the first 64 float32 were. Grid: heads over WARPS, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) index_queries(const __grid_constant__ IndexArgs a) {
    begin_after_launch_before();
    const int token = blockIdx.y, head = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, format = a.keys.format;
    if (visible_of(a.step, token) <= a.top || head >= a.heads) return;
    float* own = a.q + ((size_t)token * a.heads + head) * INDEX_DIM;
    const float4 four = *(const float4*)(own + 4 * lane);
    float x[4] = {four.x, four.y, four.z, four.w};
    if (lane >= 16) {
        const float* rotation = rotation_of(a.step, token, 1);
        #pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const int at = 2 * (lane - 16) + pair;
            rotate_pair(x + 2 * pair, 0, rotation[at], rotation[32 + at], 1.f);
        }
    }
    if (format != INDEX_BF16) {
        const float scale = scale_of_ue8m0(scale_index_key(x, format, lane));
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = (format == INDEX_FP4 ? float_of_e2m1(e2m1_of(x[i])) : round_to_e4m3(x[i])) * scale;
    }
    __syncwarp();                                               // all lanes have read what others write over
    *(uint2*)((u16*)own + 4 * lane) = make_uint2(bf16x2_of(x[0], x[1]), bf16x2_of(x[2], x[3]));
}

// A thread's quarter of a key on its way: chunks `part`, `part` + 4, .. of 8 dims each.
struct Fetched {
    u32 words[4][4];
    u32 scale;                           // FP8: bits of a float; FP4: the bytes of its four blocks
};

__device__ __forceinline__ void fetch(Fetched& f, const IndexArgs& a, int row, int index, int part) {
    const u8* page = entry_page(a.keys, a.step, POOL_INDEX, row, index);
    const int slot = index % a.keys.slots;
    if (a.keys.format == INDEX_BF16) {
        #pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint4 v = ((const uint4*)(page + slot * 256))[part + 4 * j];
            f.words[j][0] = v.x;
            f.words[j][1] = v.y;
            f.words[j][2] = v.z;
            f.words[j][3] = v.w;
        }
        return;
    }
    const u32* key = (const u32*)(page + slot * (a.keys.format == INDEX_FP8 ? 132 : 68));
    #pragma unroll
    for (int j = 0; j < 4; j++)
        if (a.keys.format == INDEX_FP8) {
            f.words[j][0] = key[2 * (part + 4 * j)];
            f.words[j][1] = key[2 * (part + 4 * j) + 1];
        } else {
            f.words[j][0] = key[part + 4 * j];
        }
    f.scale = key[a.keys.format == INDEX_FP8 ? 32 : 16];
}

__device__ __forceinline__ u32 bf16x2_of_e4m3x2(u32 codes, float scale) {
    const u32 both = f16x2_of_e4m3x2((u16)codes);
    return bf16x2_of(float_of_f16((u16)both) * scale, float_of_f16((u16)(both >> 16)) * scale);
}
// Two E2M1 codes in the low byte. Their bits, where a bf16's are, are 2^-126 of them.
__device__ __forceinline__ u32 bf16x2_of_e2m1x2(u32 codes, u32 scale) {
    const u32 both = (codes & 15) | (codes & 0xf0) << 12;
    return multiply_bf16x2(multiply_bf16x2((both & 0x00080008u) << 12 | (both & 0x00070007u) << 6, 0x7e807e80u), scale);
}

// Chunk j in bf16.
__device__ __forceinline__ uint4 bf16_of(const Fetched& f, int format, int j) {
    u32 x[4];
    const u32 block_scale = __float_as_uint(scale_of_ue8m0(f.scale >> 8 * j & 255)) >> 16;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (format == INDEX_BF16) x[i] = f.words[j][i];
        else if (format == INDEX_FP8) x[i] = bf16x2_of_e4m3x2(f.words[j][i / 2] >> 16 * (i % 2) & 0xffff, __uint_as_float(f.scale));
        else x[i] = bf16x2_of_e2m1x2(f.words[j][0] >> 8 * i & 255, block_scale | block_scale << 16);
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

__device__ __forceinline__ void store(const Fetched& f, int format, u32 to, int part) {
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint4 x = bf16_of(f, format, j);
        store_shared_16(to + (part + 4 * j) * 16, x.x, x.y, x.z, x.w);
    }
}

// A warp's tokens: heads as A fragments, and what each is worth.
template <int M_TILES> struct Queries {
    u32 of[M_TILES][8][4];
    float weights[M_TILES][2];
};

template <int M_TILES> __device__ __forceinline__ void load_queries(Queries<M_TILES>& q, const IndexArgs& a, int first, int lane) {
    const int g = lane / 4, t = lane % 4;
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) {
        const int token = min(first + m / HEAD_TILES, a.end - 1);
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int head = m % HEAD_TILES * 16 + g + 8 * r;
            const size_t at = (size_t)token * a.heads + min(head, a.heads - 1);
            q.weights[m][r] = head < a.heads ? a.weights[at] * a.scale : 0.f;
            const uint4* from = (const uint4*)(a.q + at * INDEX_DIM);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint4 v = head < a.heads ? from[t + 4 * i] : make_uint4(0, 0, 0, 0);
                q.of[m][2 * i][r] = v.x;
                q.of[m][2 * i][2 + r] = v.y;
                q.of[m][2 * i + 1][r] = v.z;
                q.of[m][2 * i + 1][2 + r] = v.w;
            }
        }
    }
}

// Adds what tile `m` of the heads says of 8 keys: lane (g, t) gets a part of those of keys 2 t and 2 t + 1.
template <int M_TILES> __device__ __forceinline__ void add_heads(float (&sums)[2], const Queries<M_TILES>& q, int m, const uint4 (&keys)[4]) {
    float x[4] = {};
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        mma_bf16(x, q.of[m][2 * i], keys[i].x, keys[i].y);
        mma_bf16(x, q.of[m][2 * i + 1], keys[i].z, keys[i].w);
    }
    #pragma unroll
    for (int i = 0; i < 4; i++) sums[i % 2] = fmaf(q.weights[m][i / 2], x[i] < 0.f ? 0.f : x[i], sums[i % 2]);
}

// Scores of a tile's keys, of which the warp's tokens see `seen` at most: lane (g, t) has those of keys 8 g + 2 t and the next.
__device__ __forceinline__ void score(float (&scores)[TOKENS][2], const Queries<M_TILES>& q, u32 keys, int seen, int lane) {
    float sums[TOKENS][8][2] = {};
    #pragma unroll
    for (int n = 0; n < 8; n++) {
        if (8 * n >= seen) continue;
        uint4 b[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) b[i] = load_shared_16(keys + (8 * n + lane / 4) * PITCH + (lane % 4 + 4 * i) * 16);
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) add_heads(sums[m / HEAD_TILES][n], q, m, b);
    }
    #pragma unroll
    for (int token = 0; token < TOKENS; token++) {
        float (&flat)[16] = *reinterpret_cast<float (*)[16]>(&sums[token]);
        fold<16, 16>(flat, lane);
        fold<8, 8>(flat, lane);
        fold<4, 4>(flat, lane);
        scores[token][0] = flat[0];
        scores[token][1] = flat[1];
    }
}

// Grid: keys over KEYS x TILES_A_BLOCK, tokens over WARPS x TOKENS.
extern "C" __global__ void __launch_bounds__(THREADS) index_scores(const __grid_constant__ IndexArgs a) {
    begin_after_launch_before();
    __shared__ __align__(128) u8 memory[2 * KEYS * PITCH];
    const u32 base = shared_address(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key = threadIdx.x / 4, part = threadIdx.x % 4;
    const int begin = a.first + blockIdx.y * WARPS * TOKENS, end = min(begin + WARPS * TOKENS, a.end), first = begin + warp * TOKENS;
    const int first_key = blockIdx.x * KEYS * TILES_A_BLOCK;
    Queries<M_TILES> queries;
    load_queries(queries, a, first, lane);
    for (int row = a.step.row_of[begin]; row <= a.step.row_of[end - 1]; row++) {
        const int row_begin = max(begin, a.step.firsts[row]), row_end = min(end, a.step.firsts[row + 1]);
        if (row_begin >= row_end) continue;
        const int most = visible_of(a.step, row_end - 1), last_key = min(first_key + KEYS * TILES_A_BLOCK, most);
        if (most <= a.top || first_key >= most) continue;
        int visible[TOKENS], most_of_warp = 0;
        #pragma unroll
        for (int i = 0; i < TOKENS; i++) {
            const int token = first + i;
            visible[i] = token >= row_begin && token < row_end ? visible_of(a.step, token) : 0;
            if (visible[i] <= a.top) visible[i] = 0;
            most_of_warp = max(most_of_warp, visible[i]);
        }
        Fetched fetched;
        fetch(fetched, a, row, min(first_key + key, most - 1), part);
        for (int from = first_key; from < last_key; from += KEYS) {
            const u32 keys = base + (from - first_key) / KEYS % 2 * KEYS * PITCH;
            store(fetched, a.keys.format, keys + key * PITCH, part);
            if (from + KEYS < last_key) fetch(fetched, a, row, min(from + KEYS + key, most - 1), part);
            __syncthreads();                                    // the tile is there, and that before last is read
            if (from >= most_of_warp) continue;
            float scores[TOKENS][2];
            score(scores, queries, keys, most_of_warp - from, lane);
            #pragma unroll
            for (int i = 0; i < TOKENS; i++) {
                float* to = a.scores + (size_t)(first + i - a.first) * a.score_stride + from + 8 * (lane / 4) + 2 * (lane % 4);
                #pragma unroll
                for (int k = 0; k < 2; k++)
                    if (from + 8 * (lane / 4) + 2 * (lane % 4) + k < visible[i]) to[k] = scores[i][k];
            }
        }
        __syncthreads();                                        // the next row's tiles go where this one's were
    }
}

// Grid: runs of keys, as many as should share a token; tokens.
extern "C" __global__ void __launch_bounds__(32 * KEY_WARPS) index_scores_by_keys(const __grid_constant__ IndexArgs a) {
    begin_after_launch_before();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int token = a.first + blockIdx.y, row = a.step.row_of[token], visible = visible_of(a.step, token);
    const int run = (a.score_stride + 8 * gridDim.x - 1) / (8 * gridDim.x) * 8, first_key = blockIdx.x * run + 8 * warp;
    const int end = min(blockIdx.x * run + run, visible);
    if (visible <= a.top || first_key >= end) return;
    float* to = a.scores + (size_t)blockIdx.y * a.score_stride;
    constexpr int STEP = 8 * KEY_WARPS;
    Fetched fetched[KEYS_AHEAD];
    #pragma unroll
    for (int i = 0; i < KEYS_AHEAD; i++) fetch(fetched[i], a, row, min(first_key + i * STEP + g, visible - 1), t);
    Queries<HEAD_TILES> queries;
    load_queries(queries, a, token, lane);
    for (int from = first_key; from < end; from += KEYS_AHEAD * STEP)
        #pragma unroll
        for (int ahead = 0; ahead < KEYS_AHEAD; ahead++) {
            const int key = from + ahead * STEP;
            if (key >= end) break;
            uint4 b[4];
            #pragma unroll
            for (int j = 0; j < 4; j++) b[j] = bf16_of(fetched[ahead], a.keys.format, j);
            if (key + KEYS_AHEAD * STEP < end) fetch(fetched[ahead], a, row, min(key + KEYS_AHEAD * STEP + g, visible - 1), t);
            float sums[2] = {};
            #pragma unroll
            for (int m = 0; m < HEAD_TILES; m++) add_heads(sums, queries, m, b);
            #pragma unroll
            for (int i = 0; i < 2; i++) {
                #pragma unroll
                for (int bit = 16; bit >= 4; bit /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], bit);
                if (g == i && key + 2 * t + i < visible) to[key + 2 * t + i] = sums[i];
            }
        }
}
