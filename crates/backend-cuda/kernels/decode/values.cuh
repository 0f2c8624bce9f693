// The second half of version 7's arithmetic: weights times values, for the dims of one value warp. Needs the layout of
// shared memory that v7_no_waves.cu declares before it includes this.
#pragma once

// The values of one tile for all heads, 64 dims a warp; `exponent` is that of this warp's dims: the output is in units
// of 2^(exponent - 127 - WEIGHT_BITS).
__device__ __forceinline__ void values(const Block& b, float (&output)[M_TILES][8][4], int& exponent, u32 i) {
    const u32 slot = i % STAGES;
    const int w = b.w, c = b.c;
    const u32 entries = b.base + slot * STAGE_BYTES;
    barrier_wait(b.base + AT_BARRIERS + slot * 8, (i / STAGES) & 1);
    const u32 scales = entries + TILE * PITCH + w;
    const u32 factors = b.base + AT_FACTORS + w * TILE * 2;
    u32 e[HALVES];
    const bool nothing_yet = w < 7 && exponent == 0;          // of this row: the output is zero and stays so
    bool odd = false;
    #pragma unroll
    for (int n = 0; n < HALVES; n++) {
        e[n] = w < 7 ? load_shared_u8(scales + (b.lane + 32 * n) * SCALE_BYTES) : 0;
        odd |= (u32)(exponent - (int)e[n]) > SPREAD && e[n];
    }
    float shrink = 1.f;
    bool slow = false;
    if (__any_sync(~0u, odd)) {
        u32 most = e[0], least = e[0] ? e[0] : 255u;
        #pragma unroll
        for (int n = 1; n < HALVES; n++) {
            most = max(most, e[n]);
            least = min(least, e[n] ? e[n] : 255u);
        }
        const int largest = (int)__reduce_max_sync(~0u, most), smallest = (int)__reduce_min_sync(~0u, least);
        if (largest > exponent) shrink = float_of_ue8m0(max(127 + exponent - largest, 0));
        exponent = max(exponent, largest);
        slow = smallest + SPREAD < exponent;
    }
    if (w < 7) {
        #pragma unroll
        for (int n = 0; n < HALVES; n++) {
            const u32 bits = (e[n] + (WEIGHT_BITS + 15) - exponent) << 10;
            store_shared_u16(factors + ((b.lane >> 1) & 3) * (TILE / 2) + (b.lane >> 3) * 4 + (b.lane & 1) * 2 + n * 16, (u16)(e[n] ? bits : 0));
        }
        __syncwarp();
    }
    barrier_wait(b.base + AT_FULL + (i & 1) * 8, (i >> 1) & 1);
    const u32 weights = b.base + AT_WEIGHTS + (i & 1) * WEIGHT_BYTES + b.r * WEIGHT_PITCH + c * (TILE / 2);
    float growth[M_TILES][2];
    odd = false;
    #pragma unroll
    for (int m = 0; m < M_TILES; m++)
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            growth[m][k] = shrink * load_shared_float(b.base + AT_GROWTH + ((i & 1) * HEADS + m * 16 + b.r + 8 * k) * 4);
            odd |= growth[m][k] != 1.f && !nothing_yet;
        }
    if (__any_sync(~0u, odd)) {
        #pragma unroll
        for (int m = 0; m < M_TILES; m++)
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                output[m][n][0] *= growth[m][0]; output[m][n][1] *= growth[m][0];
                output[m][n][2] *= growth[m][1]; output[m][n][3] *= growth[m][1];
            }
    }
    if (ABLATE & 4) return;
    const u32 columns = entries + b.lane * PITCH;             // transposed: 32 tokens x 16 bytes at a time
    if (w == 7) {
        #pragma unroll
        for (int half = 0; half < HALVES; half++) {
            // A weight is two bf16 numbers here: one alone would round it eight times as coarsely as f16. 16 heads after
            // the other: the weights of all at once would not fit the registers.
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const uint4 p0 = load_shared_16(weights + m * 16 * WEIGHT_PITCH + half * 16), p1 = load_shared_16(weights + (m * 16 + 8) * WEIGHT_PITCH + half * 16);
                const u32 all[2][4] = {{p0.x, p1.x, p0.y, p1.y}, {p0.z, p1.z, p0.w, p1.w}};   // A fragments of 16 tokens each
                u32 p[2][4], rest[2][4];
                #pragma unroll
                for (int s = 0; s < 2; s++)
                    #pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const float low = float_of_f16((u16)all[s][k]), high = float_of_f16((u16)(all[s][k] >> 16));
                        const u32 both = bf16x2_of(low, high);
                        p[s][k] = both;
                        rest[s][k] = bf16x2_of(low - low_bf16(both), high - high_bf16(both));
                    }
                #pragma unroll
                for (int n = 0; n < 8; n++) {
                    u32 v[4];
                    load_matrices_transposed(v, columns + half * 32 * PITCH + NOPE_DIMS + n * 16);
                    mma_bf16(output[m][n], p[0], v[0], v[1]);
                    mma_bf16(output[m][n], p[1], v[2], v[3]);
                    mma_bf16(output[m][n], rest[0], v[0], v[1]);
                    mma_bf16(output[m][n], rest[1], v[2], v[3]);
                }
            }
        }
        __syncwarp();
        return;
    }
    if (!slow) {
        #pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const uint4 f = load_shared_16(factors + c * (TILE / 2) + half * 16);
            u32 p[M_TILES][2][4];
            #pragma unroll
            for (int m = 0; m < M_TILES; m++) {
                const uint4 p0 = load_shared_16(weights + m * 16 * WEIGHT_PITCH + half * 16), p1 = load_shared_16(weights + (m * 16 + 8) * WEIGHT_PITCH + half * 16);
                p[m][0][0] = multiply_f16x2(p0.x, f.x); p[m][0][1] = multiply_f16x2(p1.x, f.x);
                p[m][0][2] = multiply_f16x2(p0.y, f.y); p[m][0][3] = multiply_f16x2(p1.y, f.y);
                p[m][1][0] = multiply_f16x2(p0.z, f.z); p[m][1][1] = multiply_f16x2(p1.z, f.z);
                p[m][1][2] = multiply_f16x2(p0.w, f.w); p[m][1][3] = multiply_f16x2(p1.w, f.w);
            }
            #pragma unroll
            for (int block = 0; block < 4; block++) {         // 16 dims: the even ones and the odd ones are two MMA columns
                u32 v[4];
                load_matrices_transposed(v, columns + half * 32 * PITCH + w * 64 + block * 16);
                #pragma unroll
                for (int s = 0; s < 2; s++) {
                    const u32 x = __byte_perm(v[2 * s], 0, 0x3120), y = __byte_perm(v[2 * s + 1], 0, 0x3120);   // (token, token + 1) of an even dim, then of an odd one
                    u32 even0, even1, odd0, odd1;
                    f16x4_of_e4m3x4(x, even0, odd0);
                    f16x4_of_e4m3x4(y, even1, odd1);
                    #pragma unroll
                    for (int m = 0; m < M_TILES; m++) {
                        mma_f16(output[m][2 * block], p[m][s], even0, even1);
                        mma_f16(output[m][2 * block + 1], p[m][s], odd0, odd1);
                    }
                }
            }
        }
        __syncwarp();                                         // the factors are read
        return;
    }
    #pragma unroll 1
    for (int token = 0; token < TILE; token++) {
        const u32 e = load_shared_u8(scales + token * SCALE_BYTES);
        const u32 at = b.base + AT_WEIGHTS + (i & 1) * WEIGHT_BYTES + b.r * WEIGHT_PITCH + ((token >> 1) & 3) * (TILE / 2) + (token >> 3) * 4 + (token & 1) * 2;
        const float scale = e ? float_of_ue8m0(max(127 + (int)e - exponent, 0)) * (1 << WEIGHT_BITS) : 0.f;
        #pragma unroll
        for (int m = 0; m < M_TILES; m++) {
            const float x = float_of_f16(load_shared_u16(at + m * 16 * WEIGHT_PITCH)) * scale, y = float_of_f16(load_shared_u16(at + (m * 16 + 8) * WEIGHT_PITCH)) * scale;
            #pragma unroll
            for (int block = 0; block < 4; block++) {
                const u32 v = load_shared_u32(entries + token * PITCH + w * 64 + block * 16 + 4 * c);
                #pragma unroll
                for (int d = 0; d < 4; d++) {
                    const float value = float_of_e4m3((u8)(v >> (8 * d)));
                    output[m][2 * block + (d & 1)][d >> 1] += x * value;
                    output[m][2 * block + (d & 1)][2 + (d >> 1)] += y * value;
                }
            }
        }
    }
}
