// Kernels that use registers, local and shared memory and barriers in ways that a reader of cubins could get wrong. They compute
// nothing of use. `../assembler.rs` compiles them, with those of crates/gpu-model/tests/data/resources.cu, and compares.

struct Wide {
  float values[900];
};

__constant__ float table[512];

// Nothing at all.
extern "C" __global__ void empty() {}

extern "C" __global__ void copy(const float4* in, float4* out) { out[threadIdx.x] = in[threadIdx.x]; }

extern "C" __global__ void double_precision(const double* in, double* out, int n) {
  double sum = 0;
  for (int i = 0; i < n; i++) sum += sqrt(in[i]) / (in[i] + 1.0);
  out[threadIdx.x] = sum;
}

extern "C" __global__ void wide_parameters(const Wide wide, float* out) { out[threadIdx.x] = wide.values[blockIdx.x]; }

// Indexed by data, so the parameter is copied to the stack or read from its bank; either way the tools must agree.
extern "C" __global__ void parameter_by_index(const Wide wide, const int* index, float* out) {
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < 900; i++) sum += wide.values[index[i] % 900];
  out[threadIdx.x] = sum;
}

extern "C" __global__ void constant_memory(const int* index, float* out) { out[threadIdx.x] = table[index[threadIdx.x] & 511]; }

// 48 KiB less one byte, rounded by the compiler.
extern "C" __global__ void odd_shared(const char* in, char* out) {
  __shared__ char bytes[49151];
  bytes[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = bytes[(threadIdx.x * 7) % 49151];
}

extern "C" __global__ void aligned_shared(const float* in, float* out) {
  __shared__ char first[3];
  __shared__ __align__(1024) float tile[257];
  first[threadIdx.x % 3] = threadIdx.x;
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[256 - threadIdx.x] + first[threadIdx.x % 3];
}

extern "C" __global__ void only_dynamic_shared(const float* in, float* out) {
  extern __shared__ float4 only[];
  only[threadIdx.x] = make_float4(in[threadIdx.x], 1, 2, 3);
  __syncthreads();
  out[threadIdx.x] = only[blockDim.x - 1 - threadIdx.x].x;
}

extern "C" __global__ void __launch_bounds__(256, 4) bounded_blocks(const float* in, float* out, int n) {
  float sums[48];
#pragma unroll
  for (int j = 0; j < 48; j++) sums[j] = in[threadIdx.x + j];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
#pragma unroll
    for (int j = 0; j < 48; j++) sums[j] = sums[j] * sums[(j + 1) % 48] + in[i];
  }
#pragma unroll
  for (int j = 0; j < 48; j++) out[threadIdx.x + 256 * j] = sums[j];
}

// More values than a thread can have registers: the ceiling of 255 and spills.
extern "C" __global__ void __launch_bounds__(128) too_many_values(const float* in, float* out, int n) {
  float sums[300];
#pragma unroll
  for (int j = 0; j < 300; j++) sums[j] = in[threadIdx.x + j];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
#pragma unroll
    for (int j = 0; j < 300; j++) sums[j] = sums[j] * sums[(j + 7) % 300] + in[i];
  }
#pragma unroll
  for (int j = 0; j < 300; j++) out[threadIdx.x + 128 * j] = sums[j];
}

// A stack that the source asked for, and spills on top of it.
extern "C" __global__ void __maxnreg__(32) stack_and_spills(const int* index, const float* in, float* out, int n) {
  float histogram[64];
  float ring[40];
#pragma unroll 1
  for (int i = 0; i < 64; i++) histogram[i] = 0;
#pragma unroll
  for (int j = 0; j < 40; j++) ring[j] = in[threadIdx.x + j];
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    histogram[index[i] & 63] += 1.0f;
    const float first = ring[0];
#pragma unroll
    for (int j = 0; j < 39; j++) ring[j] = ring[j] * ring[j + 1];
    ring[39] *= first;
  }
#pragma unroll
  for (int j = 0; j < 40; j++) out[threadIdx.x + j] = ring[j] + histogram[index[j] & 63];
}

// A call that is not inlined: the kernel's registers are those of whoever needs most.
__device__ __noinline__ float polynomial(const float* coefficients, float x, int n) {
  float local[16];
#pragma unroll 1
  for (int i = 0; i < 16; i++) local[i] = coefficients[i] * x;
  float sum = 0;
#pragma unroll 1
  for (int i = 0; i < n; i++) sum = sum * x + local[(i * 5) & 15];
  return sum;
}

extern "C" __global__ void calls_a_function(const float* in, float* out, int n) {
  out[threadIdx.x] = polynomial(in, in[threadIdx.x], n) + polynomial(in, in[n], 3);
}

extern "C" __global__ void calls_it_too(const float* in, float* out, int n) { out[n] = polynomial(in + 1, in[n], n); }

// Mangled names.
template <int width>
__global__ void scaled(const float* in, float* out) {
  __shared__ float tile[width * 32];
  tile[threadIdx.x] = in[threadIdx.x] * width;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}
template __global__ void scaled<4>(const float*, float*);
template __global__ void scaled<32>(const float*, float*);

extern "C" __global__ void atomics(int* counts, const int* index) {
  __shared__ int local[64];
  if (threadIdx.x < 64) local[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&local[index[threadIdx.x] & 63], 1);
  __syncthreads();
  if (threadIdx.x < 64) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}

extern "C" __global__ void shuffles(const float* in, float* out) {
  float sum = in[threadIdx.x];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  out[threadIdx.x] = sum;
}

extern "C" __global__ void tensor_cores(const unsigned* a, const unsigned* b, float* out, int n) {
  float c[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (int i = 0; i < n; i++) {
    const unsigned* x = a + 4 * (threadIdx.x + 32 * i);
    const unsigned* y = b + 2 * (threadIdx.x + 32 * i);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  }
  for (int j = 0; j < 4; j++) out[4 * threadIdx.x + j] = c[j];
}

extern "C" __global__ void asynchronous_copies(const float4* in, float* out, int n) {
  extern __shared__ float4 ring[];
  const unsigned place = (unsigned)__cvta_generic_to_shared(&ring[threadIdx.x]);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(place), "l"(in + threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  out[threadIdx.x] = ring[n].x;
}

// Producers arrive, consumers wait: the highest number counts.
extern "C" __global__ void __launch_bounds__(128) arrive_and_wait(float* out) {
  if (threadIdx.x < 64) {
    out[threadIdx.x] = 1;
    asm volatile("bar.arrive 9, 128;" ::: "memory");
  } else {
    asm volatile("bar.sync 9, 128;" ::: "memory");
    out[threadIdx.x] = out[threadIdx.x - 64];
  }
}

extern "C" __global__ void __launch_bounds__(64) last_barrier(float* out) {
  asm volatile("bar.sync 15, 64;" ::: "memory");
  out[threadIdx.x] = 1;
}

extern "C" __global__ void counting_barrier(const int* in, int* out) {
  out[threadIdx.x] = __syncthreads_count(in[threadIdx.x] > 0) + __syncthreads_or(in[threadIdx.x] > 7);
}
