//! Decode attention in a step: where every row has few tokens, each is a row of the kernels of `crate::decode`. Which of them and
//! how it deals out work is chosen for every kind of layer from the lengths of its lists, once a step; lists and schedules are
//! made then, too, as all layers of a kind see equally many entries.
//!
//! Queries and answers are bf16, which attention of prompts does not round, and sums depend on the rest of the step: nothing for
//! [`Company::Invariant`]. Not here: float32 entries, which the kernels do not read.
#![allow(unsafe_code)]

use super::arguments as args;
use super::kernels::AroundDecode;
use super::rank::RankError;
use super::{Company, CudaOptions};
use crate::decode::{Args, DecodeKernel, Pool, RUN_BYTES, Schedule, ScheduleArgs, Variant, WORKERS_MAX};
use crate::gpu::{Buffer, DeviceAddress, Gpu, GpuError, Grid};
use overshot_backend::{KvFormat, Shard};
use overshot_gpu_model::{Deal, Lists, Load, Pin, Table, Target, choose};
use overshot_kv::{Pool as PoolName, TOKENS_PER_PAGE};
use overshot_model::{HEAD_DIM, LayerKind, Spec, WINDOW};
use std::sync::Arc;

/// Rows of up to so many tokens: one, and drafts behind it.
const ROW_TOKENS: usize = 8;
/// What one schedule has room for.
const TOKENS_MAX: usize = 8192;
/// What the kernels take.
const HEADS_MAX: usize = 128;
/// Parts of rows that a launch may leave for each place of a head block on the device: two of a worker, and as many again
/// for split rows in more than one wave.
const PARTS_EACH: usize = 4;

/// In the order of lengths and schedules.
const KINDS: [LayerKind; 3] = [LayerKind::Window, LayerKind::Csa, LayerKind::Hca];

/// What there is room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub heads: usize,
    /// Entries that are selected, at most.
    pub top: usize,
    pub tokens_max: usize,
    /// HCA entries of the longest sequence.
    pub entries_max: usize,
    /// Kinds of layers in the model.
    pub has: [bool; 3],
}

/// Kernels and scratch of a rank.
pub struct Decoding {
    kernels: Vec<DecodeKernel>,
    schedule: Schedule,
    around: AroundDecode,
    table: Table,
    target: Target,
    pin: Option<Pin>,
    sizes: Sizes,
    /// `[tokens, WINDOW]`
    window: Buffer<i32>,
    /// Of a CSA layer, `[tokens, top]`.
    selected: Buffer<i32>,
    /// Of all HCA layers, `[tokens, entries_max]`.
    entries: Buffer<i32>,
    /// By kind: `[tokens]` of the window, of selected entries, of HCA entries.
    lengths: [Buffer<i32>; 3],
    runs: [Buffer<u8>; 3],
    /// `[tokens, heads]`: NaN of queries that are no numbers.
    spoilt: Buffer<f32>,
    parts_max: usize,
    /// `[parts_max, heads, 512]` and `[parts_max, heads]`
    partial: Buffer<f32>,
    partial_log: Buffer<f32>,
    arrivals: Buffer<i32>,
}

/// What was chosen for the layers of a kind.
struct Way<'a> {
    kernel: &'a DecodeKernel,
    /// Splits of a row, or workers.
    parts: usize,
}

/// A step whose lists and schedules are made.
pub struct Decode<'a> {
    decoding: &'a Decoding,
    ways: [Option<Way<'a>>; 3],
}

impl Decoding {
    /// `None` where nothing would use it.
    pub fn new(
        gpu: &Arc<dyn Gpu>,
        spec: &Spec,
        shard: &Shard,
        options: CudaOptions,
    ) -> Result<Option<Self>, GpuError> {
        let CudaOptions { numerics, capacity, company, .. } = options;
        let heads = shard.heads.len();
        if company == Company::Invariant || numerics.kv == KvFormat::F32 || heads > HEADS_MAX {
            return Ok(None);
        }
        // Every row of a plan has a page of its own to write.
        let rows_max = capacity.pages(PoolName::Window);
        let context = capacity.longest_set_tokens().min(spec.max_positions);
        let sizes = Sizes {
            heads,
            top: spec.index_topk,
            tokens_max: options.tokens_max.min(rows_max.saturating_mul(ROW_TOKENS)).min(TOKENS_MAX),
            entries_max: context / LayerKind::Hca.ratio(),
            has: KINDS.map(|kind| spec.layers_of(kind).next().is_some()),
        };
        Self::sized(gpu, sizes).map(Some)
    }

    pub(crate) fn sized(gpu: &Arc<dyn Gpu>, sizes: Sizes) -> Result<Self, GpuError> {
        let Sizes { heads, tokens_max, has, .. } = sizes;
        let entries_max = if has[2] { sizes.entries_max } else { 0 };
        let target = gpu.facts()?.target();
        let shipped = Variant::shipped(target.sm);
        let kernels: Vec<DecodeKernel> =
            shipped.iter().map(|variant| DecodeKernel::load(&**gpu, variant)).collect::<Result<_, _>>()?;
        let blocks = shipped.iter().map(|variant| heads.div_ceil(variant.heads_per_block as usize));
        let (least, most) = (blocks.clone().min().unwrap_or(1), blocks.max().unwrap_or(1));
        let parts_max = PARTS_EACH * (target.multiprocessors.get() as usize).div_ceil(least);
        let arrivals = tokens_max.max(WORKERS_MAX as usize) * most;
        let length = || Buffer::new(gpu, tokens_max);
        let runs = || Buffer::new(gpu, WORKERS_MAX as usize * RUN_BYTES);
        Ok(Decoding {
            kernels,
            schedule: Schedule::load(&**gpu)?,
            around: AroundDecode::load(&**gpu)?,
            table: Table::built_in(),
            target,
            pin: None,
            sizes: Sizes { entries_max, ..sizes },
            window: Buffer::new(gpu, tokens_max * WINDOW)?,
            selected: Buffer::new(gpu, tokens_max * if has[1] { sizes.top } else { 0 })?,
            entries: Buffer::new(gpu, tokens_max * entries_max)?,
            lengths: [length()?, length()?, length()?],
            runs: [runs()?, runs()?, runs()?],
            spoilt: Buffer::new(gpu, tokens_max * heads)?,
            parts_max,
            partial: Buffer::new(gpu, parts_max * heads * HEAD_DIM)?,
            partial_log: Buffer::new(gpu, parts_max * heads)?,
            // Launches leave it as they find it.
            arrivals: Buffer::zeroed(gpu, arrivals)?,
        })
    }

    /// Always takes this kernel, one of those that serve the device.
    pub(crate) fn pinned(self, pin: Pin) -> Self {
        Decoding { pin: Some(pin), ..self }
    }

    /// Makes lists and schedules; `None` for a step that is not all short rows.
    pub fn begin(
        &self,
        step: args::Step,
        positions: &[i32],
        longest_row: usize,
    ) -> Result<Option<Decode<'_>>, RankError> {
        if longest_row > ROW_TOKENS || positions.is_empty() || positions.len() > self.sizes.tokens_max {
            return Ok(None);
        }
        let entry_slots = TOKENS_PER_PAGE / LayerKind::Hca.ratio();
        let lists = args::Lists {
            step,
            window: self.window.address(),
            entries: self.entries.address(),
            lengths: [0, 1, 2].map(|list| self.lengths[list].address()),
            entries_stride: self.sizes.entries_max as i32,
            entry_slots: entry_slots as i32,
            ratios: [LayerKind::Csa, LayerKind::Hca].map(|kind| kind.ratio() as i32),
            top: self.sizes.top as i32,
            unused: 0,
        };
        self.around.lists.launch(Grid(positions.len() as u32, 1, 1), &lists)?;
        let mut ways = [None, None, None];
        for (at, way) in ways.iter_mut().enumerate().filter(|(at, _)| self.sizes.has[*at]) {
            *way = Some(self.way(at, positions)?);
        }
        Ok(Some(Decode { decoding: self, ways }))
    }

    fn way(&self, kind: usize, positions: &[i32]) -> Result<Way<'_>, RankError> {
        let window = lists(positions, |seen| seen.min(WINDOW));
        let extra = match KINDS[kind] {
            LayerKind::Window => Lists::even(0),
            LayerKind::Csa => lists(positions, |seen| (seen / LayerKind::Csa.ratio()).min(self.sizes.top)),
            LayerKind::Hca => {
                lists(positions, |seen| (seen / LayerKind::Hca.ratio()).min(self.sizes.entries_max))
            }
        };
        let load = Load::new(positions.len() as u32, self.sizes.heads as u32, [window, extra])?;
        let plan = choose(&self.table, &self.target, &load, self.pin.as_ref())?.plan;
        let named = |kernel: &&DecodeKernel| kernel.variant.name == plan.kernel;
        let kernel = self.kernels.iter().find(named).expect("every kernel that serves the device is loaded");
        let parts = plan.deal.parts() as usize;
        let parts = match plan.deal {
            Deal::Splits(_) => parts.min(self.parts_max / positions.len()),
            Deal::Workers(_) => parts.min(self.parts_max / 2),
        };
        let way = Way { kernel, parts: parts.max(1) };
        if kernel.variant.takes_schedule() {
            self.deal(kind, &way, positions.len(), extra.longest)?;
        }
        Ok(way)
    }

    fn deal(&self, kind: usize, way: &Way, rows: usize, longest: u32) -> Result<(), RankError> {
        let variant = &way.kernel.variant;
        let [row_quarters, part_quarters] = variant.prices;
        let schedule = ScheduleArgs {
            window_length: self.lengths[0].address(),
            extra_length: self.extra_length(kind),
            runs: self.runs[kind].address(),
            window_capacity: WINDOW as i32,
            extra_capacity: longest as i32,
            rows: rows as i32,
            workers: way.parts as i32,
            tile: variant.tile as i32,
            row_quarters,
            part_quarters,
            unused: 0,
        };
        // SAFETY: all addresses are of buffers of this rank, which wait for queued work before they go.
        Ok(unsafe { self.schedule.launch(&schedule) }?)
    }

    /// Null for layers that see the window alone.
    fn extra_length(&self, kind: usize) -> DeviceAddress {
        if KINDS[kind] == LayerKind::Window { DeviceAddress::NULL } else { self.lengths[kind].address() }
    }
}

/// Of tokens at these positions, each of which sees the positions up to its own.
fn lists(positions: &[i32], length: impl Fn(usize) -> usize) -> Lists {
    let lengths = positions.iter().map(|position| length(*position as usize + 1));
    let (sum, longest) = lengths.fold((0, 0), |(sum, most), length| (sum + length, most.max(length)));
    Lists { mean: sum as f64 / positions.len() as f64, longest: longest as u32 }
}

impl Decode<'_> {
    /// As the other versions of attention do: from `attention.q`, which it uses up, to `attention.out`.
    pub fn attend(&self, kind: LayerKind, attention: &args::Attention) -> Result<(), RankError> {
        let Decoding { around, lengths, .. } = self.decoding;
        let at = KINDS.iter().position(|other| *other == kind).expect("there are three kinds of layers");
        let way = self.ways[at].as_ref().expect("the model has layers of this kind");
        // Half as large in bf16, each lies where the other is not needed yet, or any more.
        let (queries, answers) = (attention.out, attention.q);
        around.queries(&self.heads(attention, attention.q, queries))?;
        let window = pool(&attention.window, self.decoding.window.address(), WINDOW, &lengths[0]);
        let stride = i64::from(attention.heads) * HEAD_DIM as i64;
        let args = Args {
            q: queries,
            out: answers,
            sink: attention.sink,
            partial: self.decoding.partial.address(),
            partial_log: self.decoding.partial_log.address(),
            arrivals: self.decoding.arrivals.address(),
            runs: self.decoding.runs[at].address(),
            window,
            extra: self.extra(at, attention)?,
            q_stride: stride,
            out_stride: stride,
            rows: attention.step.tokens,
            heads: attention.heads,
            splits: way.parts as i32,
            scale_log2: attention.scale * std::f32::consts::LOG2_E,
        };
        // SAFETY: as in `deal`; lists name entries of pages that the step's rows have.
        unsafe { way.kernel.launch(&args) }?;
        Ok(around.answers(&self.heads(attention, attention.out, answers))?)
    }

    /// Entries beside the window's, as the kernel finds them.
    fn extra(&self, kind: usize, attention: &args::Attention) -> Result<Pool, RankError> {
        let Decoding { around, lengths, sizes, .. } = self.decoding;
        let lengths = &lengths[kind];
        let index = match KINDS[kind] {
            LayerKind::Window => return Ok(Pool { page_entries: 1, ..Pool::default() }),
            LayerKind::Hca => {
                let entries = self.decoding.entries.address();
                return Ok(pool(&attention.entries, entries, sizes.entries_max, lengths));
            }
            LayerKind::Csa => self.decoding.selected.address(),
        };
        let selected = args::Selected {
            step: attention.step,
            selected: attention.selected,
            lengths: lengths.address(),
            entries: index,
            stride: attention.selected_stride,
            slots: attention.entries.slots,
        };
        around.selected.launch(Grid(attention.step.tokens as u32, 1, 1), &selected)?;
        Ok(pool(&attention.entries, index, sizes.top, lengths))
    }

    fn heads(
        &self,
        attention: &args::Attention,
        numbers: DeviceAddress,
        rounded: DeviceAddress,
    ) -> args::Heads {
        args::Heads {
            step: attention.step,
            numbers,
            rounded,
            spoilt: self.decoding.spoilt.address(),
            heads: attention.heads,
            compressed: attention.compressed,
            rms_eps: attention.rms_eps,
            unused: 0,
        }
    }
}

/// With lists of up to `longest`, one behind the other.
fn pool(pages: &args::Pages, index: DeviceAddress, longest: usize, lengths: &Buffer<i32>) -> Pool {
    Pool {
        data: pages.data,
        index,
        length: lengths.address(),
        page_bytes: pages.page_bytes,
        page_entries: pages.slots,
        // Lists are made of page tables: there is nothing to mask.
        entries: i32::MAX,
        index_stride: longest as i32,
        capacity: longest as i32,
    }
}
