// The experts' two projections, version 3: as the dense kernel (v3_dense.cu, tile.cuh), over tiles of slots.
//
// A block is a tile of up to TOKENS slots of one expert (sort.cu) and a tile of rows of its matrices. Tiles are as many as the
// sort found; blocks behind that end at once. The shared expert's tiles come first: they are the longest where it is FP8 and
// the others FP4.
//
//   up     a warp has the same 16 rows of w1 and w3 (M_TILES is 2); silu(min(w1 x, L)) * clamp(w3 x, -L, L) * weight, in float32
//   down   w2; each slot's product is written for `combine` (sort.cu) to add up in the order of choices, which costs 16 kB a slot of
//          Flash written and read, against 2.1 MB of w1, w3 and w2 in FP4 for every 1,024 rows
//
// Flash, one token of a TP2 rank, 3 experts of 6 its own: 3 x 12.6 MB in FP4 with scales 13.4, and 25.2 MB shared: 65 MB, 15 us.
// FP4 is 33 weights a cycle and multiprocessor of an H200, of 45 that it can turn into f16.
#include "tile.cuh"

static_assert(M_TILES == 2, "w1 and w3 side by side");

__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }    // NaN stays
__device__ __forceinline__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// Grid: tiles of ROWS / 2 inner numbers, tiles of slots.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN) up(const __grid_constant__ ExpertsArgs a) {
    begin_after_launch_before();
    extern __shared__ __align__(128) u8 memory[];
    __shared__ int input_rows[TOKENS];
    if ((int)blockIdx.y >= *a.tile_count) return;
    const Tile tile = a.tiles[blockIdx.y];
    const Expert& expert = a.experts[tile.expert];
    const int first_row = blockIdx.x * (ROWS / 2);
    if (threadIdx.x < tile.count) input_rows[threadIdx.x] = a.token_of[tile.first + threadIdx.x];
    __syncthreads();

    Sums total = {};
    const Rows rows{expert.w1, expert.w3, first_row};
    multiply<true, false>(rows, Inputs{a.x, input_rows, tile.count, 0}, 0, stages_of(expert.w1), shared_address(memory), total);
    const Place at;
    if (at.cols > 0) return;
    #pragma unroll
    for (int n = 0; n < N_TILES; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = first_row + at.row * 16 + at.lane / 4 + i / 2 * 8, slot = (at.token * N_TILES + n) * 8 + at.lane % 4 * 2 + i % 2;
            if (row >= a.width || slot >= tile.count) continue;
            const float gate = at_most(total[0][n][i], a.limit), up = at_least(at_most(total[1][n][i], a.limit), -a.limit);
            a.inner_exact[(size_t)(tile.first + slot) * a.width + row] = gate / (1.f + expf(-gate)) * up * a.weight_of[tile.first + slot];
        }
}

// Grid: tiles of ROWS numbers of the output, tiles of slots.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_MIN) down(const __grid_constant__ ExpertsArgs a) {
    begin_after_launch_before();
    extern __shared__ __align__(128) u8 memory[];
    __shared__ int input_rows[TOKENS];
    if ((int)blockIdx.y >= *a.tile_count) return;
    const Tile tile = a.tiles[blockIdx.y];
    const Matrix w2 = a.experts[tile.expert].w2;
    const int first_row = blockIdx.x * ROWS;
    if (threadIdx.x < tile.count) input_rows[threadIdx.x] = tile.first + threadIdx.x;
    __syncthreads();

    Sums total = {};
    const Rows rows{w2, w2, first_row};
    multiply<false, false>(rows, Inputs{a.inner, input_rows, tile.count, 0}, 0, stages_of(w2), shared_address(memory), total);
    const Place at;
    if (at.cols > 0) return;
    at.each([&](int m, int n, int i, int row, int slot) {
        if (first_row + row < a.hidden && slot < tile.count) a.products[(size_t)(tile.first + slot) * a.hidden + first_row + row] = total[m][n][i];
    });
}
