// Asks NVIDIA's occupancy header for the CTAs per SM of every launch of a grid, and writes one byte each. ../occupancy.rs
// compiles it where the header is at hand, and walks the same grid in the same order.
#include <stdio.h>
#include <stdlib.h>

#include "cuda_occupancy.h"

int main(int count, char** arguments) {
  if (count != 7) return 2;
  const int sm = atoi(arguments[1]), warps_per_sm = atoi(arguments[2]);
  const size_t shared_per_sm = strtoul(arguments[3], 0, 10), shared_per_cta = strtoul(arguments[4], 0, 10);
  const int register_step = atoi(arguments[5]);
  const size_t shared_step = strtoul(arguments[6], 0, 10);
  const int barriers[4] = {0, 1, 5, 16};

  struct cudaOccDeviceProp device = {0};
  device.computeMajor = sm / 10;
  device.computeMinor = sm % 10;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = warps_per_sm * 32;
  device.warpSize = 32;
  device.regsPerBlock = 65536;
  device.regsPerMultiprocessor = 65536;
  device.sharedMemPerBlock = 48 << 10;
  device.sharedMemPerMultiprocessor = shared_per_sm;
  device.sharedMemPerBlockOptin = shared_per_cta;
  device.reservedSharedMemPerBlock = 1024;
  device.numSms = 1;
  struct cudaOccDeviceState state = {0};
  state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
  struct cudaOccFuncAttributes kernel = {0};
  kernel.maxThreadsPerBlock = 1024;
  kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  kernel.maxDynamicSharedSizeBytes = shared_per_cta;

  for (int warps = 1; warps <= 32; warps++) {
    for (kernel.numRegs = 16; kernel.numRegs <= 255; kernel.numRegs += register_step) {
      for (size_t shared = 0; shared <= shared_per_cta + 512; shared += shared_step) {
        for (int i = 0; i < 4; i++) {
          kernel.numBlockBarriers = barriers[i];
          struct cudaOccResult result;
          if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, 32 * warps, shared)) return 1;
          putchar(result.activeBlocksPerMultiprocessor);
        }
      }
    }
  }
  return 0;
}
