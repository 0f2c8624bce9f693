// The residual streams around a layer, version 2: what is left and what is entered are two launches, as all of a token's
// streams must be there before its coefficients are.
//
// `mix` parts a token's dims into slices of 128: a block has one slice of 4 tokens, mixes the layer's output into its streams, and
// multiplies them by its columns of the next site's matrix, which it reads once for the 4. `enter` adds up the slices, makes
// the coefficients with a lane for each of the 16 of the Sinkhorn iterations, and collapses the streams.
//
// Version 1, a block of 128 threads a token for all of it, took 220 us a site for one token as for 256 on an H200: half of a decoding
// step of Flash. This takes 24 us a site for one token and 41 for 256. Sums run in an order that neither the tokens of a block nor the
// batch changes.
#include "step.cuh"

constexpr int SLICE = 128, TOKENS = 4, THREADS = 512, SITE_ROWS = 24, PARTIALS = 32;

struct StreamsArgs {
    float* streams;                  // [tokens, 4, hidden]
    const float* embedded;           // [tokens, hidden]: what all streams start as; null but for the first site
    const float* y;                  // [tokens, hidden]: the layer's output to mix in; null for the first site
    const float* also;               // added to y; may be null
    float* mixing;                   // [tokens, 20]: 4 post and 16 comb, left by one site for the next call
    const float* mix;                // [24, 4 hidden] of the next site; null behind the last layer
    const float* base;               // [24]
    const float* scale;              // [3]
    const float* gain;               // [hidden]
    float* x;                        // [tokens, hidden]: the normed input of the next layer
    float* partial;                  // [tokens, slices, PARTIALS]: a slice's 24 products and its sum of squares
    int hidden, iterations;
    float rms_eps, hc_eps;
    int tokens, slices;
};

// Sums of 2 HALF numbers over lanes that differ in HALF and the lower bits: lane i gets that of v[i % (2 HALF)]. All lanes' sums are made in
// the same order.
template <int HALF> __device__ __forceinline__ float sum_to_lanes(const float (&v)[2 * HALF], int lane) {
    const bool is_upper = lane & HALF;
    float halves[HALF];
    #pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float sent = is_upper ? v[i] : v[i + HALF], kept = is_upper ? v[i + HALF] : v[i];
        halves[i] = kept + __shfl_xor_sync(~0u, sent, HALF);
    }
    if constexpr (HALF == 1) return halves[0];
    else return sum_to_lanes<HALF / 2>(halves, lane);
}

// A dim's new streams, which are stored as well.
__device__ __forceinline__ void mix_in(const StreamsArgs& a, int token, int dim, float (&x)[STREAMS]) {
    float* own = a.streams + (size_t)token * STREAMS * a.hidden + dim;
    const size_t at = (size_t)token * a.hidden + dim;
    if (a.embedded) {
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) own[k * a.hidden] = x[k] = a.embedded[at];
        return;
    }
    const float* mixing = a.mixing + token * 20;
    const float y = a.also ? a.y[at] + a.also[at] : a.y[at];
    float old[STREAMS];
    #pragma unroll
    for (int k = 0; k < STREAMS; k++) old[k] = own[k * a.hidden];
    #pragma unroll
    for (int k = 0; k < STREAMS; k++) {
        x[k] = mixing[k] * y;
        #pragma unroll
        for (int j = 0; j < STREAMS; j++) x[k] = fmaf(mixing[4 + 4 * j + k], old[j], x[k]);
        own[k * a.hidden] = x[k];
    }
}

// Grid: slices, tokens over TOKENS.
extern "C" __global__ void __launch_bounds__(SLICE) mix(const __grid_constant__ StreamsArgs a) {
    __shared__ float of_warps[SLICE / 32][SITE_ROWS * TOKENS + TOKENS];
    const int dim = blockIdx.x * SLICE + threadIdx.x, first = blockIdx.y * TOKENS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float x[TOKENS][STREAMS] = {};
    #pragma unroll
    for (int t = 0; t < TOKENS; t++)
        if (dim < a.hidden && first + t < a.tokens) mix_in(a, first + t, dim, x[t]);
    if (!a.mix) return;

    float sums[SITE_ROWS * TOKENS / 32][32] = {};
    const float* column = a.mix + min(dim, a.hidden - 1);
    #pragma unroll
    for (int k = 0; k < STREAMS; k++)
        #pragma unroll
        for (int row = 0; row < SITE_ROWS; row++) {
            const float w = column[((size_t)row * STREAMS + k) * a.hidden];
            #pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                float& sum = sums[(row * TOKENS + t) / 32][(row * TOKENS + t) % 32];
                sum = fmaf(w, x[t][k], sum);
            }
        }
    #pragma unroll
    for (int group = 0; group < SITE_ROWS * TOKENS / 32; group++) of_warps[warp][group * 32 + lane] = sum_to_lanes<16>(sums[group], lane);
    #pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float squares = 0.f;
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) squares = fmaf(x[t][k], x[t][k], squares);
        squares = warp_sum(squares);
        if (lane == 0) of_warps[warp][SITE_ROWS * TOKENS + t] = squares;
    }
    __syncthreads();
    const int row = threadIdx.x / TOKENS, token = first + threadIdx.x % TOKENS;
    if (row > SITE_ROWS || token >= a.tokens) return;
    float total = 0.f;
    #pragma unroll
    for (int w = 0; w < SLICE / 32; w++) total += of_warps[w][threadIdx.x];
    a.partial[((size_t)token * a.slices + blockIdx.x) * PARTIALS + row] = total;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
// Over the four lanes that differ in two bits.
__device__ __forceinline__ float sum_of_four(float c, int bit) {
    c += __shfl_xor_sync(~0u, c, bit);
    return c + __shfl_xor_sync(~0u, c, 2 * bit);
}

// From the 24 products of a site to its coefficients: 4 pre, 4 post, 16 comb (first index: the old stream). For one warp, whose lanes
// l and l + 16 do the same.
__device__ void coefficients(const StreamsArgs& a, const float* products, float inverse, float* pre, float* mixing) {
    const int lane = threadIdx.x % 32, at = lane % 16;
    if (lane < 4) pre[lane] = sigmoid(products[lane] * inverse * a.scale[0] + a.base[lane]) + a.hc_eps;
    else if (lane < 8) mixing[lane - 4] = 2.f * sigmoid(products[lane] * inverse * a.scale[1] + a.base[lane]);
    float c = products[8 + at] * inverse * a.scale[2] + a.base[8 + at];
    const float two = fmaxf(c, __shfl_xor_sync(~0u, c, 1)), most = fmaxf(two, __shfl_xor_sync(~0u, two, 2));
    c = expf(c - most);
    c = c / sum_of_four(c, 1) + a.hc_eps;
    for (int iteration = 0; iteration < a.iterations; iteration++) {
        if (iteration > 0) c /= sum_of_four(c, 1) + a.hc_eps;
        c /= sum_of_four(c, 4) + a.hc_eps;
    }
    if (lane < 16) mixing[4 + lane] = c;
}

// x = sum of pre[i] X[i], then normed with the gain. Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) enter(const __grid_constant__ StreamsArgs a) {
    __shared__ float products[SITE_ROWS + 1], pre[STREAMS], parts[THREADS / 32];
    const int token = blockIdx.x, hidden = a.hidden, lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row <= SITE_ROWS; row += THREADS / 32) {
        float sum = 0.f;
        for (int slice = lane; slice < a.slices; slice += 32) sum += a.partial[((size_t)token * a.slices + slice) * PARTIALS + row];
        sum = warp_sum(sum);
        if (lane == 0) products[row] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 32) coefficients(a, products, 1.f / sqrtf(products[SITE_ROWS] / (STREAMS * hidden) + a.rms_eps), pre, a.mixing + token * 20);
    __syncthreads();
    const float* streams = a.streams + (size_t)token * STREAMS * hidden;
    float* x = a.x + (size_t)token * hidden;
    float squares = 0.f;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float sum = 0.f;
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) sum = fmaf(pre[k], streams[k * hidden + i], sum);
        x[i] = sum;
        squares = fmaf(sum, sum, squares);
    }
    const float inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts) / hidden + a.rms_eps);
    for (int i = threadIdx.x; i < hidden; i += THREADS) x[i] = x[i] * inverse * a.gain[i];
}
