// Small sums over the ranks of a group, in little more than the time that a write to a peer takes: each rank writes its numbers
// into an inbox at every peer and adds up what comes into its own, in the order of ranks, so that all ranks get the same bits. Beside
// each number stands which launch it is of, in the same store of 8 bytes: so nobody fences, nobody waits for a word that speaks
// for others, and nothing is read over the link. It moves twice the bytes, so large sums have v1_one_shot.cu.
//
// Two halves of an inbox take turns: a rank that is two launches ahead has got numbers of the launch between from all peers, so they
// were through with the one before, whose numbers it overwrites.
#include "device.cuh"

constexpr int THREADS = 512, RANKS_MAX = 4;
// Looks at an inbox between two pauses, and between two looks at what lies far, in the host's memory.
constexpr u32 LOOKS_A_PAUSE = 16, LOOKS_A_FAR_LOOK = 1024;

struct PushArgs {
    float* x;                        // [len]: this rank's summand, then the sum
    u64* inboxes[RANKS_MAX];         // by rank: [ranks, 2, slot]: what each wrote there
    u32* counts;                     // of this rank: launches so far; blocks that are through with this one
    const u32* abandoned;            // by rank: not 0 once it has left
    u64* waited;                     // nanoseconds are added here in which block 0 waited for peers; may be null
    i64 slot;
    int len, rank, ranks, unused;
};

__device__ __forceinline__ u64 stamped(float x, u32 launch) { return (u64)launch << 32 | __float_as_uint(x); }

// The two numbers of `rank` at `at`, once they are there; false where it left without them.
__device__ __forceinline__ bool receive(const PushArgs& a, int rank, const u64* at, u32 launch, float2& numbers) {
    // A rank that left may have written before: its inbox is looked at once more.
    bool is_abandoned = false;
    for (u32 looks = 1;; looks++) {
        u64 low, high;
        load_relaxed_system(at, low, high);
        numbers = make_float2(__uint_as_float((u32)low), __uint_as_float((u32)high));
        if ((u32)(low >> 32) == launch && (u32)(high >> 32) == launch) return true;
        if (is_abandoned) return false;
        if (looks % LOOKS_A_FAR_LOOK == 0) is_abandoned = load_acquire_system(a.abandoned + rank) != 0;
        if (looks % LOOKS_A_PAUSE == 0) pause_for_a_peer();
    }
}

__device__ __forceinline__ float2 own_numbers(const PushArgs& a, int at) {
    return make_float2(a.x[at], at + 1 < a.len ? a.x[at + 1] : 0.f);
}

// Grid: the same on all ranks. `len` is at least 1 and at most `slot`, which is even.
extern "C" __global__ void __launch_bounds__(THREADS) push(const __grid_constant__ PushArgs a) {
    const int first = 2 * (blockIdx.x * THREADS + threadIdx.x), step = 2 * THREADS * gridDim.x;
    // 0 is what an inbox holds before anybody wrote.
    const u32 next = a.counts[0] + 1, launch = next ? next : 2;
    const i64 half = (launch & 1) * a.slot;
    for (int i = first; i < a.len; i += step) {
        const float2 own = own_numbers(a, i);
        const u64 low = stamped(own.x, launch), high = stamped(own.y, launch);
        #pragma unroll
        for (int rank = 0; rank < RANKS_MAX; rank++)
            if (rank < a.ranks && rank != a.rank)
                store_relaxed_system(a.inboxes[rank] + 2 * a.slot * a.rank + half + i, low, high);
    }
    const bool is_clock = a.waited && blockIdx.x == 0 && threadIdx.x == 0;
    const u64 begun = is_clock ? nanoseconds() : 0;
    bool all_there = true;
    for (int i = first; i < a.len && all_there; i += step) {
        float2 sum = make_float2(0.f, 0.f);
        #pragma unroll
        for (int rank = 0; rank < RANKS_MAX; rank++) {
            if (rank >= a.ranks || !all_there) break;
            float2 part = own_numbers(a, i);
            if (rank != a.rank) all_there = receive(a, rank, a.inboxes[a.rank] + 2 * a.slot * rank + half + i, launch, part);
            sum = rank == 0 ? part : make_float2(sum.x + part.x, sum.y + part.y);
        }
        if (i == first && is_clock) *a.waited += nanoseconds() - begun;
        if (!all_there) break;
        a.x[i] = sum.x;
        if (i + 1 < a.len) a.x[i + 1] = sum.y;
    }
    // The last block to be through counts the launch: all others have read the count by then.
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(a.counts + 1, 1u) == gridDim.x - 1) {
        a.counts[1] = 0;
        a.counts[0] = launch;
    }
}
