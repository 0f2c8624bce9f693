// One step as all kernels see it: the tokens of all rows end to end, and where each row's cache is. Mirrored by
// src/backend/arguments.rs: change both.
//
// A row's tokens from `start` on are in this step; earlier ones are in its pages. Positions are those of the sequence.
#pragma once
#include "device.cuh"

constexpr int HEAD_DIM = 512, NOPE = 448, ROPE_PAIRS = 32, INDEX_DIM = 128, WINDOW = 128, RING = 256, STREAMS = 4;
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

// Stores a latent of shared memory, all threads of the block together; what is stored is left in `latent`. `most` has room
// for 7 numbers. Ends without a barrier.
template <int THREADS> __device__ __forceinline__ void store_latent(const Pages& p, u8* page, int slot, float* latent, u32* scales) {
    const int tid = threadIdx.x;
    if (p.format == KV_F32) {
        for (int d = tid; d < HEAD_DIM; d += THREADS) ((float*)page)[slot * HEAD_DIM + d] = latent[d];
        return;
    }
    if (tid < 7) {
        float most = 0.f;
        for (int d = 0; d < 64; d++) most = fmaxf(most, fabsf(latent[tid * 64 + d]));
        scales[tid] = scale_for_e4m3(most);
    }
    __syncthreads();
    u8* data = page + slot * PACKED_DATA;
    if (tid < 8) page[p.slots * PACKED_DATA + slot * PACKED_SCALES + tid] = tid < 7 ? (u8)scales[tid] : 0;
    for (int d = tid; d < HEAD_DIM; d += THREADS) {
        if (d >= NOPE) {
            const u32 half = bf16x2_of(latent[d], 0.f) & 0xffff;
            ((u16*)(data + NOPE))[d - NOPE] = (u16)half;
            latent[d] = low_bf16(half);
        } else {
            const u32 code = e4m3x2_of(latent[d] * reciprocal_of_ue8m0(scales[d / 64]), 0.f) & 0xff;
            data[d] = (u8)code;
            latent[d] = float_of_e4m3((u8)code) * scale_of_ue8m0(scales[d / 64]);
        }
    }
}

// Rotates pair `i` of a 64-number tail; `direction` -1 turns back.
__device__ __forceinline__ void rotate_pair(float* tail, int i, float cosine, float sine, float direction) {
    const float even = tail[2 * i], odd = tail[2 * i + 1], turned = sine * direction;
    tail[2 * i] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, turned));
    tail[2 * i + 1] = __fadd_rn(__fmul_rn(even, turned), __fmul_rn(odd, cosine));
}
__device__ __forceinline__ const float* rotation_of(const Step& s, int token, int compressed) { return s.rotations + (token * 2 + compressed) * 64; }
