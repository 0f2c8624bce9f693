// Compressors: the entries that complete in a step, and the rows that later ones will need. Version 2: a block an entry;
// teams of threads share its positions, a thread has four channels of every so manieth position.
//
// An HCA entry of Flash pools 128 positions x 512 channels of K and S, 524,288 bytes, which one multiprocessor brings in: at 64
// bytes a clock 5 us, and no quicker than its loads under way allow, 128 kB a round trip to memory. Only tokens that
// complete an entry have a block, and none is launched where none does. Not here: an entry's channels over several
// blocks, whose norm would need another launch.
//
// Version 1 had one block walk all positions one after the other, each a round trip: 0.55 ms for an HCA entry (H200).
//
// Both kernels run in this order. The first reads rows of earlier steps from the rings that the second overwrites.
#include "step.cuh"

constexpr int THREADS = 512, KEEP_THREADS = 128, JOBS_MAX = 2;
constexpr int BATCH = 8;             // positions whose loads a thread has under way

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
    const int* completing;           // tokens that complete an entry
    float rms_eps;
    int unused;
};

// The positions of one entry, 0 for the first: the window before, if there is one, then its own.
struct Positions {
    int count, before;               // of those, in the window before
    int in_step;                     // the first that is in this step; earlier ones are in the ring
    int token;                       // of position 0, if it were in this step
    const float* ring;
    int ring_slot;                   // of position 0
};
__device__ __forceinline__ Positions positions_of(const CompressArgs& a, const Compressor& c, int token, int row, int first) {
    const int before = c.channels > c.width ? min(c.ratio, first) : 0, start = first - before;
    const float* ring = c.rings + a.step.rows_pages[row] * c.page_floats;
    const int token_of_start = token - (a.step.positions[token] - start);
    return {before + c.ratio, before, a.step.starts[row] - start, token_of_start, ring, start % c.ring_rows};
}

__device__ __forceinline__ void load_four(float (&to)[4], const float* from) {
    const float4 four = *(const float4*)from;
    to[0] = four.x; to[1] = four.y; to[2] = four.z; to[3] = four.w;
}

// Sums of a softmax over some positions, for four channels: weights are relative to `most`.
struct Pooled {
    float most[4], sum[4], value[4];
};

// Over positions `at`, `at` + teams, ..., BATCH of them; those behind the last weigh nothing.
__device__ __forceinline__ void pool_batch(const Compressor& c, const Positions& p, int at, int teams, int channel, Pooled& pooled) {
    float s[BATCH][4], k[BATCH][4];
    #pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const int i = at + b * teams;
        #pragma unroll
        for (int d = 0; d < 4; d++) {
            s[b][d] = __uint_as_float(0xff800000u);
            k[b][d] = 0.f;
        }
        if (i >= p.count) continue;
        const int half = channel + (i >= p.before && c.channels > c.width ? c.width : 0);   // the window before has the first one
        const int slot = p.ring_slot + i;
        const float* ring = p.ring + (slot < c.ring_rows ? slot : slot - c.ring_rows) * 2 * c.channels;
        const size_t row = (size_t)(p.token + i) * c.channels;
        const bool in_step = i >= p.in_step;
        load_four(s[b], (in_step ? c.s + row : ring + c.channels) + half);
        load_four(k[b], (in_step ? c.k + row : ring) + half);
    }
    #pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const int i = at + b * teams;
        if (i >= p.count || i < p.in_step) continue;             // in the ring S has it
        const int own = i >= p.before ? i - p.before : i, half = channel + (i >= p.before && c.channels > c.width ? c.width : 0);
        float ape[4];
        load_four(ape, c.ape + own * c.channels + half);
        #pragma unroll
        for (int d = 0; d < 4; d++) s[b][d] += ape[d];
    }
    #pragma unroll
    for (int d = 0; d < 4; d++) {
        float most = pooled.most[d];
        #pragma unroll
        for (int b = 0; b < BATCH; b++) most = fmaxf(most, s[b][d]);
        const float growth = expf(pooled.most[d] - most);
        pooled.most[d] = most;
        pooled.sum[d] *= growth;
        pooled.value[d] *= growth;
        #pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const float weight = expf(s[b][d] - most);
            pooled.sum[d] += weight;
            pooled.value[d] = fmaf(weight, k[b][d], pooled.value[d]);
        }
    }
}

// Stores an index key, transformed and rounded as the format has it: of one warp, each lane has numbers 4 lane .. + 3.
__device__ __forceinline__ void store_key(const Pages& p, u8* page, int slot, int lane, float (&x)[4]) {
    if (p.format == INDEX_F32) {
        *(float4*)((float*)page + slot * INDEX_DIM + 4 * lane) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    if (p.format == INDEX_BF16) {
        *(uint2*)((u16*)page + slot * INDEX_DIM + 4 * lane) = make_uint2(bf16x2_of(x[0], x[1]), bf16x2_of(x[2], x[3]));
        return;
    }
    const u32 scale = scale_index_key(x, p.format, lane);
    if (p.format == INDEX_FP8) {
        u8* to = page + slot * 132;
        *(u32*)(to + 4 * lane) = (e4m3x2_of(x[0], x[1]) & 0xffff) | e4m3x2_of(x[2], x[3]) << 16;
        if (lane == 0) *(float*)(to + INDEX_DIM) = scale_of_ue8m0(scale);
    } else {
        u8* to = page + slot * 68;
        *(u16*)(to + 2 * lane) = (u16)(e2m1_of(x[0]) | e2m1_of(x[1]) << 4 | e2m1_of(x[2]) << 8 | e2m1_of(x[3]) << 12);
        if (lane % 8 == 0) to[64 + lane / 8] = (u8)scale;
    }
}

// Grid: tokens that complete an entry, compressors.
extern "C" __global__ void __launch_bounds__(THREADS) compress(const __grid_constant__ CompressArgs a) {
    begin_after_launch_before();
    __shared__ __align__(16) float most[4 * THREADS], sum[4 * THREADS], value[4 * THREADS], entry[HEAD_DIM];   // [teams, width]
    __shared__ float parts[THREADS / 32];
    const Compressor& c = a.jobs[blockIdx.y];
    const int tid = threadIdx.x, token = a.completing[blockIdx.x], row = a.step.row_of[token];
    const int index = a.step.positions[token] / c.ratio, first = index * c.ratio;
    const int of_team = c.width / 4, teams = THREADS / of_team;
    const Positions positions = positions_of(a, c, token, row, first);
    Pooled pooled;
    for (int d = 0; d < 4; d++) {
        pooled.most[d] = -3.402823466e38f;                       // not infinity, which less itself is no number
        pooled.sum[d] = pooled.value[d] = 0.f;
    }
    for (int at = tid / of_team; at < positions.count; at += teams * BATCH)
        pool_batch(c, positions, at, teams, tid % of_team * 4, pooled);
    for (int d = 0; d < 4; d++) {
        most[4 * tid + d] = pooled.most[d];
        sum[4 * tid + d] = pooled.sum[d];
        value[4 * tid + d] = pooled.value[d];
    }
    u8* page = entry_page(c.pages, a.step, c.pool, row, index);  // on its way while others arrive
    const float gain = tid < c.width ? c.norm[tid] : 0.f;
    __syncthreads();

    float own = 0.f;
    if (tid < c.width) {
        float largest = most[tid], weights = 0.f;
        for (int team = 1; team < teams; team++) largest = fmaxf(largest, most[team * c.width + tid]);
        for (int team = 0; team < teams; team++) {
            const float growth = expf(most[team * c.width + tid] - largest);
            weights = fmaf(growth, sum[team * c.width + tid], weights);
            own = fmaf(growth, value[team * c.width + tid], own);
        }
        own /= weights;
    }
    const float inverse = 1.f / sqrtf(block_sum<THREADS>(own * own, parts) / c.width + a.rms_eps);
    if (tid < c.width) entry[tid] = own * inverse * gain;
    __syncthreads();

    if (tid >= of_team) return;
    float x[4];
    load_four(x, entry + 4 * tid);
    const int pair = 2 * (tid - (of_team - ROPE_PAIRS / 2));     // the first of two
    if (pair >= 0)
        for (int i = 0; i < 2; i++) {
            const float angle = __fmul_rn((float)first, a.step.frequencies[32 + pair + i]);
            rotate_pair(x, i, cosf(angle), sinf(angle), 1.f);
        }
    if (c.is_index) store_key(c.pages, page, index % c.pages.slots, tid, x);
    else store_latent(c.pages, page, index % c.pages.slots, tid, x);
}

// Grid: tokens, compressors. What later steps may need of this one: the last `ring_rows` tokens of each row.
extern "C" __global__ void __launch_bounds__(KEEP_THREADS) keep_rows(const __grid_constant__ CompressArgs a) {
    begin_after_launch_before();
    const Compressor& c = a.jobs[blockIdx.y];
    const int token = blockIdx.x, row = a.step.row_of[token], position = a.step.positions[token];
    if (token + c.ring_rows < a.step.firsts[row + 1]) return;
    float* ring = c.rings + a.step.rows_pages[row] * c.page_floats + (size_t)(position % c.ring_rows) * 2 * c.channels;
    for (int d = threadIdx.x; d < c.channels; d += KEEP_THREADS) {
        ring[d] = c.k[(size_t)token * c.channels + d];
        ring[c.channels + d] = c.s[(size_t)token * c.channels + d] + c.ape[position % c.ratio * c.channels + d];
    }
}
