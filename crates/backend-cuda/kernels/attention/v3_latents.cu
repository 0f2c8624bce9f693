// What comes before attention of every token of a step: its query latent normed, its own latent normed, rotated, rounded and, in
// rows of up to 128 tokens, put into the window. Version 3: a block for either; of the second a thread has four numbers in
// registers from beginning to end.
//
// 6 kB in and out a token of Flash: latency alone, of two round trips to memory and one barrier. Version 2 left the window to a
// launch of its own, which waited for three loads one after the other: 10 us a layer together, at any batch (H200). Not here:
// windows of longer rows, which `append_window` fills from these.
#include "step.cuh"

constexpr int THREADS = HEAD_DIM / 4;

struct LatentsArgs {
    Step step;
    float* qr;                       // [tokens, q_lora]: normed in place
    const float* q_norm;
    float* latents;                  // [tokens, 512]: normed, rotated and rounded in place
    const float* kv_norm;
    u8* packed;                      // [tokens, 584]: the same as a packed entry
    Pages window;
    int q_lora, compressed, format;
    float rms_eps;
};

__device__ __forceinline__ float inverse_norm(float squares, int width, float eps, float (&parts)[THREADS / 32]) {
    return 1.f / sqrtf(block_sum<THREADS>(squares, parts) / width + eps);
}

__device__ __forceinline__ void norm_query(const LatentsArgs& a, float* qr, float (&parts)[THREADS / 32]) {
    float squares = 0.f;
    #pragma unroll 8
    for (int i = threadIdx.x; i < a.q_lora; i += THREADS) squares = fmaf(qr[i], qr[i], squares);
    const float inverse = inverse_norm(squares, a.q_lora, a.rms_eps, parts);
    #pragma unroll 8
    for (int i = threadIdx.x; i < a.q_lora; i += THREADS) qr[i] = qr[i] * inverse * __ldg(a.q_norm + i);   // may be loaded ahead of stores
}

// Grid: tokens, 2: query latents, latents.
extern "C" __global__ void __launch_bounds__(THREADS) latents(const __grid_constant__ LatentsArgs a) {
    begin_after_launch_before();
    __shared__ float parts[THREADS / 32];
    const int token = blockIdx.x, tid = threadIdx.x;
    if (blockIdx.y == 0) {
        norm_query(a, a.qr + (size_t)token * a.q_lora, parts);
        return;
    }
    float4* own = (float4*)(a.latents + (size_t)token * HEAD_DIM) + tid;
    const float4 four = *own, gain = *((const float4*)a.kv_norm + tid);
    const int row = a.step.row_of[token], slot = a.step.positions[token] % RING;
    const bool is_short = a.step.firsts[row + 1] - a.step.firsts[row] <= SHORT_ROW;
    u8* page = a.window.data + a.step.window_pages[row] * a.window.page_bytes;
    const int pair = 2 * (tid - NOPE / 4);                       // the first of two
    float2 cosines, sines;
    if (pair >= 0) {
        const float* rotation = rotation_of(a.step, token, a.compressed);
        cosines = *(const float2*)(rotation + pair);
        sines = *(const float2*)(rotation + 32 + pair);
    }
    float x[4] = {four.x, four.y, four.z, four.w}, squares = 0.f;
    #pragma unroll
    for (int d = 0; d < 4; d++) squares = fmaf(x[d], x[d], squares);
    const float inverse = inverse_norm(squares, HEAD_DIM, a.rms_eps, parts);
    x[0] = x[0] * inverse * gain.x;
    x[1] = x[1] * inverse * gain.y;
    x[2] = x[2] * inverse * gain.z;
    x[3] = x[3] * inverse * gain.w;
    if (pair >= 0) {
        rotate_pair(x, 0, cosines.x, sines.x, 1.f);
        rotate_pair(x, 1, cosines.y, sines.y, 1.f);
    }
    float unrounded[4] = {x[0], x[1], x[2], x[3]};
    if (is_short) store_latent(a.window, page, slot, tid, unrounded);
    if (a.format == KV_FP8) store_latent({nullptr, 0, 1, KV_FP8}, a.packed + (size_t)token * PACKED_BYTES, 0, tid, x);
    *own = make_float4(x[0], x[1], x[2], x[3]);
}
