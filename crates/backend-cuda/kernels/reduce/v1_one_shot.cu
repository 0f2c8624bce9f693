// Sums over the ranks of a group: each writes its summand where all can read it, waits until the others have done so, and
// adds up what lies there, in the order of ranks, so that all ranks get the same bits. For two ranks nothing can move fewer bytes;
// for more, a sum in two passes would.
//
// What was delivered is told by one word a rank and block, which counts launches. Two outboxes take turns: a rank that is
// two launches ahead has seen its peers begin the launch between, so they have read what it overwrites. All launches have the
// same grid, so that the words of all blocks keep step.
#include "device.cuh"

constexpr int THREADS = 512, RANKS_MAX = 4;

struct ReduceArgs {
    float* x;                        // [len]: this rank's summand, then the sum
    float* outboxes[RANKS_MAX];      // by rank: [2, slot]
    u32* words[RANKS_MAX];           // by rank: [ranks + 1, blocks]: launches that each rank has delivered for, then its own count
    const u32* abandoned;            // by rank: not 0 once it has left
    i64 slot;
    int len, rank, ranks, unused;
};

// Grid: as many blocks on all ranks, in all launches. `len` is at most `slot`, which is a multiple of 4.
extern "C" __global__ void __launch_bounds__(THREADS) reduce(const __grid_constant__ ReduceArgs a) {
    const int block = blockIdx.x, blocks = gridDim.x, tid = threadIdx.x;
    const int quads = a.len / 4, each = (quads + blocks - 1) / blocks;
    const int begin = min(block * each, quads), end = min(begin + each, quads);
    // Up to 3 numbers are left: the last block's.
    const int left = block == blocks - 1 && tid < a.len % 4 ? quads * 4 + tid : -1;
    u32* count = a.words[a.rank] + a.ranks * blocks + block;
    const u32 launch = *count + 1;
    const i64 at = (launch & 1) * a.slot;
    float4* x = (float4*)a.x;
    float4* own = (float4*)(a.outboxes[a.rank] + at);
    for (int i = begin + tid; i < end; i += THREADS) own[i] = x[i];
    if (left >= 0) ((float*)own)[left] = a.x[left];
    // Of this thread's numbers, before the words that speak for them.
    __threadfence_system();
    __syncthreads();
    bool all_there = true;
    if (tid < a.ranks && tid != a.rank) {
        store_release_system(a.words[tid] + a.rank * blocks + block, launch);
        const u32* word = a.words[a.rank] + tid * blocks + block;
        // Counts may wrap around. A rank that left may have delivered all before: its word is looked at once more.
        bool is_abandoned = false;
        while (all_there && (int)(load_acquire_system(word) - launch) < 0) {
            all_there = !is_abandoned;
            is_abandoned = load_acquire_system(a.abandoned + tid) != 0;
            pause_for_a_peer();
        }
    }
    if (!__syncthreads_and(all_there)) return;
    if (tid == 0) *count = launch;
    for (int i = begin + tid; i < end; i += THREADS) {
        float4 sum = load_past_l1((const float4*)(a.outboxes[0] + at) + i);
        #pragma unroll
        for (int rank = 1; rank < RANKS_MAX; rank++) {
            if (rank >= a.ranks) break;
            const float4 other = load_past_l1((const float4*)(a.outboxes[rank] + at) + i);
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
        }
        x[i] = sum;
    }
    if (left >= 0) {
        float sum = load_past_l1(a.outboxes[0] + at + left);
        #pragma unroll
        for (int rank = 1; rank < RANKS_MAX; rank++)
            if (rank < a.ranks) sum += load_past_l1(a.outboxes[rank] + at + left);
        a.x[left] = sum;
    }
}
