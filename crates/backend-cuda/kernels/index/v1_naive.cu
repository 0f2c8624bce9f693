// The indexer: scores of all visible entries of a query. Version 1: queries in place, a block for 32 keys of a token. It serves
// float32 keys.
#include "index.cuh"

constexpr int THREADS = 128, KEYS = 32;

// Grid: heads, tokens.
extern "C" __global__ void __launch_bounds__(THREADS) index_queries(const __grid_constant__ IndexArgs a) {
    begin_after_launch_before();
    __shared__ float q[INDEX_DIM];
    __shared__ u32 scales[4];
    const int token = blockIdx.y, tid = threadIdx.x;
    if (visible_of(a.step, token) <= a.top) return;
    float* own = a.q + ((size_t)token * a.heads + blockIdx.x) * INDEX_DIM;
    q[tid] = own[tid];
    __syncthreads();
    const float* rotation = rotation_of(a.step, token, 1);
    if (tid < ROPE_PAIRS) rotate_pair(q + 64, tid, rotation[tid], rotation[32 + tid], 1.f);
    __syncthreads();
    const int format = a.keys.format;
    float x = q[tid];
    if (format == INDEX_BF16) x = round_to_bf16(x);
    if (format == INDEX_FP8 || format == INDEX_FP4) {
        for (int half = 1; half < INDEX_DIM; half *= 2) {
            const float other = q[tid ^ half];
            x = tid & half ? other - x : x + other;
            __syncthreads();
            q[tid] = x;
            __syncthreads();
        }
        x *= 1.f / sqrtf((float)INDEX_DIM);
        q[tid] = x;
        __syncthreads();
        const int block = format == INDEX_FP8 ? INDEX_DIM : 32;
        if (tid < INDEX_DIM / block) {
            float most = 0.f;
            for (int i = 0; i < block; i++) most = fmaxf(most, fabsf(q[tid * block + i]));
            scales[tid] = block == 32 ? scale_for_e2m1(most) : scale_for_e4m3(most);
        }
        __syncthreads();
        const u32 scale = scales[tid / block];
        x *= reciprocal_of_ue8m0(scale);
        x = (block == 32 ? float_of_e2m1(e2m1_of(x)) : round_to_e4m3(x)) * scale_of_ue8m0(scale);
    }
    own[tid] = x;
}

__device__ __forceinline__ float key_at(const Pages& p, const u8* page, int slot, int dim) {
    if (p.format == INDEX_F32) return ((const float*)page)[slot * INDEX_DIM + dim];
    if (p.format == INDEX_BF16) return float_of_bf16(((const u16*)page)[slot * INDEX_DIM + dim]);
    if (p.format == INDEX_FP8) return float_of_e4m3(page[slot * 132 + dim]) * *(const float*)(page + slot * 132 + INDEX_DIM);
    const u8* key = page + slot * 68;
    return float_of_e2m1(key[dim / 2] >> 4 * (dim & 1)) * scale_of_ue8m0(key[64 + dim / 32]);
}

// Grid: blocks of 32 keys of the longest context, tokens. Four warps take a quarter of the heads each.
extern "C" __global__ void __launch_bounds__(THREADS) index_scores(const __grid_constant__ IndexArgs a) {
    begin_after_launch_before();
    __shared__ float keys[KEYS][INDEX_DIM + 1], sums[THREADS / 32][KEYS];
    const int token = a.first + blockIdx.y, row = a.step.row_of[token], visible = visible_of(a.step, token), first = blockIdx.x * KEYS;
    if (visible <= a.top || first >= visible) return;
    for (int i = threadIdx.x; i < KEYS * INDEX_DIM; i += THREADS) {
        const int index = first + i / INDEX_DIM;
        if (index >= visible) break;
        keys[i / INDEX_DIM][i % INDEX_DIM] = key_at(a.keys, entry_page(a.keys, a.step, POOL_INDEX, row, index), index % a.keys.slots, i % INDEX_DIM);
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.f;
    if (first + lane < visible)
        for (int head = warp; head < a.heads; head += THREADS / 32) {
            const float* q = a.q + ((size_t)token * a.heads + head) * INDEX_DIM;
            const float x = dot_of(INDEX_DIM, q, [&](int d) { return keys[lane][d]; });
            sum = fmaf(a.weights[(size_t)token * a.heads + head] * a.scale, x < 0.f ? 0.f : x, sum);
        }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && first + lane < visible)
        a.scores[(size_t)blockIdx.y * a.score_stride + first + lane] = (sums[0][lane] + sums[1][lane]) + (sums[2][lane] + sums[3][lane]);
}
