// Attention of every token of a step, version 2: f16 mma.sync over tiles of 16 packed entries, online softmax.
//
// A block has a query tile, 16 heads of one token. Two a block, which share keys, had the same bits and were never faster
// (levers/gpu-prefill-two-tokens.toml).
//
// A warp owns 64 of the 512 dims of every key, which have one scale: it fetches them, one tile ahead in registers, makes them f16, and
// reads them back as K and as V; no other warp looks at its part of shared memory. What warps exchange are partial scores and
// weights: two barriers a tile.
//
// As good as float32: queries and weights are two f16 terms each, 22 bits. Keys are one, and lose nothing but what lies below
// 2^-25; beyond 65,504 they are no numbers. One term for queries and weights would halve the MMAs, and be 2^-12 off: enough for
// roundings downstream to fall otherwise and a tiny model's logits to move by 2 % (docs/gpu-kernels.md).
//
// Bits of a row depend on the row alone. Tiles are cut at multiples of 16 positions or entries, and a key that a row does not see
// adds exactly nothing to it: a weight of 0 times a finite number. Keys that are no numbers are made 0 as values; rows that do see
// them have a weight that is no number.
//
// A tile and warp: 32 MMAs. Shared memory: 33,920 bytes, twice on a multiprocessor. 40 to 65 TFLOP/s on an H200.
#include "attention.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, ROWS = 16, KEYS = 16, DIMS = 64, STEPS = DIMS / 16, TERMS = 2;
static_assert(THREADS == ROWS * KEYS, "a thread has one key of one row");
constexpr int KEY_PITCH = 2 * DIMS + 16, SCORE_PITCH = 4 * KEYS + 32, WEIGHT_PITCH = 2 * KEYS + 16;   // no two rows in a bank
constexpr int AT_SCORES = WARPS * KEYS * KEY_PITCH;
constexpr int AT_WEIGHTS = AT_SCORES + WARPS * ROWS * SCORE_PITCH;
constexpr int AT_FACTORS = AT_WEIGHTS + TERMS * ROWS * WEIGHT_PITCH;   // growth of a tile's rows; at the end, 1 / sum
constexpr int AT_PLACES = AT_FACTORS + ROWS * 4;                       // of each warp: where its tile's keys are
constexpr int AT_SCALES = AT_PLACES + WARPS * KEYS * 8;                // of each warp: their scale bytes
constexpr int AT_ODD = AT_SCALES + WARPS * KEYS * 4;                   // whether some score is no number
constexpr int SHARED_BYTES = AT_ODD + 64;
#ifdef EXPECTED_SHARED_BYTES
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "src/backend/kernels.rs counts other shared memory");
#endif

constexpr float LOG2_E = 1.44269504f, NOTHING = -1e30f;
// What the largest weight is, instead of 1: the terms of weights 2^-24 times as large then keep all their bits in f16.
constexpr float WEIGHT_MAX = 32768.f;

// A number as two f16 terms, and pairs of them.
struct Terms {
    u32 high, low;
};
// Nothing here may be fused with what made x and y: the terms are of numbers that were rounded.
__device__ __forceinline__ Terms terms_of(float x, float y) {
    const u32 high = f16x2_of(x, y);
    return {high, f16x2_of(__fsub_rn(x, float_of_f16((u16)high)), __fsub_rn(y, float_of_f16((u16)(high >> 16))))};
}

// 16 heads of a token; fewer in its last tile.
struct Query {
    int token, first_head, heads;
};
__device__ __forceinline__ Query query_of(const AttentionArgs& a) {
    const int head_tiles = (a.heads + ROWS - 1) / ROWS, first_head = blockIdx.x % head_tiles * ROWS;
    return {(int)blockIdx.x / head_tiles, first_head, min(a.heads - first_head, ROWS)};
}

__device__ __forceinline__ int entries_of(const AttentionArgs& a, int token) {
    if (a.kind == ENTRIES_SELECTED) return a.counts[token];
    return a.kind == ENTRIES_ALL ? (a.step.positions[token] + 1) / a.ratio : 0;
}

// The keys that a token sees, in tiles: positions `begin .. end`, then entries.
struct Keys {
    int row, token, token_of_0;          // `token`'s selection; the token that position 0 would be
    int begin, end, entries;
    int window_tiles, tiles;
};
__device__ __forceinline__ Keys keys_of(const AttentionArgs& a, int token) {
    Keys k;
    k.row = a.step.row_of[token];
    k.token = token;
    k.token_of_0 = token - a.step.positions[token];
    k.end = a.step.positions[token] + 1;
    k.begin = max(k.end - WINDOW, 0);
    k.entries = entries_of(a, token);
    k.window_tiles = (k.end + KEYS - 1) / KEYS - k.begin / KEYS;
    k.tiles = k.window_tiles + (k.entries + KEYS - 1) / KEYS;
    return k;
}

// The position or the entry that a tile starts with, and which of its keys are seen.
struct Extent {
    int base, first, end;
};
__device__ __forceinline__ Extent extent_of(const Keys& k, int tile) {
    if (tile < k.window_tiles) {
        const int base = (k.begin / KEYS + tile) * KEYS;
        return {base, max(k.begin - base, 0), min(k.end - base, KEYS)};
    }
    const int base = (tile - k.window_tiles) * KEYS;
    return {base, 0, min(k.entries - base, KEYS)};
}

struct Place {
    const u8* data;
    const u8* scales;
};
__device__ __forceinline__ Place place_in(const Pages& p, const u8* page, int slot) {
    return {page + slot * PACKED_DATA, page + p.slots * PACKED_DATA + slot * PACKED_SCALES};
}
// Of key `number` of a tile; one that is not seen is the next that is.
__device__ __forceinline__ Place place_of(const AttentionArgs& a, const Keys& k, int tile, int number) {
    const Extent extent = extent_of(k, tile);
    const int at = extent.base + min(max(number, extent.first), extent.end - 1);
    if (tile >= k.window_tiles) {
        const int index = a.kind == ENTRIES_SELECTED ? a.selected[(size_t)k.token * a.selected_stride + at] : at;
        return place_in(a.entries, entry_page(a.entries, a.step, a.pool, k.row, index), index % a.entries.slots);
    }
    if (at < a.step.starts[k.row]) return place_in(a.window, a.window.data + a.step.window_pages[k.row] * a.window.page_bytes, at % RING);
    const u8* packed = a.packed + (size_t)(k.token_of_0 + at) * PACKED_BYTES;
    return {packed, packed + PACKED_DATA};
}

// A warp's dims of a tile on their way. 8 bytes at a time: packed entries of this step begin at multiples of 8. Of E4M3, lane l
// has bytes 8 (l % 8) of keys l / 8, 4 + l / 8, ..; of the 64 rotary dims, bytes 8 (l % 16) of keys l / 16, 2 + l / 16, ..
struct Fetched {
    uint2 pieces[8];
    u32 scale;                           // of key `lane % 16`
};

__device__ __forceinline__ bool is_rotary(int warp) { return warp == WARPS - 1; }

// `own` is where key `lane % 16` lies.
__device__ __forceinline__ void fetch(Fetched& f, const Place& own, u32 places, int warp, int lane) {
    store_shared_8(places + lane % KEYS * 8, (u64)own.data);
    f.scale = own.scales[warp];
    __syncwarp();
    if (is_rotary(warp)) {
        #pragma unroll
        for (int i = 0; i < 8; i++)
            f.pieces[i] = ((const uint2*)((const u8*)load_shared_8(places + (2 * i + lane / 16) * 8) + NOPE))[lane % 16];
    } else {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            f.pieces[i] = ((const uint2*)((const u8*)load_shared_8(places + (4 * i + lane / 8) * 8) + warp * DIMS))[lane % 8];
    }
}

__device__ __forceinline__ u32 f16x2_of_bf16x2(u32 v) { return f16x2_of(low_bf16(v), high_bf16(v)); }

// Leaves the tile in the warp's `keys` as f16.
__device__ __forceinline__ void store(const Fetched& f, u32 keys, u32 scales, int warp, int lane) {
    __syncwarp();                        // all lanes have read the tile before
    if (is_rotary(warp)) {
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const u64 two = f16x2_of_bf16x2(f.pieces[i].x) | (u64)f16x2_of_bf16x2(f.pieces[i].y) << 32;
            store_shared_8(keys + (2 * i + lane / 16) * KEY_PITCH + lane % 16 * 8, two);
        }
    } else {
        store_shared_u32(scales + lane % KEYS * 4, f.scale);
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = 4 * i + lane / 8;
            const float scale = scale_of_ue8m0(load_shared_u32(scales + key * 4));
            const u32 both = f16x2_of(scale, scale);
            u32 x[4];
            f16x4_of_e4m3x4(f.pieces[i].x, x[0], x[1]);
            f16x4_of_e4m3x4(f.pieces[i].y, x[2], x[3]);
            #pragma unroll
            for (int j = 0; j < 4; j++) x[j] = multiply_f16x2(x[j], both);
            store_shared_16(keys + key * KEY_PITCH + lane % 8 * 16, x[0], x[1], x[2], x[3]);
        }
    }
    __syncwarp();
}

// What is no number, or infinite, becomes 0 in the warp's part of a tile.
__device__ __noinline__ void clear_odd(u32 keys, int lane) {
    #pragma unroll 1
    for (int i = lane; i < KEYS * DIMS / 2; i += 32) {
        const u32 at = keys + i / (DIMS / 2) * KEY_PITCH + i % (DIMS / 2) * 4;
        u32 x = load_shared_u32(at);
        if ((x & 0x7c00u) == 0x7c00u) x &= 0xffff0000u;
        if ((x & 0x7c000000u) == 0x7c000000u) x &= 0xffffu;
        store_shared_u32(at, x);
    }
    __syncwarp();
}

// A warp's dims of its block's queries, normed and rotated, as A fragments.
struct Queries {
    u32 of[TERMS][STEPS / 2][2][4];
};

__device__ __forceinline__ void load_queries(Queries& queries, const AttentionArgs& a, const Query& query, u32 base, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    float2 x[2][8];                      // rows g and g + 8, pairs 2 t of every 8 dims
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + 8 * r;
        const float* from = a.q + ((size_t)query.token * a.heads + query.first_head + row) * HEAD_DIM + warp * DIMS + 2 * t;
        float squares = 0.f;
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            x[r][i] = row < query.heads ? *(const float2*)(from + i * 8) : make_float2(0.f, 0.f);
            squares = fmaf(x[r][i].y, x[r][i].y, fmaf(x[r][i].x, x[r][i].x, squares));
        }
        squares += __shfl_xor_sync(~0u, squares, 1);
        squares += __shfl_xor_sync(~0u, squares, 2);
        if (t == 0) store_shared_float(base + AT_SCORES + (row * WARPS + warp) * 4, squares);
    }
    __syncthreads();
    const float* rotation = rotation_of(a.step, query.token, a.compressed);
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        float squares = 0.f;
        #pragma unroll
        for (int w = 0; w < WARPS; w++) squares += load_shared_float(base + AT_SCORES + ((g + 8 * r) * WARPS + w) * 4);
        const float inverse = 1.f / sqrtf(squares / HEAD_DIM + a.rms_eps);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            float two[2] = {__fmul_rn(x[r][i].x, inverse), __fmul_rn(x[r][i].y, inverse)};
            if (is_rotary(warp)) rotate_pair(two, 0, rotation[4 * i + t], rotation[32 + 4 * i + t], 1.f);
            const Terms terms = terms_of(two[0], two[1]);
            queries.of[0][i / 4][i / 2 % 2][i % 2 * 2 + r] = terms.high;
            queries.of[1][i / 4][i / 2 % 2][i % 2 * 2 + r] = terms.low;
        }
    }
    __syncthreads();
}

// This warp's share of the scores of the tile's keys from `first` to `end`.
__device__ __forceinline__ void score(const Queries& queries, u32 keys, u32 scores, const Extent& extent, int lane) {
    float sums[2][4] = {};
    #pragma unroll
    for (int chunk = 0; chunk < STEPS / 2; chunk++)
        #pragma unroll
        for (int n = 0; n < 2; n++) {
            if (8 * n + 8 <= extent.first || 8 * n >= extent.end) continue;
            u32 b[4];
            load_matrices(b, keys + (8 * n + lane % 8) * KEY_PITCH + chunk * 64 + lane / 8 * 16);
            mma_f16_k32_twice(sums[n], queries.of[0][chunk], queries.of[1][chunk], b);
        }
    #pragma unroll
    for (int n = 0; n < 2; n++)
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const u64 both = __float_as_uint(sums[n][2 * r]) | (u64)__float_as_uint(sums[n][2 * r + 1]) << 32;
            store_shared_8(scores + (lane / 4 + 8 * r) * SCORE_PITCH + (8 * n + lane % 4 * 2) * 4, both);
        }
}

// What the 16 lanes of a row know: what it sees, and its softmax so far.
struct Row {
    int position, entries;
    float most, sum;                     // `most` in units of log2; the sum of this lane's keys
};

// Scores to weights: `low <= position or entry < high` are seen. Leaves the factor by which the row's sums shrink.
__device__ __forceinline__ void soften(Row& row, u32 base, int base_key, int low, int high, float scale) {
    const int own = threadIdx.x / KEYS, part = threadIdx.x % KEYS, key = base_key + part;
    float s = 0.f;
    #pragma unroll
    for (int w = 0; w < WARPS; w++) s += load_shared_float(base + AT_SCORES + (w * ROWS + own) * SCORE_PITCH + part * 4);
    if (!(fabsf(s) < 3e38f)) store_shared_u32(base + AT_ODD, 1);
    s = __fmul_rn(s, scale);
    const bool seen = key >= low && key < high;
    float largest = seen ? fmaxf(row.most, s) : row.most;
    #pragma unroll
    for (int bit = 1; bit < KEYS; bit *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
    const float growth = exp2_approx(row.most - largest), weight = seen ? exp2_approx(s - largest) * WEIGHT_MAX : 0.f;
    row.most = largest;
    row.sum = fmaf(row.sum, growth, weight);
    const Terms terms = terms_of(weight, 0.f);
    const u32 to = base + AT_WEIGHTS + own * WEIGHT_PITCH + part * 2;
    store_shared_u16(to, (u16)terms.high);
    store_shared_u16(to + ROWS * WEIGHT_PITCH, (u16)terms.low);
    if (part == 0) store_shared_float(base + AT_FACTORS + own * 4, growth);
}

typedef float Output[DIMS / 8][4];

__device__ __forceinline__ void scale_rows(Output& out, u32 base, int lane) {
    const u32 factors = base + AT_FACTORS + lane / 4 * 4;
    const float upper = load_shared_float(factors), lower = load_shared_float(factors + 32);
    if (upper == 1.f && lower == 1.f) return;
    #pragma unroll
    for (int n = 0; n < DIMS / 8; n++) {
        out[n][0] *= upper;
        out[n][1] *= upper;
        out[n][2] *= lower;
        out[n][3] *= lower;
    }
}

__device__ __forceinline__ void add_values(Output& out, u32 base, u32 keys, int lane) {
    u32 weights[TERMS][4];
    #pragma unroll
    for (int term = 0; term < TERMS; term++)
        #pragma unroll
        for (int i = 0; i < 4; i++)
            weights[term][i] = load_shared_u32(base + AT_WEIGHTS + (term * ROWS + lane / 4 + i % 2 * 8) * WEIGHT_PITCH + i / 2 * 16 + lane % 4 * 4);
    #pragma unroll
    for (int n = 0; n < DIMS / 8; n += 2) {
        u32 v[4];
        load_matrices_transposed(v, keys + lane % 16 * KEY_PITCH + (n + lane / 16) * 16);
        mma_f16_n16_twice(out[n], out[n + 1], weights[0], weights[1], v);
    }
}

__device__ __forceinline__ void write(const Output& out, const AttentionArgs& a, const Query& query, u32 base, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    const float* rotation = rotation_of(a.step, query.token, a.compressed);
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + 8 * r;
        if (row >= query.heads) continue;
        const float inverse = load_shared_float(base + AT_FACTORS + row * 4);
        float* to = a.out + ((size_t)query.token * a.heads + query.first_head + row) * HEAD_DIM + warp * DIMS + 2 * t;
        #pragma unroll
        for (int n = 0; n < DIMS / 8; n++) {
            float two[2] = {__fmul_rn(out[n][2 * r], inverse), __fmul_rn(out[n][2 * r + 1], inverse)};
            if (is_rotary(warp)) rotate_pair(two, 0, rotation[4 * n + t], rotation[32 + 4 * n + t], -1.f);
            *(float2*)(to + n * 8) = make_float2(two[0], two[1]);
        }
    }
}

// Grid: query tiles; a token's follow each other.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention(const __grid_constant__ AttentionArgs a) {
    begin_after_launch_before();
    extern __shared__ __align__(128) u8 memory[];
    const u32 base = shared_address(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = threadIdx.x / KEYS;
    const u32 keys = base + warp * KEYS * KEY_PITCH, scores = base + AT_SCORES + warp * ROWS * SCORE_PITCH;
    const u32 places = base + AT_PLACES + warp * KEYS * 8, scales = base + AT_SCALES + warp * KEYS * 4;
    if (threadIdx.x == 0) store_shared_u32(base + AT_ODD, 0);
    const Query query = query_of(a);
    Queries queries;
    load_queries(queries, a, query, base, warp, lane);

    // The sink weighs most to begin with; one of minus infinity weighs nothing. Rows without a head see nothing.
    const bool is_head = own < query.heads;
    const float sink = is_head ? a.sink[query.first_head + own] * LOG2_E : 0.f;
    const bool has_sink = sink != __uint_as_float(0xff800000u);
    const Keys k = keys_of(a, query.token);
    Row row = {is_head ? k.end - 1 : -1, is_head ? k.entries : 0, has_sink ? sink : NOTHING, 0.f};
    if (has_sink && threadIdx.x % KEYS == 0) row.sum = WEIGHT_MAX;

    Output out = {};
    Fetched fetched;
    fetch(fetched, place_of(a, k, 0, lane % KEYS), places, warp, lane);
    Place next = place_of(a, k, min(1, k.tiles - 1), lane % KEYS);
    for (int tile = 0; tile < k.tiles; tile++) {
        const Extent extent = extent_of(k, tile);
        store(fetched, keys, scales, warp, lane);
        if (tile + 1 < k.tiles) fetch(fetched, next, places, warp, lane);
        score(queries, keys, scores, extent, lane);
        // What a place is looked up in arrives while others are at the barrier.
        if (tile + 2 < k.tiles) next = place_of(a, k, tile + 2, lane % KEYS);
        __syncthreads();
        const bool in_window = tile < k.window_tiles;
        const int low = in_window ? row.position + 1 - WINDOW : 0, high = in_window ? row.position + 1 : row.entries;
        soften(row, base, extent.base, low, high, a.scale * LOG2_E);
        __syncthreads();
        if (load_shared_u32(base + AT_ODD)) clear_odd(keys, lane);
        scale_rows(out, base, lane);
        add_values(out, base, keys, lane);
    }

    #pragma unroll
    for (int bit = 1; bit < KEYS; bit *= 2) row.sum += __shfl_xor_sync(~0u, row.sum, bit);
    __syncthreads();                                            // the last tile's factors are read
    if (threadIdx.x % KEYS == 0) store_shared_float(base + AT_FACTORS + own * 4, 1.f / row.sum);
    __syncthreads();
    write(out, a, query, base, warp, lane);
}
