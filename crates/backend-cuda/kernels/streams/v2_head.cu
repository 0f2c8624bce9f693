// The collapse of the residual streams behind the last layer, for the positions whose logits are wanted. Version 2: a block a
// position, which goes over its streams once for all four products and the norm.
//
// For Flash (d = 4096) a block reads 5 x 16,384 numbers (328 kB): at 64 bytes a clock 3 us. `__ldg` lets loads of
// weights run ahead of stores. Version 1 gave each product to one warp; it was not timed by itself.
#include "step.cuh"

constexpr int THREADS = 1024;

struct HeadArgs {
    const float* streams;            // [tokens, 4, hidden]
    const int* wanted;               // [positions]: token indices
    const float* mix;                // [4, 4 hidden]
    const float* base;               // [4]
    const float* scale;              // [1]
    const float* gain;               // [hidden]
    float* out;                      // [positions, hidden]
    int hidden;
    float rms_eps, hc_eps;
    int unused;
};

// Grid: positions.
extern "C" __global__ void __launch_bounds__(THREADS) collapse_for_head(const __grid_constant__ HeadArgs a) {
    begin_after_launch_before();
    __shared__ float parts[STREAMS + 2][THREADS / 32];
    const int width = STREAMS * a.hidden;
    const float* own = a.streams + (size_t)a.wanted[blockIdx.x] * width;
    float* out = a.out + (size_t)blockIdx.x * a.hidden;
    float squares = 0.f, products[STREAMS] = {0.f, 0.f, 0.f, 0.f};
    #pragma unroll 4
    for (int i = threadIdx.x; i < width; i += THREADS) {
        const float x = own[i];
        squares = fmaf(x, x, squares);
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) products[k] = fmaf(__ldg(a.mix + (size_t)k * width + i), x, products[k]);
    }
    float inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts[STREAMS]) / width + a.rms_eps), pre[STREAMS];
    #pragma unroll
    for (int k = 0; k < STREAMS; k++) {
        const float x = block_sum<THREADS>(products[k], parts[k]) * inverse * a.scale[0] + a.base[k];
        pre[k] = 1.f / (1.f + expf(-x)) + a.hc_eps;
    }
    squares = 0.f;
    #pragma unroll 4
    for (int i = threadIdx.x; i < a.hidden; i += THREADS) {
        float sum = 0.f;
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) sum = fmaf(pre[k], own[k * a.hidden + i], sum);
        out[i] = sum;
        squares = fmaf(sum, sum, squares);
    }
    inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts[STREAMS + 1]) / a.hidden + a.rms_eps);
    #pragma unroll 4
    for (int i = threadIdx.x; i < a.hidden; i += THREADS) out[i] = out[i] * inverse * __ldg(a.gain + i);
}
