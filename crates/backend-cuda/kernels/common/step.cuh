// One step as all kernels see it: the tokens of all rows end to end, and where each row's cache is. Mirrored by
// src/backend/arguments.rs: change both.
//
// A row's tokens from `start` on are in this step; earlier ones are in its pages. Positions are those of the sequence.
#pragma once
#include "device.cuh"

constexpr int HEAD_DIM = 512, NOPE = 448, ROPE_PAIRS = 32, INDEX_DIM = 128, WINDOW = 128, RING = 256, STREAMS = 4;
constexpr int SHORT_ROW = RING - WINDOW;   // rows of up to so many tokens leave in the ring all that their own tokens see
constexpr int PACKED_DATA = 576, PACKED_SCALES = 8, PACKED_BYTES = 584;

enum PoolName : int { POOL_CSA, POOL_HCA, POOL_INDEX };          // those that grow, in the order of `tables`
enum KvFormat : int { KV_F32, KV_FP8 };
enum IndexFormat : int { INDEX_F32, INDEX_BF16, INDEX_FP8, INDEX_FP4 };

struct Step {
    const u32* ids;                  // [tokens]
    const int* positions;            // [tokens]
    const int* row_of;               // [tokens]
    const int* starts;               // [rows]: position of the row's first token of this step
    const int* firsts;               // [rows + 1]: its index among the tokens
    const int* window_pages;         // [rows]
    const int* rows_pages;           // [rows]
    const int* tables[3];            // [rows]: where the row's pages of a growing pool start in `pages`
    const int* pages;
    const int* completing[2];        // tokens that complete an entry: of CSA, of HCA layers
    const float* rotations;          // [tokens, 2, 64]: 32 cosines and 32 sines, of window and of compressed layers
    const float* frequencies;        // [2, 32]
    int tokens, rows;
};

// The pages of one pool in one layer. Latents: `slots` x 2,048 bytes of float32, or a packed page (576 bytes an entry, then
// 8 of scales each). Index keys: `slots` x 512, 256, 132 or 68 bytes.
struct Pages {
    u8* data;
    i64 page_bytes;
    int slots, format;
};

__device__ __forceinline__ int page_of(const Step& s, int pool, int row, int index) { return s.pages[s.tables[pool][row] + index]; }

// Where entry `index` of a row's growing pool is.
__device__ __forceinline__ u8* entry_page(const Pages& p, const Step& s, int pool, int row, int index) {
    return p.data + page_of(s, pool, row, index / p.slots) * p.page_bytes;
}

// Number `dim` of the latent in `slot` of a page.
__device__ __forceinline__ float latent_at(const Pages& p, const u8* page, int slot, int dim) {
    if (p.format == KV_F32) return ((const float*)page)[slot * HEAD_DIM + dim];
    const u8* data = page + slot * PACKED_DATA;
    if (dim >= NOPE) return float_of_bf16(((const u16*)(data + NOPE))[dim - NOPE]);
    return float_of_e4m3(data[dim]) * scale_of_ue8m0(page[p.slots * PACKED_DATA + slot * PACKED_SCALES + dim / 64]);
}

// Stores a latent: of 128 threads, whole warps together, each has numbers 4 thread .. + 3. What is stored is left in `x`.
__device__ __forceinline__ void store_latent(const Pages& p, u8* page, int slot, int thread, float (&x)[4]) {
    const int dim = 4 * thread;
    if (p.format == KV_F32) {
        *(float4*)((float*)page + slot * HEAD_DIM + dim) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    u8* data = page + slot * PACKED_DATA;
    u8* scales = page + p.slots * PACKED_DATA + slot * PACKED_SCALES;
    float most = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
    for (int bit = 8; bit; bit /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, bit));   // 16 threads have a scale
    if (dim >= NOPE) {
        const uint2 halves = make_uint2(bf16x2_of(x[0], x[1]), bf16x2_of(x[2], x[3]));
        *(uint2*)(data + NOPE + 2 * (dim - NOPE)) = halves;
        x[0] = low_bf16(halves.x); x[1] = high_bf16(halves.x); x[2] = low_bf16(halves.y); x[3] = high_bf16(halves.y);
        if (dim == NOPE) scales[NOPE / 64] = 0;
        return;
    }
    const u32 scale = scale_for_e4m3(most);
    const float reciprocal = reciprocal_of_ue8m0(scale);
    const u32 low = e4m3x2_of(x[0] * reciprocal, x[1] * reciprocal) & 0xffff, high = e4m3x2_of(x[2] * reciprocal, x[3] * reciprocal);
    const u32 codes = low | high << 16;
    *(u32*)(data + dim) = codes;
    if (thread % 16 == 0) scales[thread / 16] = (u8)scale;
    #pragma unroll
    for (int i = 0; i < 4; i++) x[i] = float_of_e4m3((u8)(codes >> 8 * i)) * scale_of_ue8m0(scale);
}

// Rotates pair `i` of a 64-number tail; `direction` -1 turns back.
__device__ __forceinline__ void rotate_pair(float* tail, int i, float cosine, float sine, float direction) {
    const float even = tail[2 * i], odd = tail[2 * i + 1], turned = sine * direction;
    tail[2 * i] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, turned));
    tail[2 * i + 1] = __fadd_rn(__fmul_rn(even, turned), __fmul_rn(odd, cosine));
}
__device__ __forceinline__ const float* rotation_of(const Step& s, int token, int compressed) { return s.rotations + (token * 2 + compressed) * 64; }

// What keys and queries of the indexer are before they become E4M3 or E2M1: transformed (Hadamard's, whose rows have length 1),
// over a power of two that is that of all 128 numbers, or of each 32. A warp has one, each lane numbers 4 lane .. + 3; returns the
// exponent of its own, as UE8M0.
__device__ __forceinline__ u32 scale_index_key(float (&x)[4], int format, int lane) {
    const float y[4] = {x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]};
    x[0] = y[0] + y[2]; x[1] = y[1] + y[3]; x[2] = y[0] - y[2]; x[3] = y[1] - y[3];
    #pragma unroll
    for (int bit = 1; bit < 32; bit *= 2)
        #pragma unroll
        for (int d = 0; d < 4; d++) {
            const float other = __shfl_xor_sync(~0u, x[d], bit);
            x[d] = lane & bit ? other - x[d] : x[d] + other;
        }
    float most = 0.f;
    #pragma unroll
    for (int d = 0; d < 4; d++) {
        x[d] *= 1.f / sqrtf((float)INDEX_DIM);
        most = fmaxf(most, fabsf(x[d]));
    }
    const int lanes = format == INDEX_FP8 ? 32 : 8;              // of a scale
    for (int bit = 1; bit < lanes; bit *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, bit));
    const u32 scale = format == INDEX_FP8 ? scale_for_e4m3(most) : scale_for_e2m1(most);
    const float reciprocal = reciprocal_of_ue8m0(scale);
    #pragma unroll
    for (int d = 0; d < 4; d++) x[d] *= reciprocal;
    return scale;
}
