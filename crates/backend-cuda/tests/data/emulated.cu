// Kernels for tests/emulator.rs: some do what they should, some have the fault that their name says.
#include "device.cuh"

struct Args {
    const u32* input;
    u32* out;
    int count, unused;
};

// The sum of the input and the block's number.
extern "C" __global__ void __launch_bounds__(256) sum(const Args a) {
    __shared__ u32 parts[8];
    u32 own = 0;
    for (int i = threadIdx.x; i < a.count; i += blockDim.x) own += a.input[i];
    for (int bit = 16; bit; bit /= 2) own += __shfl_xor_sync(~0u, own, bit);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x) return;
    const u32 block = blockIdx.y * gridDim.x + blockIdx.x;
    u32 total = block;
    for (int i = 0; i < 8; i++) total += parts[i];
    a.out[block] = total;
}

extern "C" __global__ void __launch_bounds__(32) warps(const Args a) {
    const int lane = threadIdx.x;
    const u32 x = a.input[lane];
    a.out[lane] = __shfl_sync(~0u, x, 5);
    a.out[32 + lane] = __shfl_xor_sync(~0u, x, 9);
    a.out[64 + lane] = __shfl_up_sync(~0u, x, 3);
    a.out[96 + lane] = __shfl_down_sync(~0u, x, 2, 8);
    a.out[128 + lane] = __ballot_sync(~0u, x & 1);
    a.out[160 + lane] = __reduce_add_sync(lane < 16 ? 0xffffu : 0xffff0000u, x);
    a.out[192 + lane] = __reduce_max_sync(~0u, x);
    a.out[224 + lane] = __match_any_sync(~0u, x % 4);
}

// out[16 x 8] = a[16 x 16] b[8 x 16]^T, both bf16, one behind the other.
extern "C" __global__ void __launch_bounds__(32) matrices(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 base = shared_address(memory);
    const int lane = threadIdx.x;
    for (int chunk = lane; chunk < 48; chunk += 32) copy_16_bytes(base + chunk * 16, a.input + chunk * 4);
    commit_copies();
    wait_for_groups<0>();
    __syncwarp();
    u32 left[4], right[4];
    load_matrices(left, base + (lane & 15) * 32 + (lane >> 4) * 16);
    load_matrices(right, base + 512 + (lane & 7) * 32 + (lane >> 3 & 1) * 16);
    float c[4] = {};
    mma_bf16(c, left, right[0], right[1]);
    for (int i = 0; i < 4; i++) a.out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = __float_as_uint(c[i]);
}

extern "C" __global__ void __launch_bounds__(256) convert(const Args a) {
    for (int i = threadIdx.x; i < a.count; i += blockDim.x) {
        const float x = __uint_as_float(a.input[i]);
        const u32 e4m3 = e4m3x2_of(x, 0.f) & 0xff;
        a.out[i] = e4m3;
        a.out[a.count + i] = bf16x2_of(x, 0.f) & 0xffff;
        a.out[2 * a.count + i] = __float_as_uint(float_of_e4m3((u8)e4m3));
        a.out[3 * a.count + i] = __float_as_uint(float_of_f16((u16)f16x2_of(x, 0.f)));
    }
}

extern "C" __global__ void __launch_bounds__(256) divergent_barrier(const Args a) {
    if (threadIdx.x == 9) __syncwarp();
    else __syncthreads();
    a.out[threadIdx.x] = 0;
}

extern "C" __global__ void __launch_bounds__(32) missing_lane(const Args a) {
    if (threadIdx.x == 31) return;
    a.out[threadIdx.x] = __shfl_xor_sync(~0u, a.input[threadIdx.x], 1);
}

extern "C" __global__ void __launch_bounds__(32) endless_wait(const Args a) {
    __shared__ __align__(8) u64 barrier;
    if (threadIdx.x == 0) barrier_init(shared_address(&barrier), 33);
    __syncthreads();
    barrier_arrive(shared_address(&barrier));
    barrier_wait(shared_address(&barrier), 0);
    a.out[threadIdx.x] = 0;
}

extern "C" __global__ void __launch_bounds__(32) behind_shared(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    ((u32*)memory)[threadIdx.x] = 0;
    if (threadIdx.x == 0) ((u32*)memory)[33] = a.input[0];
}

extern "C" __global__ void __launch_bounds__(32) behind_global(const Args a) {
    if (threadIdx.x == 7) a.out[256 + 2] = 1;
}

struct Short {
    u64 only;
};
extern "C" __global__ void __launch_bounds__(32) other_arguments(const Short a) { (void)a; }

// Each thread reads what its neighbour wrote, without waiting for it.
extern "C" __global__ void __launch_bounds__(256) missing_barrier(const Args a) {
    __shared__ u32 values[256];
    values[threadIdx.x] = a.input[threadIdx.x];
    a.out[threadIdx.x] = values[(threadIdx.x + 1) % 256];
}

extern "C" __global__ void __launch_bounds__(32) late_copy(const Args a) {
    extern __shared__ __align__(128) u8 memory[];
    const u32 base = shared_address(memory);
    const int lane = threadIdx.x;
    if (lane == 0) copy_16_bytes(base, a.input);
    __syncwarp();
    if (lane < 4) a.out[lane] = load_shared_u32(base + lane * 4);
    __syncwarp();
    wait_for_copies();
    __syncwarp();
    if (lane < 4) a.out[4 + lane] = load_shared_u32(base + lane * 4);
}
