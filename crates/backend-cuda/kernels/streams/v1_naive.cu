// Where the residual streams start, and their collapse at the end; what happens to them around a layer: v2_slices.cu.
// Version 1: a block a token, one pass over its streams for each thing that is done.
#include "matrix.cuh"
#include "step.cuh"

constexpr int THREADS = 128;

struct EmbedArgs {
    Step step;
    Matrix embed;                    // this rank's rows
    float* embedded;                 // [tokens, hidden]: zero where another rank has the token
    float* rotations;                // as step.rotations
    int first_id;                    // of the embedding's first row
    int unused;
};

// Every token's row of the embedding, and its rotations.
extern "C" __global__ void __launch_bounds__(THREADS) embed(const __grid_constant__ EmbedArgs a) {
    const int token = blockIdx.x, width = a.embed.cols, row = (int)a.step.ids[token] - a.first_id;
    for (int i = threadIdx.x; i < 64; i += THREADS) {
        const int kind = i / 32, pair = i % 32;
        const float angle = __fmul_rn((float)a.step.positions[token], a.step.frequencies[i]);
        float* to = a.rotations + (token * 2 + kind) * 64;
        to[pair] = cosf(angle);
        to[32 + pair] = sinf(angle);
    }
    const bool here = row >= 0 && row < a.embed.rows;
    const u8* data = a.embed.data + (here ? row : 0) * row_bytes(a.embed);
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float x = 0.f;
        if (here) x = a.embed.format == F32 ? ((const float*)data)[i] : float_of_bf16(((const u16*)data)[i]);
        a.embedded[(size_t)token * width + i] = x;
    }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// The products of `rows` rows of `mix` with one token's streams, and the streams' inverse norm: into `products` and the
// answer. Ends with a barrier.
__device__ float products_of(const float* streams, const float* mix, int rows, int width, float eps, float* products, float (&parts)[THREADS / 32]) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < rows; row += THREADS / 32) {
        float sum = 0.f;
        for (int i = lane; i < width; i += 32) sum = fmaf(mix[(size_t)row * width + i], streams[i], sum);
        sum = warp_sum(sum);
        if (lane == 0) products[row] = sum;
    }
    float squares = 0.f;
    for (int i = threadIdx.x; i < width; i += THREADS) squares = fmaf(streams[i], streams[i], squares);
    return 1.f / sqrtf(block_sum<THREADS>(squares, parts) / width + eps);
}

// x = sum of pre[i] X[i], then normed with `gain`.
__device__ void collapse(const float* streams, const float* pre, const float* gain, int hidden, float eps, float* x, float (&parts)[THREADS / 32]) {
    float squares = 0.f;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float sum = 0.f;
        for (int k = 0; k < STREAMS; k++) sum = fmaf(pre[k], streams[k * hidden + i], sum);
        x[i] = sum;
        squares = fmaf(sum, sum, squares);
    }
    const float inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts) / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += THREADS) x[i] = x[i] * inverse * gain[i];
}

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

// The final hidden state of the positions whose logits are wanted.
extern "C" __global__ void __launch_bounds__(THREADS) collapse_for_head(const __grid_constant__ HeadArgs a) {
    __shared__ float products[STREAMS], pre[STREAMS], parts[2][THREADS / 32];
    const float* own = a.streams + (size_t)a.wanted[blockIdx.x] * STREAMS * a.hidden;
    const float inverse = products_of(own, a.mix, STREAMS, STREAMS * a.hidden, a.rms_eps, products, parts[0]);
    if (threadIdx.x < STREAMS) pre[threadIdx.x] = sigmoid(products[threadIdx.x] * inverse * a.scale[0] + a.base[threadIdx.x]) + a.hc_eps;
    __syncthreads();
    collapse(own, pre, a.gain, a.hidden, a.rms_eps, a.out + (size_t)blockIdx.x * a.hidden, parts[1]);
}
