// What the memory gives: every 16 bytes of a buffer read once, nothing written. The other kernels' rates are stated
// as shares of this one's.
struct Read {
    const uint4* from;
    unsigned long long count;
    unsigned* never;
};

extern "C" __global__ void __launch_bounds__(512) read_all(const Read a) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned folded = 0;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * stride < a.count; i += 8 * stride) {
        uint4 v[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(a.from + i + j * stride);
        #pragma unroll
        for (int j = 0; j < 8; j++) folded ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < a.count; i += stride) folded ^= a.from[i].x;
    if (folded == 0x9e3779b9u) *a.never = folded;
}
