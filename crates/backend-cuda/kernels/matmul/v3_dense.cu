// Dense products, version 3: weights and inputs through one ring (tile.cuh), WARP_COLS warps on the same rows.
//
// A block is a tile of ROWS rows of one job's matrix, TOKENS tokens, and one of the job's `splits` runs of stages. Where splits share
// a tile, each leaves its sums in memory, and the one that comes last adds them up in order.
// Grid: blocks of all jobs after each other (a job's tiles in order, a tile's splits next to each other), token tiles.
//
// For 4096 x 4096 FP8 and 8 tokens: 16.8 MB of weights, 3.9 us at 4.3 TB/s. On an H200 each multiprocessor gets 19 weights a cycle at
// that rate; turning 8 of them into f16 takes 6 instructions, of which the four conversions run beside the integer ones (measured
// on an H200: 66 weights a cycle by conversions, 30 by moving bits). An MMA is 256 weights and 8 tokens, two of them exact to float32.
//
// Version 2 read inputs through L1 in front of every MMA, as three bf16 terms: it waited, with a tenth of its issue slots busy, and
// took 6 times what its bytes do for one token, 30 times for 64.
#include "tile.cuh"

constexpr int TILE = ROWS * TOKENS, NUMBERS = M_TILES * N_TILES * 4;

// True in the block of a tile that came last. Its threads see what the others wrote.
__device__ __forceinline__ bool is_last(int* arrivals, int splits) {
    __shared__ int before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) before = atomicAdd(arrivals, 1);
    __syncthreads();
    if (before != splits - 1) return false;
    if (threadIdx.x == 0) *arrivals = 0;
    __threadfence();
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN) dense(const __grid_constant__ DenseArgs a) {
    let_next_begin();
    extern __shared__ __align__(128) u8 memory[];
    __shared__ int input_rows[TOKENS];
    int number = 0;
    while (number + 1 < a.count && (int)blockIdx.x >= a.jobs[number + 1].blocks_before) number++;
    const Job& job = a.jobs[number];
    const int block = blockIdx.x - job.blocks_before, tile = block / job.splits, split = block % job.splits;
    const int first_token = blockIdx.y * TOKENS, tokens = min(a.tokens - first_token, TOKENS);
    if (threadIdx.x < tokens) input_rows[threadIdx.x] = a.first + first_token + threadIdx.x;
    __syncthreads();

    Sums total = {};
    const Rows rows{job.matrix, job.matrix, tile * ROWS};
    const Inputs in{job.in, input_rows, tokens, job.first_col};
    const int stages = stages_of(job.matrix), each = job.split_bytes / stage_bytes(job.matrix.format), first = min(split * each, stages);
    multiply<false, true>(rows, in, first, min(each, stages - first), shared_address(memory), total);
    wait_for_launch_before();           // has waited: said here for those who ask this text (src/cubins.rs)

    const Place at;
    const bool has_sums = at.cols == 0;
    if (job.splits > 1) {
        const int parts = blockIdx.y * a.parts + job.parts_before + tile * job.splits;
        float* part = a.partial + (size_t)parts * TILE + (size_t)((at.token * WARP_ROWS + at.row) * NUMBERS * 32 + at.lane);
        #pragma unroll
        for (int j = 0; j < NUMBERS; j++)
            if (has_sums) part[(size_t)split * TILE + j * 32] = total[j / 4 / N_TILES][j / 4 % N_TILES][j % 4];
        if (!is_last(a.arrivals + parts, job.splits) || !has_sums) return;
        #pragma unroll
        for (int j = 0; j < NUMBERS; j++) total[j / 4 / N_TILES][j / 4 % N_TILES][j % 4] = 0.f;
        for (int s = 0; s < job.splits; s++)
            #pragma unroll
            for (int j = 0; j < NUMBERS; j++) total[j / 4 / N_TILES][j / 4 % N_TILES][j % 4] += __ldcg(part + (size_t)s * TILE + j * 32);
    }
    if (!has_sums) return;
    at.each([&](int m, int n, int i, int row, int token) {
        if (tile * ROWS + row < job.matrix.rows && token < tokens)
            job.out[(a.first + first_token + token) * job.out_stride + tile * ROWS + row] = total[m][n][i];
    });
}
