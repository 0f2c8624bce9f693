//! The GPU backend on the command line: which devices, whether the model fits them, and what is shown of both while the weights
//! come in. Why a device cannot be used is the backend's to say (`devices.rs` there).

use crate::args::ComputeFlags;
use crate::compute::{Cache, Needs};
use crate::display::loading_line;
use crate::failure::{DoesNotFit, NoGpu, bad_input, note};
use crate::table::{Table, bytes, count};
use anyhow::Context;
use indicatif::ProgressBar;
use overshot_backend::{Backend, ShardError};
use overshot_backend_cuda::backend::{
    Budget, BudgetError, CacheSize, Company, CudaBackend, CudaOptions, Demand, Loading, Obstacle, plan,
};
use overshot_backend_cuda::ceiling;
use overshot_backend_cuda::devices::{self, OpenError};
use overshot_backend_cuda::gpu::{Gpu, GpuFacts};
use overshot_model::Model;
use std::sync::Arc;
use std::time::Instant;

type Gpus = Vec<Arc<dyn Gpu>>;

/// The devices that the flags name, one a rank.
///
/// # Errors
/// [`NoGpu`] where one cannot be used.
pub fn open(flags: &ComputeFlags, ranks: usize) -> anyhow::Result<Gpus> {
    let named = flags.devices.as_ref();
    let ordinals = named.map_or_else(|| (0..ranks).collect(), |devices| devices.0.clone());
    devices::open(&ordinals).map_err(|error| match error {
        OpenError::Unusable(unusable) => {
            let flag =
                named.map_or_else(|| "--backend cuda".into(), |devices| format!("--devices {devices}"));
            anyhow::Error::new(NoGpu(format!("{flag}: {unusable}")))
        }
        OpenError::Gpu(error) => anyhow::Error::new(error).context(CANNOT_START),
    })
}

/// The first devices, one a rank, where nobody asked for a GPU; `None` where the processor computes instead. Why is told, unless
/// there is nothing that looks like a GPU.
///
/// # Errors
/// A device that could be used and fails.
pub fn open_unasked(ranks: usize, waiting: &ProgressBar) -> anyhow::Result<Option<Gpus>> {
    let ordinals: Vec<usize> = (0..ranks).collect();
    match devices::open_unasked(&ordinals) {
        Ok(gpus) => Ok(Some(gpus)),
        Err(OpenError::Unusable(unusable)) => {
            if !unusable.is_bare_machine() {
                waiting.suspend(|| note(&format!("backend cpu: {unusable}")));
            }
            Ok(None)
        }
        Err(OpenError::Gpu(error)) => {
            Err(error).context("the GPU backend cannot start, which --backend cpu does without")
        }
    }
}

const CANNOT_START: &str = "the GPU backend cannot start";

/// Kernels on the host, with little memory, as every byte of it is this machine's.
#[cfg(feature = "gpu-emulator")]
pub fn emulated(ranks: usize) -> anyhow::Result<Gpus> {
    use overshot_backend_cuda::backend::RESERVE_BYTES;
    use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
    const MEMORY_BYTES: usize = RESERVE_BYTES as usize + (512 << 20);
    let gpu = || {
        let gpu = EmulatedGpu::new(Order::Ascending).context(CANNOT_START)?;
        Ok(Arc::new(gpu.with_memory(MEMORY_BYTES)) as Arc<dyn Gpu>)
    };
    (0..ranks).map(|_| gpu()).collect()
}

/// What the memory of the first device of a rehearsal gives, as long as it is empty.
///
/// # Errors
/// A device that fails.
pub fn read_rate(gpus: &Gpus, needs: Needs) -> anyhow::Result<Option<f64>> {
    let gpu = gpus.first().filter(|_| needs.rehearsal.is_some());
    gpu.map(ceiling::read_bytes_per_s).transpose().context(CANNOT_START)
}

/// Plans the memory, prints the plan, loads.
///
/// # Errors
/// A model that does not fit, with the numbers; a device that fails.
pub fn start(
    gpus: Gpus,
    flags: &ComputeFlags,
    model: &Arc<Model>,
    needs: Needs,
    waiting: &ProgressBar,
) -> anyhow::Result<Box<dyn Backend>> {
    let facts = gpus.iter().map(|gpu| gpu.facts()).collect::<Result<Vec<_>, _>>().context(CANNOT_START)?;
    let cache = match needs.cache {
        Cache::Fixed(capacity) => CacheSize::Fixed(capacity),
        Cache::Rest { requests, .. } => CacheSize::Rest { requests },
    };
    let Needs { step_tokens: tokens_max, rehearsal, .. } = needs;
    let numerics = flags.numerics();
    let company = if flags.batch_invariant { Company::Invariant } else { Company::Any };
    let budget = match plan(model, Demand { numerics, cache, tokens_max, company, rehearsal }, &facts) {
        Ok(budget) => budget,
        Err(BudgetError::DoesNotFit { budget, obstacle }) => {
            return Err(anyhow::Error::new(DoesNotFit(does_not_fit(&budget, obstacle, needs))));
        }
        Err(BudgetError::Shard(error @ ShardError::NotDivisible { .. })) => {
            return Err(bad_input(error.to_string()));
        }
        Err(BudgetError::Unsupported(error)) => return Err(bad_input(error.to_string())),
        Err(error) => return Err(error).context(CANNOT_START),
    };
    waiting.suspend(|| budget_lines(&budget, &facts, needs).lines().for_each(note));
    let started = Instant::now();
    let show = |done, all| waiting.set_message(loading_line(done, all, started.elapsed()));
    let mut loading = Loading { on_progress: &show, ..Loading::quietly() };
    loading.threads = flags.threads.map_or(loading.threads, usize::from);
    let capacity = budget.capacity;
    let options = CudaOptions { numerics, capacity, tokens_max, company, rehearsal };
    let backend = CudaBackend::load(model, options, gpus, loading).context(CANNOT_START)?;
    Ok(Box::new(backend))
}

fn does_not_fit(budget: &Budget, obstacle: Obstacle, needs: Needs) -> String {
    let to_lower = match obstacle {
        Obstacle::Weights => None,
        Obstacle::Requests => needs.to_lower.requests,
        Obstacle::Cache => Some(needs.to_lower.cache),
    };
    let advice = match to_lower {
        Some(flag) => format!("lower {flag}"),
        None if needs.rehearsal.is_some() => "raise --rank-of or --tp, or lower --layers".to_owned(),
        None => "share the model between more GPUs with --tp, or use --backend cpu".to_owned(),
    };
    format!(
        "the model does not fit: {} of GPU memory are needed and {} are free (weights {}, {} request(s) {}, a cache of {} tokens {}, \
         workspace {}, reserve {}); {advice}",
        bytes(budget.needed_bytes()),
        bytes(budget.free_bytes),
        bytes(budget.weight_bytes),
        count(budget.requests() as u64),
        bytes(budget.request_bytes),
        count(budget.cache_tokens() as u64),
        bytes(budget.cache_bytes),
        bytes(budget.workspace_bytes),
        bytes(budget.reserve_bytes),
    )
}

fn budget_lines(budget: &Budget, gpus: &[GpuFacts], needs: Needs) -> String {
    let mut table = Table::new(&["part", "bytes", "for"]);
    let mut row = |part: &str, amount: u64, what: String| table.row([part.to_owned(), bytes(amount), what]);
    row("weights", budget.weight_bytes, String::new());
    row("requests", budget.request_bytes, format!("{} at the same time", count(budget.requests() as u64)));
    row("cache", budget.cache_bytes, format!("{} tokens", count(budget.cache_tokens() as u64)));
    row("workspace", budget.workspace_bytes, format!("{} tokens a step", count(needs.step_tokens as u64)));
    row("reserve", budget.reserve_bytes, "the driver and kernels".to_owned());
    row("left", budget.left_bytes(), String::new());
    row("free", budget.free_bytes, "before the start".to_owned());
    let name = gpus.first().map_or("", |gpu| gpu.name.as_str());
    let on = if gpus.len() == 1 { name.to_owned() } else { format!("each of {} GPUs, {name}", gpus.len()) };
    let mut text = format!("GPU memory of {on}\n").into_bytes();
    // Into memory: cannot fail.
    let _ = table.write(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::ToLower;
    use overshot_kv::PoolCapacity;

    const TO_LOWER: ToLower = ToLower { requests: Some("--max-batch"), cache: "--kv-pool-tokens" };

    fn budget(free_bytes: u64) -> Budget {
        Budget {
            free_bytes,
            weight_bytes: 79_800_000_000,
            request_bytes: 900_000_000,
            cache_bytes: 504_000_000,
            workspace_bytes: 700_000_000,
            reserve_bytes: 1_000_000_000,
            capacity: PoolCapacity::shared_by(64, 131_072),
        }
    }

    fn needs() -> Needs {
        let cache = Cache::Fixed(budget(0).capacity);
        Needs { cache, step_tokens: 1024, to_lower: TO_LOWER, rehearsal: None }
    }

    #[test]
    fn what_does_not_fit_is_told_with_numbers_and_the_flag_to_lower() {
        let told = |obstacle| does_not_fit(&budget(82_800_000_000), obstacle, needs());
        assert_eq!(
            told(Obstacle::Cache),
            "the model does not fit: 82.9 GB of GPU memory are needed and 82.8 GB are free (weights 79.8 GB, 64 request(s) 900.0 MB, \
             a cache of 131,072 tokens 504.0 MB, workspace 700.0 MB, reserve 1.0 GB); lower --kv-pool-tokens"
        );
        assert!(told(Obstacle::Requests).ends_with("; lower --max-batch"));
        assert!(told(Obstacle::Weights).contains("--tp"));
    }

    #[test]
    fn the_plan_is_a_table() {
        let gpu = GpuFacts {
            name: "NVIDIA H200".into(),
            sm: 90,
            multiprocessors: 132,
            memory_free_bytes: 0,
            shared_bytes_per_block: 0,
        };
        let lines = budget_lines(&budget(90_000_000_000), &[gpu.clone(), gpu], needs());
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[0], "GPU memory of each of 2 GPUs, NVIDIA H200");
        for (line, parts) in [
            (2, ["weights", "79.8 GB", ""]),
            (3, ["requests", "900.0 MB", "64 at the same time"]),
            (4, ["cache", "504.0 MB", "131,072 tokens"]),
            (7, ["left", "7.1 GB", ""]),
            (8, ["free", "90.0 GB", "before the start"]),
        ] {
            assert!(parts.iter().all(|part| lines[line].contains(part)), "{lines:#?}");
        }
    }
}
