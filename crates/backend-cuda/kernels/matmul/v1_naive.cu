// Products with dense matrices, several at a time: every family's later versions take the same arguments.
// Version 1: a thread an output, reading its weight row number by number. Nothing is shared and nothing coalesced.
#include "matrix.cuh"

constexpr int THREADS = 128, JOBS_MAX = 16, BLOCK = 128;

// out[token, 0..rows] = W in[token, 0..cols], float32 both, rows of in and out so many numbers apart.
struct Job {
    Matrix matrix;
    const float* in;
    float* out;
    i64 in_stride, out_stride;
};

struct DenseArgs {
    Job jobs[JOBS_MAX];
    int count, tokens;
};

// Grid: blocks of 128 outputs of all jobs after each other, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) dense(const __grid_constant__ DenseArgs a) {
    begin_after_launch_before();
    int block = blockIdx.x, job = 0;
    while (block >= (a.jobs[job].matrix.rows + THREADS - 1) / THREADS) block -= (a.jobs[job++].matrix.rows + THREADS - 1) / THREADS;
    const Job& j = a.jobs[job];
    const int row = block * THREADS + threadIdx.x;
    if (row >= j.matrix.rows) return;
    j.out[blockIdx.y * j.out_stride + row] = dot(j.matrix, row, j.in + blockIdx.y * j.in_stride);
}

struct RoundArgs {
    const float* in;                 // [rows, cols]
    float* out;
    int rows, cols;
};

// The publisher's rounding of activations: E4M3 with a power-of-two scale for 128 columns. A thread a block.
extern "C" __global__ void __launch_bounds__(THREADS) round_rows(const __grid_constant__ RoundArgs a) {
    begin_after_launch_before();
    const int blocks = (a.cols + BLOCK - 1) / BLOCK, at = blockIdx.x * THREADS + threadIdx.x;
    if (at >= a.rows * blocks) return;
    const int first = at % blocks * BLOCK, end = min(first + BLOCK, a.cols);
    const float* in = a.in + (size_t)(at / blocks) * a.cols;
    float* out = a.out + (size_t)(at / blocks) * a.cols;
    float most = 0.f;
    for (int i = first; i < end; i++) most = fmaxf(most, fabsf(in[i]));
    const u32 scale = scale_for_e4m3(most);
    for (int i = first; i < end; i++) out[i] = round_to_e4m3(in[i] * reciprocal_of_ue8m0(scale)) * scale_of_ue8m0(scale);
}
