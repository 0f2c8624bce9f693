// Sums over the ranks of a group: each writes its summand where all can read it, waits until the others have done so, and
// adds up what lies there, in the order of ranks, so that all ranks get the same bits. For two ranks nothing can move fewer bytes;
// for more, a sum in two passes would. Small sums have v2_push.cu.
//
// What was delivered is told by one word a rank and block, which counts launches. Two outboxes take turns: a rank that is
// two launches ahead has seen its peers begin the launch between, so they have read what it overwrites. All launches have the
// same grid, so that the words of all blocks keep step.
#include "device.cuh"

constexpr int THREADS = 512, RANKS_MAX = 4;
// Numbers of each rank that a thread fetches at once: what crosses a link takes long, and much must be under way.
constexpr int QUADS_AT_ONCE = 4;
// Looks at a word between two looks at what lies far, in the host's memory.
constexpr u32 LOOKS_A_FAR_LOOK = 64;

struct ReduceArgs {
    float* x;                        // [len]: this rank's summand, then the sum
    float* outboxes[RANKS_MAX];      // by rank: [2, slot]
    u32* words[RANKS_MAX];           // by rank: [ranks + 1, blocks]: launches that each rank has delivered for, then its own count
    const u32* abandoned;            // by rank: not 0 once it has left
    u64* waited;                     // nanoseconds are added here in which block 0 waited for peers; may be null
    i64 slot;
    int len, rank, ranks, unused;
};

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Until the block of `rank` has delivered for this launch; false where it left before.
__device__ __forceinline__ bool is_delivered(const ReduceArgs& a, int rank, const u32* word, u32 launch) {
    // A rank that left may have delivered all before: its word is looked at once more.
    bool is_abandoned = false;
    // Counts may wrap around.
    for (u32 looks = 1; (int)(load_acquire_system(word) - launch) < 0; looks++) {
        if (is_abandoned) return false;
        if (looks % LOOKS_A_FAR_LOOK == 0) is_abandoned = load_acquire_system(a.abandoned + rank) != 0;
        pause_for_a_peer();
    }
    return true;
}

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
    // The words below speak for what all threads of the block have written before this.
    __syncthreads();
    const bool is_clock = a.waited && block == 0 && tid == 0;
    const u64 begun = is_clock ? nanoseconds() : 0;
    bool all_there = true;
    if (tid < a.ranks && tid != a.rank) {
        store_release_system(a.words[tid] + a.rank * blocks + block, launch);
        all_there = is_delivered(a, tid, a.words[a.rank] + tid * blocks + block, launch);
    }
    if (!__syncthreads_and(all_there)) return;
    if (is_clock) *a.waited += nanoseconds() - begun;
    if (tid == 0) *count = launch;
    for (int i = begin + tid; i < end; i += QUADS_AT_ONCE * THREADS) {
        float4 sums[QUADS_AT_ONCE];
        #pragma unroll
        for (int rank = 0; rank < RANKS_MAX; rank++) {
            if (rank >= a.ranks) break;
            const float4* from = (const float4*)(a.outboxes[rank] + at);
            float4 parts[QUADS_AT_ONCE];
            #pragma unroll
            for (int u = 0; u < QUADS_AT_ONCE; u++)
                if (i + u * THREADS < end) parts[u] = load_past_l1(from + i + u * THREADS);
            #pragma unroll
            for (int u = 0; u < QUADS_AT_ONCE; u++) sums[u] = rank == 0 ? parts[u] : plus(sums[u], parts[u]);
        }
        #pragma unroll
        for (int u = 0; u < QUADS_AT_ONCE; u++)
            if (i + u * THREADS < end) x[i + u * THREADS] = sums[u];
    }
    if (left >= 0) {
        float sum = load_past_l1(a.outboxes[0] + at + left);
        #pragma unroll
        for (int rank = 1; rank < RANKS_MAX; rank++)
            if (rank < a.ranks) sum += load_past_l1(a.outboxes[rank] + at + left);
        a.x[left] = sum;
    }
}
