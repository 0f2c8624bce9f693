// Compressors: the entries that complete in a step, and the rows that later ones will need. Version 1: a block a token
// and compressor, most of which have nothing to do.
//
// Both kernels run in this order. The first reads rows of earlier steps from the rings that the second overwrites.
#include "step.cuh"

constexpr int THREADS = 128, JOBS_MAX = 2;

struct Compressor {
    const float* k;                  // [tokens, channels]: products of wkv
    const float* s;                  // [tokens, channels]: products of wgate, `ape` not added
    const float* ape;                // [ratio, channels]
    const float* norm;               // [width]
    float* rings;                    // this compressor's place in the first page of compressor rows
    i64 page_floats;
    Pages pages;                     // where entries go
    int pool;                        // and which table says so
    int width, channels, ratio, ring_rows;
    int is_index;                    // entries are index keys
};

struct CompressArgs {
    Step step;
    Compressor jobs[JOBS_MAX];
    float rms_eps;
    int unused;
};

// K and S of a position of the token's row, from this step or from the ring.
struct Place {
    const float* k;
    const float* s;
    const float* ape;                // null: S has it
};
__device__ __forceinline__ Place place_of(const Step& step, const Compressor& c, int token, int row, int position) {
    const int back = step.positions[token] - position;
    if (position >= step.starts[row]) {
        const size_t at = (size_t)(token - back) * c.channels;
        return {c.k + at, c.s + at, c.ape + position % c.ratio * c.channels};
    }
    const float* ring = c.rings + step.rows_pages[row] * c.page_floats + (size_t)(position % c.ring_rows) * 2 * c.channels;
    return {ring, ring + c.channels, nullptr};
}

// An index key from shared memory, transformed and rounded as the format has it.
__device__ void store_key(const Pages& p, u8* page, int slot, float* key, u32* scales) {
    const int tid = threadIdx.x;                                // a thread a dim
    if (p.format == INDEX_F32) {
        ((float*)page)[slot * INDEX_DIM + tid] = key[tid];
        return;
    }
    if (p.format == INDEX_BF16) {
        ((u16*)page)[slot * INDEX_DIM + tid] = (u16)bf16x2_of(key[tid], 0.f);
        return;
    }
    for (int half = 1; half < INDEX_DIM; half *= 2) {
        __syncthreads();
        const float own = key[tid], other = key[tid ^ half];
        __syncthreads();
        key[tid] = tid & half ? other - own : own + other;
    }
    key[tid] *= 1.f / sqrtf((float)INDEX_DIM);
    __syncthreads();
    const int block = p.format == INDEX_FP8 ? INDEX_DIM : 32;
    if (tid < INDEX_DIM / block) {
        float most = 0.f;
        for (int i = 0; i < block; i++) most = fmaxf(most, fabsf(key[tid * block + i]));
        scales[tid] = block == 32 ? scale_for_e2m1(most) : scale_for_e4m3(most);
    }
    __syncthreads();
    const float reciprocal = reciprocal_of_ue8m0(scales[tid / block]);
    if (p.format == INDEX_FP8) {
        u8* to = page + slot * 132;
        to[tid] = (u8)e4m3x2_of(key[tid] * reciprocal, 0.f);
        if (tid == 0) *(float*)(to + INDEX_DIM) = scale_of_ue8m0(scales[0]);
    } else {
        u8* to = page + slot * 68;
        if (tid % 2 == 0) to[tid / 2] = (u8)(e2m1_of(key[tid] * reciprocal) | e2m1_of(key[tid + 1] * reciprocal) << 4);
        if (tid < 4) to[64 + tid] = (u8)scales[tid];
    }
}

// Grid: tokens, compressors.
extern "C" __global__ void __launch_bounds__(THREADS) compress(const __grid_constant__ CompressArgs a) {
    __shared__ float entry[HEAD_DIM], parts[THREADS / 32];
    __shared__ u32 scales[8];
    const Compressor& c = a.jobs[blockIdx.y];
    const int token = blockIdx.x, row = a.step.row_of[token], position = a.step.positions[token];
    if ((position + 1) % c.ratio) return;
    const int index = position / c.ratio, first = index * c.ratio;
    const int before = c.channels > c.width ? min(c.ratio, first) : 0;   // rows of the window before, their first half
    const int second = c.channels > c.width ? c.width : 0;
    float squares = 0.f;
    for (int d = threadIdx.x; d < c.width; d += THREADS) {
        float most = __uint_as_float(0xff800000u), sum = 0.f, pooled = 0.f;
        for (int pass = 0; pass < 2; pass++)
            for (int at = first - before; at < first + c.ratio; at++) {
                const Place p = place_of(a.step, c, token, row, at);
                const int channel = d + (at >= first ? second : 0);
                const float s = p.s[channel] + (p.ape ? p.ape[channel] : 0.f);
                if (pass == 0) most = fmaxf(most, s);
                else {
                    const float weight = expf(s - most);
                    sum += weight;
                    pooled = fmaf(weight, p.k[channel], pooled);
                }
            }
        entry[d] = pooled / sum;
        squares = fmaf(entry[d], entry[d], squares);
    }
    const float inverse = 1.f / sqrtf(block_sum<THREADS>(squares, parts) / c.width + a.rms_eps);
    for (int d = threadIdx.x; d < c.width; d += THREADS) entry[d] = entry[d] * inverse * c.norm[d];
    __syncthreads();
    if (threadIdx.x < ROPE_PAIRS) {
        const float angle = __fmul_rn((float)first, a.step.frequencies[32 + threadIdx.x]);
        rotate_pair(entry + c.width - 64, threadIdx.x, cosf(angle), sinf(angle), 1.f);
    }
    __syncthreads();
    u8* page = entry_page(c.pages, a.step, c.pool, row, index);
    if (c.is_index) store_key(c.pages, page, index % c.pages.slots, entry, scales);
    else store_latent<THREADS>(c.pages, page, index % c.pages.slots, entry, scales);
}

// Grid: tokens, compressors. What later steps may need of this one: the last `ring_rows` tokens of each row.
extern "C" __global__ void __launch_bounds__(THREADS) keep_rows(const __grid_constant__ CompressArgs a) {
    const Compressor& c = a.jobs[blockIdx.y];
    const int token = blockIdx.x, row = a.step.row_of[token], position = a.step.positions[token];
    if (token + c.ring_rows < a.step.firsts[row + 1]) return;
    float* ring = c.rings + a.step.rows_pages[row] * c.page_floats + (size_t)(position % c.ring_rows) * 2 * c.channels;
    for (int d = threadIdx.x; d < c.channels; d += THREADS) {
        ring[d] = c.k[(size_t)token * c.channels + d];
        ring[c.channels + d] = c.s[(size_t)token * c.channels + d] + c.ape[position % c.ratio * c.channels + d];
    }
}
