// A step's choices, sorted by expert: which slots each expert of this rank has, and tiles of at most `tile_tokens` of them.
//
// A block an expert, and one for all that belongs to no routed expert. Each counts all choices for itself, so that no block waits for
// another, and then places its own in the order of tokens: the result depends on nothing but the choices. 4,096 tokens x 6 are 98 kB,
// read by 129 blocks from L2: a few microseconds, next to milliseconds of products.
#include "args.cuh"

constexpr int WARPS = 8, THREADS = 32 * WARPS, EXPERTS_MAX = 1024;

// The sum over the block; all threads get it.
__device__ __forceinline__ int sum_over_block(int v, int* scratch) {
    v = __reduce_add_sync(~0u, v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = v;
    __syncthreads();
    int sum = 0;
    for (int w = 0; w < WARPS; w++) sum += scratch[w];
    return sum;
}

__device__ __forceinline__ int tiles_of(int slots, int each) { return (slots + each - 1) / each; }

// Writes the tiles of `count` slots from `first` on at `tiles`.
__device__ __forceinline__ void write_tiles(Tile* tiles, int expert, int first, int count, int each) {
    for (int i = threadIdx.x; i < tiles_of(count, each); i += THREADS)
        tiles[i] = Tile{expert, first + i * each, min(each, count - i * each), 0};
}

// The shared expert's slots, and choices that other ranks compute.
__device__ __forceinline__ void rest(const SortArgs& a, int routed_tiles) {
    const int pairs = a.tokens * a.per_token;
    for (int i = threadIdx.x; i < pairs; i += THREADS) {
        const int own = a.ids[i] - a.first_expert;
        if (own < 0 || own >= a.count) a.slot_of[i] = -1;
    }
    for (int i = threadIdx.x; i < a.tokens; i += THREADS) {
        a.token_of[pairs + i] = i;
        a.weight_of[pairs + i] = 1.f;
    }
    write_tiles(a.tiles, a.count, pairs, a.tokens, a.tile_tokens);
    if (threadIdx.x == 0) *a.tile_count = tiles_of(a.tokens, a.tile_tokens) + routed_tiles;
}

extern "C" __global__ void __launch_bounds__(THREADS) sort(const __grid_constant__ SortArgs a) {
    wait_for_launch_before();           // lets nobody begin: blocks of `up` would crowd on multiprocessors that have none of these
    __shared__ int counts[EXPERTS_MAX], scratch[WARPS];
    const int expert = blockIdx.x, pairs = a.tokens * a.per_token, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int i = threadIdx.x; i < a.count; i += THREADS) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < pairs; i += THREADS) {
        const int own = a.ids[i] - a.first_expert;
        if (own >= 0 && own < a.count) atomicAdd(counts + own, 1);
    }
    __syncthreads();
    int slots_before = 0, tiles_before = 0;
    for (int i = threadIdx.x; i < expert; i += THREADS) {
        slots_before += counts[i];
        tiles_before += tiles_of(counts[i], a.tile_tokens);
    }
    slots_before = sum_over_block(slots_before, scratch);
    tiles_before = sum_over_block(tiles_before, scratch);
    if (expert == a.count) {
        rest(a, tiles_before);
        return;
    }
    write_tiles(a.tiles + tiles_of(a.tokens, a.tile_tokens) + tiles_before, expert, slots_before, counts[expert], a.tile_tokens);
    int next = slots_before;
    for (int start = 0; start < pairs && next < slots_before + counts[expert]; start += THREADS) {
        const int i = start + threadIdx.x;
        const bool is_own = i < pairs && a.ids[i] - a.first_expert == expert;
        const u32 own = __ballot_sync(~0u, is_own);
        __syncthreads();
        if (lane == 0) scratch[warp] = __popc(own);
        __syncthreads();
        int slot = next + __popc(own & ((1u << lane) - 1));
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) slot += scratch[w];
            next += scratch[w];
        }
        if (is_own) {
            a.token_of[slot] = i / a.per_token;
            a.weight_of[slot] = a.weights[i];
            a.slot_of[i] = slot;
        }
    }
}

// A token's products, choices in order. Grid: blocks of 1,024 numbers, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) combine(const __grid_constant__ CombineArgs a) {
    begin_after_launch_before();
    const int token = blockIdx.y, column = (blockIdx.x * THREADS + threadIdx.x) * 4, tokens = a.tokens;
    if (column >= a.hidden) return;
    auto at = [&](const float* rows, i64 row) { return reinterpret_cast<const float4*>(rows + row * a.hidden + column); };
    float4 sum = {};
    for (int i = 0; i < a.per_token; i++) {
        const int slot = a.slot_of[token * a.per_token + i];
        if (slot < 0) continue;
        const float4 v = *at(a.products, slot);
        sum.x += v.x; sum.y += v.y; sum.z += v.z; sum.w += v.w;
    }
    float4 shared = *at(a.products, (i64)tokens * a.per_token + token);
    if (a.y_shared) *const_cast<float4*>(at(a.y_shared, token)) = shared;
    else { sum.x += shared.x; sum.y += shared.y; sum.z += shared.z; sum.w += shared.w; }
    *const_cast<float4*>(at(a.y, token)) = sum;
}
