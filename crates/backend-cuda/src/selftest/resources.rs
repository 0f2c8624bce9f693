//! What our reader of cubins and our formula for occupancy say of a kernel, in the driver's terms: on a real device both must
//! agree with the driver.

use super::run::Bench;
use crate::decode::DecodeKernel;
use crate::gpu::KernelFacts;
use overshot_gpu_model::{Architecture, Cubin, Launch};

pub(super) fn read(bench: &Bench, kernel: &DecodeKernel) -> Result<KernelFacts, Box<dyn std::error::Error>> {
    let cubin = bench.cuda.cubin(&kernel.variant.source())?;
    let cubin = Cubin::read(&cubin)?;
    let found =
        cubin.kernels.iter().find(|found| found.name == "decode").ok_or("the cubin has no such kernel")?;
    let launch = Launch {
        warps_per_cta: kernel.variant.threads / 32,
        registers_per_thread: found.registers_per_thread,
        shared_bytes_per_cta: kernel.variant.shared_bytes + found.static_shared_bytes,
        named_barriers_per_cta: found.named_barriers,
    };
    Ok(KernelFacts {
        registers_per_thread: found.registers_per_thread,
        local_bytes_per_thread: found.stack_bytes,
        static_shared_bytes: found.static_shared_bytes,
        ctas_per_sm: launch.ctas_per_sm(&Architecture::of_sm(bench.target.sm)?)?,
    })
}
