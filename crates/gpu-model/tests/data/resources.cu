// Kernels that each use one resource in a way that a reader of cubins must tell apart. They compute nothing of use.
// README.md beside this file says how they were compiled and what the CUDA tools say of them.

// 4,096 bytes of static shared memory, barrier 0 only.
extern "C" __global__ void __launch_bounds__(128) static_shared(const float* in, float* out) {
  __shared__ float tile[1024];
#pragma unroll 1
  for (int i = threadIdx.x; i < 1024; i += 128) tile[i] = in[i];
  __syncthreads();
  out[threadIdx.x] = tile[1023 - threadIdx.x];
}

// Shared memory whose size only the launch knows, beside 256 static bytes.
extern "C" __global__ void __launch_bounds__(256) dynamic_shared(const float* in, float* out, int n) {
  extern __shared__ float ring[];
  __shared__ float head[64];
  if (threadIdx.x < 64) head[threadIdx.x] = in[threadIdx.x];
#pragma unroll 1
  for (int i = threadIdx.x; i < n; i += 256) ring[i] = in[i];
  __syncthreads();
  out[threadIdx.x] = ring[n - 1 - threadIdx.x] + head[threadIdx.x & 63];
}

// 40 values that depend on each other, under a cap of 32 registers: the compiler must spill.
extern "C" __global__ void __maxnreg__(32) spilling(const float* in, float* out, int n) {
  float ring[40];
#pragma unroll
  for (int j = 0; j < 40; j++) ring[j] = in[threadIdx.x + j];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    const float first = ring[0];
#pragma unroll
    for (int j = 0; j < 39; j++) ring[j] = ring[j] * ring[j + 1];
    ring[39] *= first;
  }
#pragma unroll
  for (int j = 0; j < 40; j++) out[threadIdx.x + j] = ring[j];
}

// An array indexed by data lives in local memory: a stack, and no spill.
extern "C" __global__ void stack_user(const int* index, float* out, int n) {
  float histogram[50];
#pragma unroll 1
  for (int i = 0; i < 50; i++) histogram[i] = 0;
#pragma unroll 1
  for (int i = 0; i < n; i++) histogram[index[i] % 50] += 1.0f;
  out[threadIdx.x] = histogram[index[n] % 50];
}

// Named barriers 0, 1 and 5: the hardware sets aside as many as the highest number and one.
extern "C" __global__ void __launch_bounds__(64) constant_barriers(float* out) {
  asm volatile("bar.sync 0, 64;" ::: "memory");
  out[threadIdx.x] = 1;
  asm volatile("bar.sync 1, 64;" ::: "memory");
  out[threadIdx.x ^ 1] += 1;
  asm volatile("bar.sync 5, 64;" ::: "memory");
  out[threadIdx.x ^ 2] += 1;
}

// A barrier number held in a register could be any: all 16 are set aside.
extern "C" __global__ void __launch_bounds__(64) register_barrier(float* out, int barrier) {
  asm volatile("bar.sync %0, 64;" ::"r"(barrier) : "memory");
  out[threadIdx.x] = 1;
}
