//! The kernel that a lever of `overshot lab project` changes, and the card it runs on: the flags, and what they give.

use super::cubins;
use super::numbers::{SharedBytes, at_least_one, kilobytes};
use crate::failure::bad_input;
use crate::usage::whole_number;
use clap::Args;
use overshot_gpu_model::device::THREADS_PER_WARP;
use overshot_gpu_model::{Architecture, Card, Launch};
use overshot_lab::project::Kernel;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "The kernel, for levers of CTAs per SM and of resources")]
pub struct KernelFlags {
    /// Registers of a thread
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = at_least_one, group = "told_kernel", requires_all = ["warps", "arch"])]
    regs: Option<NonZeroU32>,

    /// Warps of a CTA [default: of a cubin, its launch bounds]
    #[arg(long, value_name = "W", allow_negative_numbers = true, value_parser = at_least_one, requires = "told_kernel")]
    warps: Option<NonZeroU32>,

    /// Shared memory of a CTA in KB of 1,024 bytes, static and dynamic [default: 0]
    #[arg(long, value_name = "KB", allow_negative_numbers = true, value_parser = kilobytes, requires = "regs")]
    smem: Option<SharedBytes>,

    /// Named barriers of a CTA, 0 to 16 [default: 1, of a cubin what it states]
    #[arg(long, value_name = "B", allow_negative_numbers = true, value_parser = whole_number::<u32>, requires = "told_kernel")]
    barriers: Option<u32>,

    /// Architecture, such as sm_120 or 9.0 [default: of a cubin, its own]
    #[arg(long, value_name = "SM", requires = "told_kernel")]
    arch: Option<String>,

    /// The kernel's cubin instead
    #[arg(long, value_name = "FILE", group = "told_kernel", conflicts_with_all = ["regs", "smem"])]
    cubin: Option<PathBuf>,

    /// Of the cubin's kernels the one with TEXT in its name
    #[arg(long, value_name = "TEXT", requires = "cubin")]
    kernel: Option<String>,

    /// Dynamic shared memory, which a cubin does not state [default: 0]
    #[arg(long, value_name = "KB", allow_negative_numbers = true, value_parser = kilobytes, requires = "cubin")]
    dynamic_smem: Option<SharedBytes>,

    /// The card by its name, such as "RTX PRO 6000" or H200
    #[arg(long, value_name = "NAME", conflicts_with = "sms", requires = "ctas_per_request")]
    card: Option<String>,

    /// SMs, for a card that is not known by name
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, requires = "ctas_per_request")]
    sms: Option<NonZeroU32>,

    /// CTAs that the kernel starts for each request
    #[arg(long, value_name = "U", allow_negative_numbers = true, value_parser = at_least_one)]
    pub ctas_per_request: Option<NonZeroU32>,
}

/// SMs of the card, where it is told.
///
/// # Errors
/// A card that is not known by name.
pub fn sms(flags: &KernelFlags) -> anyhow::Result<Option<NonZeroU32>> {
    let card = flags.card.as_deref().map(Card::named).transpose();
    let card = card.map_err(|error| bad_input(format!("--card: {error}")))?;
    Ok(card.and_then(|card| NonZeroU32::new(card.sms)).or(flags.sms))
}

/// # Errors
/// A cubin that cannot be read, or does not say which kernel; an architecture that is not known.
pub fn kernel(flags: &KernelFlags) -> anyhow::Result<Option<Kernel>> {
    let architecture = flags.arch.as_deref().map(str::parse::<Architecture>).transpose();
    let architecture = architecture.map_err(|error| bad_input(format!("--arch: {error}")))?;
    if let Some(path) = &flags.cubin {
        return kernel_of_cubin(flags, path, architecture).map(Some);
    }
    let (Some(registers), Some(warps), Some(architecture)) = (flags.regs, flags.warps, architecture) else {
        return Ok(None);
    };
    let launch = Launch {
        warps_per_cta: warps.get(),
        registers_per_thread: registers.get(),
        shared_bytes_per_cta: flags.smem.map_or(0, |bytes| bytes.0),
        named_barriers_per_cta: flags.barriers.unwrap_or(1),
    };
    Ok(Some(Kernel { launch, architecture }))
}

fn kernel_of_cubin(flags: &KernelFlags, path: &Path, asked: Option<Architecture>) -> anyhow::Result<Kernel> {
    let shown = path.display();
    let mut found = cubins::search(path)?.kernels;
    if let Some(text) = &flags.kernel {
        found.retain(|found| found.kernel.name.contains(text.as_str()));
    }
    let names = || some_names(found.iter().map(|found| found.kernel.name.as_str()));
    let one = match found.as_slice() {
        [one] => one,
        [] => return Err(bad_input(format!("no kernel in {shown} has that text in its name: see --kernel"))),
        _ => {
            return Err(bad_input(format!(
                "{shown} has several such kernels, say which with --kernel: {}",
                names()
            )));
        }
    };
    let bounds = one.kernel.max_threads.map(|threads| threads.div_ceil(THREADS_PER_WARP));
    let dynamic = flags.dynamic_smem.map(|bytes| bytes.0).or(one.triton.map(|launch| launch.shared));
    let own = || Architecture::of_sm(one.sm).map_err(|error| bad_input(format!("{shown}: {error}")));
    Ok(Kernel {
        launch: Launch {
            warps_per_cta: flags
                .warps
                .map(NonZeroU32::get)
                .or(bounds)
                .or(one.triton.map(|launch| launch.num_warps))
                .ok_or_else(|| bad_input(format!("{shown}: it states no launch bounds: give --warps")))?,
            registers_per_thread: one.kernel.registers_per_thread,
            shared_bytes_per_cta: one.kernel.static_shared_bytes.saturating_add(dynamic.unwrap_or(0)),
            named_barriers_per_cta: flags.barriers.unwrap_or(one.kernel.named_barriers),
        },
        architecture: asked.map_or_else(own, Ok)?,
    })
}

/// No more than a reader looks through: a library has thousands of kernels.
fn some_names<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN_MAX: usize = 8;
    let more = names.len().saturating_sub(SHOWN_MAX);
    let shown = names.take(SHOWN_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}
