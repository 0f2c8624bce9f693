// Dense products, version 2: weights through rings of their own, inputs through L1, no barrier in the loop (tile.cuh).
//
// A block is a tile of WARPS x M_TILES x 16 rows of one job's matrix, 8 x N_TILES tokens, and one of the job's `splits` runs of blocks
// of columns. Where splits share a tile, each leaves its sums in memory, and the one that comes last adds them up in order.
// Grid: blocks of all jobs after each other (a job's tiles in order, a tile's splits next to each other), token tiles.
//
// For 4096 x 4096 FP8 and 8 tokens: 16.8 MB of weights, 3.9 us at 4.3 TB/s. On an H200 each multiprocessor gets 16.5 weights a cycle at
// that rate; turning them into BF16 takes 4 integer instructions and a multiplication for two, 33 of the 64 integer lanes a cycle;
// one MMA for 256 weights and 8 tokens, an eighth of what mma.sync can do, so arithmetic binds from about 64 tokens on.
// Inputs: 8 tokens are read once for 128 rows, 2 x 8 bytes of them for 128 of weights.
//
// Shared memory: WARPS x STAGES x M_TILES x 2,048 bytes: 65,536 for 8 warps, 4 stages and 1. Three quarters of that are under way at
// any time; two blocks a multiprocessor make 96 kB, where 4.3 TB/s and 0.8 us ask for 26. Three stages would fit sm_120 twice, but there
// the assembler then takes few registers and spills (13.0).
// On an H200 a launch takes 6 times what its bytes do for one token, 30 times for 64 (docs/gpu-step.md): it waits, with a tenth of
// its issue slots busy.
#include "tile.cuh"

constexpr int ROWS = WARPS * M_TILES * 16, TILE = ROWS * TOKENS;

// Stores or adds up; `place` is where this lane's number i of tile (m, n) lies among a part's.
__device__ __forceinline__ int place(int warp, int lane, int m, int n, int i) {
    return (((warp * M_TILES + m) * N_TILES + n) * 4 + i) * 32 + lane;
}

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

extern "C" __global__ void __launch_bounds__(THREADS, 2) dense(const __grid_constant__ DenseArgs a) {
    extern __shared__ __align__(128) u8 memory[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int number = 0;
    while (number + 1 < a.count && (int)blockIdx.x >= a.jobs[number + 1].blocks_before) number++;
    const Job& job = a.jobs[number];
    const int block = blockIdx.x - job.blocks_before, tile = block / job.splits, split = block % job.splits;
    const int first_row = tile * ROWS + warp * M_TILES * 16, first_token = blockIdx.y * TOKENS;
    const int format = job.matrix.format, bytes = (int)row_bytes(job.matrix);
    const int number_bytes = format == FP8 || format == FP4 ? 2 : 4;

    Sums total = {};
    Inputs in;
    in.term_stride = (u32)(job.term_stride / 8);
    in.tokens = min(a.tokens - first_token, TOKENS);
    #pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const int token = first_token + min(8 * n + g, in.tokens - 1);
        in.row[n] = static_cast<const u8*>(job.in) + token * job.in_stride * number_bytes;
    }
    if (first_row < job.matrix.rows) {
        SixteenRows rows[M_TILES];
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) rows[m] = sixteen_rows(job.matrix, first_row + 16 * m, lane);
        const int blocks = (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES, each = (blocks + job.splits - 1) / job.splits;
        const int first = min(split * each, blocks), count = min(each, blocks - first);
        multiply(rows, format, bytes, in, first, count, shared_address(memory) + warp * RING_BYTES, lane, total);
    }
    if (job.splits > 1) {
        const int parts = blockIdx.y * a.parts + job.parts_before + tile * job.splits;
        float* part = a.partial + (size_t)parts * TILE;
        #pragma unroll
        for (int j = 0; j < M_TILES * N_TILES * 4; j++) {
            const int m = j / 4 / N_TILES, n = j / 4 % N_TILES, i = j % 4;
            if (8 * n < in.tokens) part[(size_t)split * TILE + place(warp, lane, m, n, i)] = total[m][n][i];
        }
        if (!is_last(a.arrivals + parts, job.splits)) return;
        #pragma unroll
        for (int j = 0; j < M_TILES * N_TILES * 4; j++) total[j / 4 / N_TILES][j / 4 % N_TILES][j % 4] = 0.f;
        for (int s = 0; s < job.splits; s++)
            #pragma unroll
            for (int j = 0; j < M_TILES * N_TILES * 4; j++) {
                const int m = j / 4 / N_TILES, n = j / 4 % N_TILES, i = j % 4;
                if (8 * n < in.tokens) total[m][n][i] += __ldcg(part + (size_t)s * TILE + place(warp, lane, m, n, i));
            }
    }
    #pragma unroll
    for (int j = 0; j < M_TILES * N_TILES * 4; j++) {
        const int m = j / 4 / N_TILES, n = j / 4 % N_TILES, i = j % 4;
        const int row = first_row + 16 * m + g + i / 2 * 8, token = 8 * n + 2 * t + i % 2;
        if (row < job.matrix.rows && token < in.tokens) job.out[(first_token + token) * job.out_stride + row] = total[m][n][i];
    }
}
