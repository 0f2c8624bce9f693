// Where the residual streams start; what happens to them around a layer: v2_slices.cu, and their collapse at the end: v2_head.cu.
// Version 1: a block a token.
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
    begin_after_launch_before();
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
