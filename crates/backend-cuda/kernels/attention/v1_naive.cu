// Attention of every token of a step, prompt or answer: over its window and the compressed entries it may see.
// Version 1: a block a head and token; a thread a key for the scores, a thread 4 dims for the values. It serves float32
// entries; packed ones have version 2. What comes after attention is here for both, what comes before in v3_latents.cu.
//
// Latents of this step are read from `latents`, earlier ones from the pages: a long row overwrites the ring while its
// own first tokens still need what was there, so `append_window` runs afterwards for those. Rows of up to 128 tokens are in the
// ring before, so that what reads the ring alone finds all of it: v3_latents.cu puts them there.
#include "attention.cuh"

constexpr int THREADS = 128, CHUNK = 1024;

struct WindowArgs {
    Step step;
    const float* latents;
    const u8* packed;
    Pages window;
    int long_rows;                   // those of more than 128 tokens, or the others
    int unused;
};

// Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) append_window(const __grid_constant__ WindowArgs a) {
    begin_after_launch_before();
    const int token = blockIdx.x, row = a.step.row_of[token], end = a.step.firsts[row + 1], length = end - a.step.firsts[row];
    if ((length > SHORT_ROW) != (a.long_rows != 0) || token + RING < end) return;
    const int slot = a.step.positions[token] % RING;
    u8* page = a.window.data + a.step.window_pages[row] * a.window.page_bytes;
    if (a.window.format == KV_F32) {
        for (int d = threadIdx.x; d < HEAD_DIM; d += THREADS) ((float*)page)[slot * HEAD_DIM + d] = a.latents[(size_t)token * HEAD_DIM + d];
        return;
    }
    const u8* from = a.packed + (size_t)token * PACKED_BYTES;
    for (int i = threadIdx.x; i < PACKED_BYTES; i += THREADS) {
        if (i < PACKED_DATA) page[slot * PACKED_DATA + i] = from[i];
        else page[RING * PACKED_DATA + slot * PACKED_SCALES + i - PACKED_DATA] = from[i];
    }
}

// Where one key of a query lies.
struct Key {
    const float* plain;              // of this step, or null
    const u8* page;
    int slot;
    const Pages* pages;
    __device__ __forceinline__ float at(int dim) const { return plain ? plain[dim] : latent_at(*pages, page, slot, dim); }
};

__device__ __forceinline__ Key key_of(const AttentionArgs& a, int token, int row, int j, int window) {
    const int position = a.step.positions[token];
    if (j < window) {
        const int at = position + 1 - window + j;
        if (at >= a.step.starts[row]) return {a.latents + (size_t)(token - position + at) * HEAD_DIM, nullptr, 0, nullptr};
        return {nullptr, a.window.data + a.step.window_pages[row] * a.window.page_bytes, at % RING, &a.window};
    }
    const int index = a.kind == ENTRIES_SELECTED ? a.selected[(size_t)token * a.selected_stride + j - window] : j - window;
    return {nullptr, entry_page(a.entries, a.step, a.pool, row, index), index % a.entries.slots, &a.entries};
}

// Grid: heads, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) attention(const __grid_constant__ AttentionArgs a) {
    begin_after_launch_before();
    __shared__ float q[HEAD_DIM], weight[CHUNK], parts[THREADS / 32], most_of[THREADS / 32];
    const int head = blockIdx.x, token = blockIdx.y, tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int row = a.step.row_of[token], position = a.step.positions[token];
    const float* own = a.q + ((size_t)token * a.heads + head) * HEAD_DIM;
    float squares = 0.f;
    for (int d = tid; d < HEAD_DIM; d += THREADS) squares = fmaf(own[d], own[d], squares);
    const float inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts) / HEAD_DIM + a.rms_eps);
    for (int d = tid; d < HEAD_DIM; d += THREADS) q[d] = own[d] * inverse;
    __syncthreads();
    const float* rotation = rotation_of(a.step, token, a.compressed);
    if (tid < ROPE_PAIRS) rotate_pair(q + NOPE, tid, rotation[tid], rotation[32 + tid], 1.f);
    __syncthreads();

    const int window = min(position + 1, WINDOW);
    int total = window;
    if (a.kind == ENTRIES_ALL) total += (position + 1) / a.ratio;
    if (a.kind == ENTRIES_SELECTED) total += a.counts[token];
    float most = a.sink[head], sum = 1.f, out[4] = {0.f, 0.f, 0.f, 0.f};   // the sink weighs 1 to begin with
    if (most == __uint_as_float(0xff800000u)) {
        most = -1e30f;
        sum = 0.f;
    }
    for (int start = 0; start < total; start += CHUNK) {
        const int n = min(CHUNK, total - start);
        float largest = most;
        for (int j = tid; j < n; j += THREADS) {
            const Key key = key_of(a, token, row, start + j, window);
            weight[j] = dot_of(HEAD_DIM, q, [&](int d) { return key.at(d); }) * a.scale;
            largest = fmaxf(largest, weight[j]);
        }
        for (int bit = 16; bit; bit /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, bit));
        if (lane == 0) most_of[warp] = largest;
        __syncthreads();
        for (int w = 0; w < THREADS / 32; w++) largest = fmaxf(largest, most_of[w]);
        const float growth = expf(most - largest);
        most = largest;
        for (int j = tid; j < n; j += THREADS) weight[j] = expf(weight[j] - most);
        __syncthreads();
        sum *= growth;
        #pragma unroll
        for (int d = 0; d < 4; d++) out[d] *= growth;
        for (int j = 0; j < n; j++) {
            const Key key = key_of(a, token, row, start + j, window);
            sum += weight[j];
            #pragma unroll
            for (int d = 0; d < 4; d++) out[d] = fmaf(weight[j], key.at(d * THREADS + tid), out[d]);
        }
        __syncthreads();
    }
    #pragma unroll
    for (int d = 0; d < 4; d++) q[d * THREADS + tid] = out[d] / sum;
    __syncthreads();
    if (tid < ROPE_PAIRS) rotate_pair(q + NOPE, tid, rotation[tid], rotation[32 + tid], -1.f);
    __syncthreads();
    for (int d = tid; d < HEAD_DIM; d += THREADS) a.out[((size_t)token * a.heads + head) * HEAD_DIM + d] = q[d];
}

struct CopyArgs {
    u8* data;                        // [layers, layer_bytes]
    i64 layer_bytes, page_bytes;
    int from, to;
};

// One page of a pool to another, in all layers. Grid: layers.
extern "C" __global__ void __launch_bounds__(THREADS) copy_page(const __grid_constant__ CopyArgs a) {
    begin_after_launch_before();
    const u32* from = (const u32*)(a.data + blockIdx.x * a.layer_bytes + a.from * a.page_bytes);
    u32* to = (u32*)(a.data + blockIdx.x * a.layer_bytes + a.to * a.page_bytes);
    for (i64 i = threadIdx.x; i < a.page_bytes / 4; i += THREADS) to[i] = from[i];
}
