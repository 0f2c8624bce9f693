// The router: which experts a token goes to, and with what weights. Version 3: a block a token, whose threads make two scores each for
// Flash's 256 experts; then one warp has the keys of all experts in registers, 8 a lane. Each choice is one maximum over the warp.
//
// 1 kB of scores in, 48 bytes out: latency alone, of memory and of code that is run once. Version 2 gave a token one warp, which made 8
// scores a lane one after the other, each an exponential, a logarithm and a root: 12.6 us a launch whatever the batch (H200). The
// same choices and weights to the bit.
#include "step.cuh"

constexpr int THREADS = 128, PER_TOKEN_MAX = 64, EXPERTS_MAX = 1024;   // as those who multiply by them

struct RouteArgs {
    Step step;
    const float* scores;             // [tokens, experts]: products of the gate
    const u16* table;                // [vocab, per_token]: experts by token id; null when they are chosen by score
    const float* bias;               // [experts], for choosing only
    int* ids;                        // [tokens, per_token], ascending
    float* weights;                  // [tokens, per_token]
    int experts, per_token;
    float factor;
    int unused;
};

__device__ __forceinline__ float score_of(float x) { return sqrtf(x > 20.f ? x : log1pf(expf(x))); }

// By keys in shared memory, for one warp. Of equal keys the lower expert.
template <int EXPERTS_A_LANE> __device__ __forceinline__ void choose(const RouteArgs& a, const u32* keys_of_all, int* chosen) {
    const int lane = threadIdx.x % 32;
    u32 keys[EXPERTS_A_LANE];
    #pragma unroll
    for (int i = 0; i < EXPERTS_A_LANE; i++) {
        const int e = lane + 32 * i;
        keys[i] = e < a.experts ? keys_of_all[e] : 0;
    }
    #pragma unroll 1
    for (int place = 0; place < a.per_token; place++) {
        u32 most = 0;
        #pragma unroll
        for (int i = 0; i < EXPERTS_A_LANE; i++) most = max(most, keys[i]);
        most = __reduce_max_sync(~0u, most);
        int best = a.experts;
        #pragma unroll
        for (int i = EXPERTS_A_LANE - 1; i >= 0; i--)
            if (keys[i] == most) best = lane + 32 * i;
        best = __reduce_min_sync(~0u, best);
        #pragma unroll
        for (int i = 0; i < EXPERTS_A_LANE; i++)
            if (best == lane + 32 * i) keys[i] = 0;              // less than any float's
        if (lane == 0) chosen[place] = best;
    }
}

// Grid: tokens.
extern "C" __global__ void __launch_bounds__(THREADS) route(const __grid_constant__ RouteArgs a) {
    begin_after_launch_before();
    __shared__ int chosen[PER_TOKEN_MAX];
    __shared__ u32 keys[EXPERTS_MAX];
    __shared__ float scores[EXPERTS_MAX], weighed[PER_TOKEN_MAX];   // of all; of the chosen, by ascending expert
    const int token = blockIdx.x, lane = threadIdx.x % 32;
    if (a.table)
        for (int i = threadIdx.x; i < a.per_token; i += THREADS) chosen[i] = a.table[(size_t)a.step.ids[token] * a.per_token + i];
    #pragma unroll 2
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        const float score = score_of(a.scores[(size_t)token * a.experts + e]);
        scores[e] = score;
        if (!a.table) keys[e] = ordered_bits(score + __ldg(a.bias + e));
    }
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (!a.table) {
        if (a.experts <= 32 * 8) choose<8>(a, keys, chosen);
        else if (a.experts <= 32 * 12) choose<12>(a, keys, chosen);
        else choose<32>(a, keys, chosen);
        __syncwarp();
    }
    for (int i = lane; i < a.per_token; i += 32) {
        const int own = chosen[i];
        int at = 0;
        for (int j = 0; j < a.per_token; j++) at += chosen[j] < own || (chosen[j] == own && j < i);
        a.ids[token * a.per_token + at] = own;
        weighed[at] = scores[own];
    }
    __syncwarp();
    float sum = 0.f;
    for (int i = 0; i < a.per_token; i++) sum += weighed[i];
    for (int i = lane; i < a.per_token; i += 32) a.weights[token * a.per_token + i] = weighed[i] / (sum + 1e-20f) * a.factor;
}
