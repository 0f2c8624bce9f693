// The router: which experts a token goes to, and with what weights. Version 1: a block a token, the choice on one thread.
#include "step.cuh"

constexpr int THREADS = 128, EXPERTS_MAX = 1024, PER_TOKEN_MAX = 64;

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

extern "C" __global__ void __launch_bounds__(THREADS) route(const __grid_constant__ RouteArgs a) {
    __shared__ float score[EXPERTS_MAX];
    __shared__ u32 key[EXPERTS_MAX];
    __shared__ int chosen[PER_TOKEN_MAX];
    const int token = blockIdx.x;
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        const float x = a.scores[(size_t)token * a.experts + e];
        score[e] = sqrtf(x > 20.f ? x : log1pf(expf(x)));
        key[e] = a.table ? 0 : ordered_bits(score[e] + a.bias[e]);
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 0; i < a.per_token; i++) {
        int best = 0;
        if (a.table) best = a.table[(size_t)a.step.ids[token] * a.per_token + i];
        else {
            for (int e = 1; e < a.experts; e++)
                if (key[e] > key[best]) best = e;
            key[best] = 0;             // less than any float's
        }
        int at = i;
        for (; at && chosen[at - 1] > best; at--) chosen[at] = chosen[at - 1];
        chosen[at] = best;
    }
    float sum = 0.f;
    for (int i = 0; i < a.per_token; i++) sum += score[chosen[i]];
    for (int i = 0; i < a.per_token; i++) {
        a.ids[token * a.per_token + i] = chosen[i];
        a.weights[token * a.per_token + i] = score[chosen[i]] / (sum + 1e-20f) * a.factor;
    }
}
