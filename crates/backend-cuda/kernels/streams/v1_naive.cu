// The residual streams: where they start, what happens to them around every layer, and their collapse at the end.
// Version 1: a block a token, one pass over its streams for each thing that is done, the Sinkhorn iterations on one thread.
//
// For Flash (d = 4096) a site reads 24 x 16,384 float32 weights (1.5 MB) for every token: from L2 beyond the first.
#include "matrix.cuh"
#include "step.cuh"

constexpr int THREADS = 128, SITE_ROWS = 24;

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
    int hidden, iterations;
    float rms_eps, hc_eps;
};

__device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

// From the 24 products of a site to its coefficients: 4 pre, 4 post, 16 comb (first index: the old stream).
__device__ void coefficients(const StreamsArgs& a, const float* m, float inverse, float* out) {
    for (int i = 0; i < 4; i++) out[i] = sigmoid(m[i] * inverse * a.scale[0] + a.base[i]) + a.hc_eps;
    for (int i = 4; i < 8; i++) out[i] = 2.f * sigmoid(m[i] * inverse * a.scale[1] + a.base[i]);
    float* c = out + 8;
    for (int i = 0; i < 4; i++) {
        float most = __uint_as_float(0xff800000u), sum = 0.f;
        for (int j = 0; j < 4; j++) {
            c[4 * i + j] = m[8 + 4 * i + j] * inverse * a.scale[2] + a.base[8 + 4 * i + j];
            most = fmaxf(most, c[4 * i + j]);
        }
        for (int j = 0; j < 4; j++) sum += c[4 * i + j] = expf(c[4 * i + j] - most);
        for (int j = 0; j < 4; j++) c[4 * i + j] = c[4 * i + j] / sum + a.hc_eps;
    }
    for (int iteration = 0; iteration < a.iterations; iteration++) {
        for (int i = 0; iteration > 0 && i < 4; i++) {
            const float sum = c[4 * i] + c[4 * i + 1] + c[4 * i + 2] + c[4 * i + 3] + a.hc_eps;
            for (int j = 0; j < 4; j++) c[4 * i + j] /= sum;
        }
        for (int j = 0; j < 4; j++) {
            const float sum = c[j] + c[4 + j] + c[8 + j] + c[12 + j] + a.hc_eps;
            for (int i = 0; i < 4; i++) c[4 * i + j] /= sum;
        }
    }
}

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

// Leaves one site (mixes its output in) and enters the next.
extern "C" __global__ void __launch_bounds__(THREADS) streams(const __grid_constant__ StreamsArgs a) {
    __shared__ float products[SITE_ROWS], pre_post_comb[SITE_ROWS], parts[2][THREADS / 32];
    const int token = blockIdx.x, hidden = a.hidden;
    float* own = a.streams + (size_t)token * STREAMS * hidden;
    float* mixing = a.mixing + token * 20;
    if (a.embedded)
        for (int i = threadIdx.x; i < STREAMS * hidden; i += THREADS) own[i] = a.embedded[(size_t)token * hidden + i % hidden];
    if (a.y) {
        for (int i = threadIdx.x; i < hidden; i += THREADS) {
            float y = a.y[(size_t)token * hidden + i], old[STREAMS];
            if (a.also) y += a.also[(size_t)token * hidden + i];
            for (int k = 0; k < STREAMS; k++) old[k] = own[k * hidden + i];
            for (int k = 0; k < STREAMS; k++) {
                float sum = mixing[k] * y;
                for (int j = 0; j < STREAMS; j++) sum = fmaf(mixing[4 + 4 * j + k], old[j], sum);
                own[k * hidden + i] = sum;
            }
        }
    }
    __syncthreads();
    if (!a.mix) return;
    const float inverse = products_of(own, a.mix, SITE_ROWS, STREAMS * hidden, a.rms_eps, products, parts[0]);
    if (threadIdx.x == 0) {
        coefficients(a, products, inverse, pre_post_comb);
        for (int i = 0; i < 20; i++) mixing[i] = pre_post_comb[4 + i];
    }
    __syncthreads();
    collapse(own, pre_post_comb, a.gain, hidden, a.rms_eps, a.x + (size_t)token * hidden, parts[1]);
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
