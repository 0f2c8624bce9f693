// The router: which experts a token goes to, and with what weights. Version 2: a warp a token, which keeps the keys of all
// experts in registers, 8 a lane for Flash's 256. Each choice is one maximum over the warp.
//
// 1 kB of scores in, 48 bytes out: latency alone. Version 1 had one thread look for each of 6 experts among 256: 40 us
// whatever the batch (H200).
#include "step.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32, PER_TOKEN_MAX = 64;   // and 1,024 experts, as those who multiply by them

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

// Of equal scores the lower expert.
template <int EXPERTS_A_LANE> __device__ __forceinline__ void choose(const RouteArgs& a, const float* scores, int* chosen) {
    const int lane = threadIdx.x % 32;
    u32 keys[EXPERTS_A_LANE];
    #pragma unroll
    for (int i = 0; i < EXPERTS_A_LANE; i++) {
        const int e = lane + 32 * i;
        keys[i] = e < a.experts ? ordered_bits(score_of(scores[e]) + a.bias[e]) : 0;
    }
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

// Grid: tokens over WARPS.
extern "C" __global__ void __launch_bounds__(THREADS) route(const __grid_constant__ RouteArgs a) {
    __shared__ int chosen_of[WARPS][PER_TOKEN_MAX];
    __shared__ float scores_of[WARPS][PER_TOKEN_MAX];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x * WARPS + warp;
    if (token >= a.step.tokens) return;
    int* chosen = chosen_of[warp];
    float* weighed = scores_of[warp];                            // scores of the chosen, by ascending expert
    const float* scores = a.scores + (size_t)token * a.experts;
    if (a.table) {
        for (int i = lane; i < a.per_token; i += 32) chosen[i] = a.table[(size_t)a.step.ids[token] * a.per_token + i];
    } else if (a.experts <= 32 * 8) choose<8>(a, scores, chosen);
    else if (a.experts <= 32 * 12) choose<12>(a, scores, chosen);
    else choose<32>(a, scores, chosen);
    __syncwarp();
    for (int i = lane; i < a.per_token; i += 32) {
        const int own = chosen[i];
        int at = 0;
        for (int j = 0; j < a.per_token; j++) at += chosen[j] < own || (chosen[j] == own && j < i);
        a.ids[token * a.per_token + at] = own;
        weighed[at] = score_of(scores[own]);
    }
    __syncwarp();
    float sum = 0.f;
    for (int i = 0; i < a.per_token; i++) sum += weighed[i];
    for (int i = lane; i < a.per_token; i += 32) a.weights[token * a.per_token + i] = weighed[i] / (sum + 1e-20f) * a.factor;
}
