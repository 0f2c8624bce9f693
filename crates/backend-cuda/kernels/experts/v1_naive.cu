// Routed experts and the shared one. Version 1: a thread an output of one token and one of its experts; an expert's
// weights are read again for every token that chose it.
#include "matrix.cuh"

constexpr int THREADS = 128;

struct Expert {
    Matrix w1, w3, w2;
};

struct ExpertsArgs {
    const Expert* experts;           // [experts of this rank + 1]: the shared one is the last
    const int* ids;                  // [tokens, per_token], ascending
    const float* weights;            // [tokens, per_token]
    const float* x;                  // [tokens, hidden]: input of the routed experts
    const float* x_shared;           // the same for the shared one, which may be rounded otherwise
    float* inner;                    // [tokens, per_token + 1, width]
    const float* inner_routed;       // what w2 of routed experts reads: `inner`, or a rounded copy of it
    const float* inner_shared;
    float* y;                        // [tokens, hidden]: the sum over the routed experts of this rank
    float* y_shared;                 // [tokens, hidden]
    int tokens, per_token, hidden, width;
    int first_expert, count;         // of this rank
    float limit;                     // infinity: none
    int unused;
};

// Which entry of `experts` a token's choice is; -1 when another rank has it.
__device__ __forceinline__ int local_expert(const ExpertsArgs& a, int token, int slot) {
    if (slot == a.per_token) return a.count;
    const int own = a.ids[token * a.per_token + slot] - a.first_expert;
    return own >= 0 && own < a.count ? own : -1;
}

// NaN goes through both clamps.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }
__device__ __forceinline__ float at_least(float x, float limit) { return x < limit ? limit : x; }

// Grid: blocks of 128 inner numbers, choices, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) expert_up(const __grid_constant__ ExpertsArgs a) {
    begin_after_launch_before();
    const int row = blockIdx.x * THREADS + threadIdx.x, slot = blockIdx.y, token = blockIdx.z;
    const int own = local_expert(a, token, slot);
    if (own < 0 || row >= a.width) return;
    const float* x = (slot == a.per_token ? a.x_shared : a.x) + (size_t)token * a.hidden;
    const float gate = at_most(dot(a.experts[own].w1, row, x), a.limit);
    const float up = at_least(at_most(dot(a.experts[own].w3, row, x), a.limit), -a.limit);
    const float weight = slot == a.per_token ? 1.f : a.weights[token * a.per_token + slot];
    a.inner[((size_t)token * (a.per_token + 1) + slot) * a.width + row] = gate * (1.f / (1.f + expf(-gate))) * up * weight;
}

// Grid: blocks of 128 outputs, tokens. Choices are added in the order of their ids.
extern "C" __global__ void __launch_bounds__(THREADS) expert_down(const __grid_constant__ ExpertsArgs a) {
    begin_after_launch_before();
    const int row = blockIdx.x * THREADS + threadIdx.x, token = blockIdx.y;
    if (row >= a.hidden) return;
    const size_t first = (size_t)token * (a.per_token + 1) * a.width, at = (size_t)token * a.hidden + row;
    float sum = 0.f;
    for (int slot = 0; slot < a.per_token; slot++) {
        const int own = local_expert(a, token, slot);
        if (own >= 0) sum += dot(a.experts[own].w2, row, a.inner_routed + first + (size_t)slot * a.width);
    }
    a.y[at] = sum;
    a.y_shared[at] = dot(a.experts[a.count].w2, row, a.inner_shared + first + (size_t)a.per_token * a.width);
}
