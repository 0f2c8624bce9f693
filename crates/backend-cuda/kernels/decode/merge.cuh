// The end of a split row: the block that arrives last adds up all parts of its heads, in the order of the parts, so
// that the result does not depend on who is last. No second launch.
#pragma once
#include "args.cuh"
#include "device.cuh"

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float NOTHING = -1e30f;   // log2 of an empty sum

// What a part with log2-sum `log` keeps of its normalised output once the sink has its share; 0 for an empty row.
__device__ __forceinline__ float share_beside_sink(float log, float sink) {
    return log > NOTHING ? 1.f / (1.f + exp2_approx(sink * LOG2_E - log)) : 0.f;
}

// `part_at(i)` is where part i lies, counted in parts of all heads.
template <int HEADS, int WARPS, typename PartAt>
__device__ __forceinline__ void merge(const Args& a, int row, int head_block, int parts, PartAt part_at) {
    constexpr int EACH = HEADS / WARPS;   // heads of a warp, added up side by side: one after the other is twice the wait
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int head0 = head_block * HEADS + warp * EACH;
    float top[EACH], sum[EACH], sink[EACH];
    float4 o[EACH][4] = {};
    int head[EACH];
    #pragma unroll
    for (int h = 0; h < EACH; h++) {
        head[h] = min(head0 + h, a.heads - 1);   // a head too many is computed and not stored
        sink[h] = a.sink[head[h]] * LOG2_E;
        top[h] = fmaxf(sink[h], NOTHING);
    }
    for (int start = 0; start < parts; start += 32) {
        #pragma unroll
        for (int h = 0; h < EACH; h++)
            if (start + lane < parts) top[h] = fmaxf(top[h], __ldcg(a.partial_log + part_at(start + lane) * a.heads + head[h]));
    }
    #pragma unroll
    for (int h = 0; h < EACH; h++) {
        #pragma unroll
        for (int bit = 16; bit; bit /= 2) top[h] = fmaxf(top[h], __shfl_xor_sync(~0u, top[h], bit));
        sum[h] = exp2_approx(sink[h] - top[h]);
    }
    for (int start = 0; start < parts; start += 32) {
        float weight[EACH];   // of part start + lane
        #pragma unroll
        for (int h = 0; h < EACH; h++)
            weight[h] = start + lane < parts ? exp2_approx(__ldcg(a.partial_log + part_at(start + lane) * a.heads + head[h]) - top[h]) : 0.f;
        const int n = min(32, parts - start);
        #pragma unroll (EACH == 1 ? 4 : 1)   // eight or sixteen loads in flight; more and the kernel spills
        for (int i = 0; i < n; i++) {
            #pragma unroll
            for (int h = 0; h < EACH; h++) {
                const float w = __shfl_sync(~0u, weight[h], i);
                const float4* part = reinterpret_cast<const float4*>(a.partial + (part_at(start + i) * a.heads + head[h]) * HEAD_DIMS);
                sum[h] += w;
                #pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float4 v = __ldcg(part + j * 32 + lane);
                    o[h][j].x += w * v.x; o[h][j].y += w * v.y; o[h][j].z += w * v.z; o[h][j].w += w * v.w;
                }
            }
        }
    }
    #pragma unroll
    for (int h = 0; h < EACH; h++) {
        if (head0 + h >= a.heads) continue;
        const float scale = sum[h] > 0.f ? 1.f / sum[h] : 0.f;
        uint2* out = reinterpret_cast<uint2*>(a.out + (size_t)row * a.out_stride + head[h] * HEAD_DIMS);
        #pragma unroll
        for (int j = 0; j < 4; j++)
            out[j * 32 + lane] = make_uint2(bf16x2_of(o[h][j].x * scale, o[h][j].y * scale), bf16x2_of(o[h][j].z * scale, o[h][j].w * scale));
    }
}

template <int HEADS, int WARPS>
__device__ __forceinline__ void merge_if_last(const Args& a, int row, int head_block, int active) {
    __threadfence();
    __syncthreads();
    bool last = false;
    if (threadIdx.x == 0) {
        int* arrivals = a.arrivals + row * gridDim.y + head_block;
        last = atomicAdd(arrivals, 1) == active - 1;
        if (last) *arrivals = 0;   // ready for the next launch, also in a replayed graph
    }
    if (!__syncthreads_or(last)) return;   // says it without shared memory
    __threadfence();
    const size_t first = (size_t)row * a.splits;
    merge<HEADS, WARPS>(a, row, head_block, active, [&](int part) { return first + part; });
}
