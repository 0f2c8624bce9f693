// The residual streams around a layer, version 3: what is left and what is entered are two launches, as all of a token's
// streams must be there before its coefficients are.
//
// `mix` parts a token's dims into slices of 32, 128 for Flash, so that as many multiprocessors read the next site's matrix
// (1.5 MB, of no use to any cache: the other layers' 85 lie between two uses). A block has one slice of 8 tokens. It asks for all of
// its weights, 16 bytes a lane, before it looks at a token; a warp mixes the layer's output into the streams of one token, then
// multiplies those of all 8 by 3 rows. `enter` asks for everything that does not depend on coefficients while slices are
// added up, and leaves the Sinkhorn iterations, which only the next `mix` needs, to the end.
//
// Version 2 had slices of 128, asked for weights after it had stored streams, and waited in `enter` for one load of streams or gains
// after another: 24 us a site for one token and 42 for 256 (H200). Sums run in an order that neither the tokens of a block nor the
// batch changes.
#include "step.cuh"

constexpr int SLICE = 32, TOKENS = 8, MIX_THREADS = 32 * TOKENS, SITE_ROWS = 24, PARTIALS = 32;
constexpr int ROWS_A_WARP = SITE_ROWS / TOKENS, COLUMNS = STREAMS * SLICE;
constexpr int THREADS = 512, WARPS = THREADS / 32, CHUNK = 4 * THREADS, CHUNKS = 4;   // of `enter`: 8,192 dims at most

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
    int hidden, iterations;          // hidden: a multiple of 4
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

__device__ __forceinline__ float dot(float4 a, float4 b) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, a.x * b.x))); }

// A dim's new streams, which are stored as well.
__device__ __forceinline__ void mix_in(const StreamsArgs& a, int token, int dim, float (&x)[STREAMS]) {
    float* own = a.streams + (size_t)token * STREAMS * a.hidden + dim;
    const size_t at = (size_t)token * a.hidden + dim;
    if (a.embedded) {
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) x[k] = a.embedded[at];
    } else {
        const float4* mixing = (const float4*)(a.mixing + token * 20);
        const float4 post = mixing[0];
        float4 comb[STREAMS];
        float old[STREAMS];
        #pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            comb[j] = mixing[1 + j];
            old[j] = own[j * a.hidden];
        }
        const float y = a.also ? a.y[at] + a.also[at] : a.y[at];
        x[0] = post.x * y; x[1] = post.y * y; x[2] = post.z * y; x[3] = post.w * y;
        #pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            x[0] = fmaf(comb[j].x, old[j], x[0]);
            x[1] = fmaf(comb[j].y, old[j], x[1]);
            x[2] = fmaf(comb[j].z, old[j], x[2]);
            x[3] = fmaf(comb[j].w, old[j], x[3]);
        }
    }
    #pragma unroll
    for (int k = 0; k < STREAMS; k++) own[k * a.hidden] = x[k];
}

// Grid: slices, tokens over TOKENS.
extern "C" __global__ void __launch_bounds__(MIX_THREADS) mix(const __grid_constant__ StreamsArgs a) {
    let_next_begin();
    __shared__ __align__(16) float mixed[TOKENS][COLUMNS];       // [token][stream, dim]
    const int first = blockIdx.y * TOKENS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = blockIdx.x * SLICE + 4 * lane % SLICE;    // of the lane's stream, and the next three
    float4 weights[ROWS_A_WARP];
    #pragma unroll
    for (int r = 0; r < ROWS_A_WARP; r++) {
        const size_t row = (size_t)(warp * ROWS_A_WARP + r) * STREAMS + 4 * lane / SLICE;
        weights[r] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (a.mix && column < a.hidden) weights[r] = __ldg((const float4*)(a.mix + row * a.hidden + column));
    }
    wait_for_launch_before();
    const int dim = blockIdx.x * SLICE + lane, own = first + warp;
    float x[STREAMS] = {0.f, 0.f, 0.f, 0.f};
    if (dim < a.hidden && own < a.tokens) mix_in(a, own, dim, x);
    if (!a.mix) return;
    #pragma unroll
    for (int k = 0; k < STREAMS; k++) mixed[warp][k * SLICE + lane] = x[k];
    __syncthreads();

    float sums[(ROWS_A_WARP + 1) * TOKENS];                      // the squares last
    #pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        const float4 columns = *(const float4*)&mixed[t][4 * lane];
        #pragma unroll
        for (int r = 0; r < ROWS_A_WARP; r++) sums[r * TOKENS + t] = dot(weights[r], columns);
        sums[ROWS_A_WARP * TOKENS + t] = dot(columns, columns);
    }
    const float sum = sum_to_lanes<16>(sums, lane);
    const int r = lane / TOKENS, token = first + lane % TOKENS;
    if (token >= a.tokens || (r == ROWS_A_WARP && warp > 0)) return;
    const int row = r == ROWS_A_WARP ? SITE_ROWS : warp * ROWS_A_WARP + r;
    a.partial[((size_t)token * a.slices + blockIdx.x) * PARTIALS + row] = sum;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
// Over the four lanes that differ in two bits. Three shuffles that do not wait for each other.
__device__ __forceinline__ float sum_of_four(float c, int bit) {
    const float second = __shfl_xor_sync(~0u, c, bit), third = __shfl_xor_sync(~0u, c, 2 * bit), fourth = __shfl_xor_sync(~0u, c, 3 * bit);
    return (c + second) + (third + fourth);
}

// What a warp adds of a token's partials, every 16th slice: a row in its lane. Eight loads at a time, all asked for at once.
__device__ __forceinline__ float product_of_warp(const StreamsArgs& a, int token) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* partial = a.partial + (size_t)token * a.slices * PARTIALS + lane;
    float sum = 0.f;
    #pragma unroll 1
    for (int from = warp; from < a.slices; from += 8 * WARPS) {
        float loaded[8];
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const int slice = from + i * WARPS;
            loaded[i] = slice < a.slices && lane <= SITE_ROWS ? load_global_float(partial + slice * PARTIALS) : 0.f;
        }
        #pragma unroll
        for (int i = 0; i < 8; i++) sum += loaded[i];
    }
    return sum;
}

// The token's products over the root of the mean of squares, for one warp: a row in its lane.
__device__ __forceinline__ float product_of_token(const StreamsArgs& a, const float (&of_warps)[WARPS][PARTIALS]) {
    const int lane = threadIdx.x % 32;
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
    #pragma unroll
    for (int w = 0; w < WARPS; w++) sums[w % 4] += of_warps[w][lane];
    const float product = (sums[0] + sums[1]) + (sums[2] + sums[3]), squares = __shfl_sync(~0u, product, SITE_ROWS);
    return product * (1.f / sqrtf(squares / (STREAMS * a.hidden) + a.rms_eps));
}

// What the next call mixes with: 4 post, 16 comb (first index: the old stream). For one warp, whose lanes l and l + 16 do the same.
__device__ __forceinline__ void leave_mixing(const StreamsArgs& a, float coefficient, float* mixing) {
    const int lane = threadIdx.x % 32;
    if (lane >= 4 && lane < 8) mixing[lane - 4] = 2.f * sigmoid(coefficient);
    float c = __shfl_sync(~0u, coefficient, 8 + lane % 16);
    const float two = fmaxf(c, __shfl_xor_sync(~0u, c, 1)), most = fmaxf(two, __shfl_xor_sync(~0u, two, 2));
    c = expf(c - most);
    c = c / sum_of_four(c, 1) + a.hc_eps;
    for (int iteration = 0; iteration < a.iterations; iteration++) {
        if (iteration > 0) c = __fdividef(c, sum_of_four(c, 1) + a.hc_eps);
        c = __fdividef(c, sum_of_four(c, 4) + a.hc_eps);
    }
    if (lane < 16) mixing[4 + lane] = c;
}

// x = sum of pre[i] X[i], then normed with the gain. Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) enter(const __grid_constant__ StreamsArgs a) {
    let_next_begin();
    __shared__ float of_warps[WARPS][PARTIALS], parts[WARPS], pre[STREAMS];
    const int token = blockIdx.x, hidden = a.hidden, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* streams = a.streams + (size_t)token * STREAMS * hidden;
    float4 own[CHUNKS][STREAMS], gain[CHUNKS];
    float scale = 0.f, base = 0.f, coefficient = 0.f, squares = 0.f;   // a row's in its lane, of the first warp
    if (warp == 0 && lane < SITE_ROWS) {
        scale = __ldg(a.scale + min(lane / STREAMS, 2));
        base = __ldg(a.base + lane);
    }
    #pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int dim = c * CHUNK + 4 * threadIdx.x;
        if (dim < hidden) gain[c] = __ldg((const float4*)(a.gain + dim));
    }
    wait_for_launch_before();
    #pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int dim = c * CHUNK + 4 * threadIdx.x;
        if (dim >= hidden) continue;
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) own[c][k] = load_global_float4(streams + k * hidden + dim);
    }
    of_warps[warp][lane] = product_of_warp(a, token);
    __syncthreads();
    if (warp == 0) {
        coefficient = product_of_token(a, of_warps) * scale + base;
        if (lane < STREAMS) pre[lane] = sigmoid(coefficient) + a.hc_eps;
    }
    __syncthreads();
    #pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        if (c * CHUNK + 4 * (int)threadIdx.x >= hidden) continue;
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        #pragma unroll
        for (int k = 0; k < STREAMS; k++) {
            sum.x = fmaf(pre[k], own[c][k].x, sum.x);
            sum.y = fmaf(pre[k], own[c][k].y, sum.y);
            sum.z = fmaf(pre[k], own[c][k].z, sum.z);
            sum.w = fmaf(pre[k], own[c][k].w, sum.w);
        }
        squares += dot(sum, sum);
        own[c][0] = sum;
    }
    const float inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts) / hidden + a.rms_eps);
    #pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const int dim = c * CHUNK + 4 * threadIdx.x;
        if (dim >= hidden) continue;
        const float4 sum = own[c][0], g = gain[c];
        *(float4*)(a.x + (size_t)token * hidden + dim) =
            make_float4(sum.x * inverse * g.x, sum.y * inverse * g.y, sum.z * inverse * g.z, sum.w * inverse * g.w);
    }
    if (warp == 0) leave_mixing(a, coefficient, a.mixing + token * 20);
}
