// The experts' two projections, version 2: as the dense kernel (v2_dense.cu, tile.cuh), over tiles of slots.
//
// A block is a tile of up to 8 x N_TILES slots of one expert (sort.cu) and a tile of rows of its matrices. Tiles are as many as the
// sort found; blocks behind that end at once. The shared expert's tiles come first: they are the longest where it is FP8 and
// the others FP4.
//
//   up     a warp has the same 16 rows of w1 and w3 (M_TILES is 2); silu(min(w1 x, L)) * clamp(w3 x, -L, L) * weight, in float32,
//          is written once, as w2 takes it
//   down   w2, M_TILES x 16 rows a warp; each slot's product is written for `combine` (sort.cu) to add up in the order of choices, which
//          costs 16 kB a slot of Flash written and read, against 2.1 MB of w1, w3 and w2 in FP4 for every 1,024 rows
//
// Flash, one token of a TP2 rank, 3 experts of 6 its own: 3 x 12.6 MB in FP4 with scales 13.4, and 25.2 MB shared: 65 MB, 15 us.
// FP4 is 33 weights a cycle and multiprocessor of an H200: about 45 of the 64 integer lanes and 17 of the multiplications.
//
// Shared memory: WARPS x STAGES x M_TILES x 2,048 bytes: 65,536 for 4 warps, 4 stages, 2.
// On an H200 it takes 10 times what its bytes do for one token, 3.4 times for 64 (docs/gpu-step.md).
#include "tile.cuh"

__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }    // NaN stays
__device__ __forceinline__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// The inputs of a tile's slots: rows of `codes` for matrices that take prepared ones, of `floats` for others.
template <typename RowOf>
__device__ __forceinline__ Inputs inputs_of(const Tile& tile, const u16* codes, i64 term_stride, const float* floats, int format, int cols, int lane, RowOf row_of) {
    Inputs in;
    in.term_stride = (u32)(term_stride / 8);
    in.tokens = tile.count;
    #pragma unroll
    for (int n = 0; n < N_TILES; n++) {
        const size_t at = (size_t)row_of(tile.first + min(8 * n + lane / 4, tile.count - 1)) * cols;
        in.row[n] = format == FP8 || format == FP4 ? static_cast<const void*>(codes + at) : floats + at;
    }
    return in;
}

// Calls store(row - first_row, slot, sum) for this lane's numbers of M-tile m.
template <typename Store>
__device__ __forceinline__ void each_number(const Tile& tile, int lane, Store store) {
    #pragma unroll
    for (int n = 0; n < N_TILES; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int slot = 8 * n + lane % 4 * 2 + i % 2;
            if (slot < tile.count) store(n, i, lane / 4 + i / 2 * 8, tile.first + slot);
        }
}

#if M_TILES == 2
// Grid: tiles of WARPS x 16 inner numbers, tiles of slots.
extern "C" __global__ void __launch_bounds__(THREADS, 2) up(const __grid_constant__ ExpertsArgs a) {
    extern __shared__ __align__(128) u8 memory[];
    if ((int)blockIdx.y >= *a.tile_count) return;
    const Tile tile = a.tiles[blockIdx.y];
    const Expert& expert = a.experts[tile.expert];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first_row = (blockIdx.x * WARPS + warp) * 16;
    if (first_row >= a.width) return;
    const int format = expert.w1.format, bytes = (int)row_bytes(expert.w1);
    const SixteenRows rows[2] = {sixteen_rows(expert.w1, first_row, lane), sixteen_rows(expert.w3, first_row, lane)};
    const Inputs in = inputs_of(tile, a.x, a.x_term_stride, a.x_exact, format, a.hidden, lane, [&](int slot) { return a.token_of[slot]; });
    Sums total = {};
    multiply(rows, format, bytes, in, 0, (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES, shared_address(memory) + warp * RING_BYTES, lane, total);
    const bool is_prepared = !a.inner_is_exact && (expert.w2.format == FP8 || expert.w2.format == FP4);
    each_number(tile, lane, [&](int n, int i, int row, int slot) {
        if (first_row + row >= a.width) return;
        const float gate = at_most(total[0][n][i], a.limit), up = at_least(at_most(total[1][n][i], a.limit), -a.limit);
        const float value = gate / (1.f + expf(-gate)) * up * a.weight_of[slot];
        const size_t at = (size_t)slot * a.width + first_row;
        if (is_prepared) a.inner[at + row / 8 * 8 + prepared_place(row % 8)] = (u16)bf16x2_of(value, 0.f);
        else a.inner_exact[at + row] = value;
    });
}
#endif

// Grid: tiles of WARPS x M_TILES x 16 numbers of the output, tiles of slots.
extern "C" __global__ void __launch_bounds__(THREADS, 2) down(const __grid_constant__ ExpertsArgs a) {
    extern __shared__ __align__(128) u8 memory[];
    if ((int)blockIdx.y >= *a.tile_count) return;
    const Tile tile = a.tiles[blockIdx.y];
    const Matrix& w2 = a.experts[tile.expert].w2;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, first_row = (blockIdx.x * WARPS + warp) * M_TILES * 16;
    if (first_row >= a.hidden) return;
    const int bytes = (int)row_bytes(w2);
    SixteenRows rows[M_TILES];
    #pragma unroll
    for (int m = 0; m < M_TILES; m++) rows[m] = sixteen_rows(w2, first_row + 16 * m, lane);
    const Inputs in = inputs_of(tile, a.inner, a.inner_term_stride, a.inner_exact, w2.format, a.width, lane, [](int slot) { return slot; });
    Sums total = {};
    multiply(rows, w2.format, bytes, in, 0, (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES, shared_address(memory) + warp * RING_BYTES, lane, total);
    #pragma unroll
    for (int m = 0; m < M_TILES; m++)
        each_number(tile, lane, [&](int n, int i, int row, int slot) {
            if (first_row + 16 * m + row < a.hidden) a.products[(size_t)slot * a.hidden + first_row + 16 * m + row] = total[m][n][i];
        });
}
