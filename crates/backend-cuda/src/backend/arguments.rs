//! What kernels take, field by field as their files declare it: change both. The emulator compares sizes at every launch.

use crate::gpu::DeviceAddress;
pub use crate::matmul::{Expert, Matrix};

/// `kernels/common/step.cuh`, as the next two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Step {
    pub ids: DeviceAddress,
    pub positions: DeviceAddress,
    pub row_of: DeviceAddress,
    pub starts: DeviceAddress,
    pub firsts: DeviceAddress,
    pub window_pages: DeviceAddress,
    pub rows_pages: DeviceAddress,
    pub tables: [DeviceAddress; 3],
    pub pages: DeviceAddress,
    pub completing: [DeviceAddress; 2],
    pub rotations: DeviceAddress,
    pub frequencies: DeviceAddress,
    pub tokens: i32,
    pub rows: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pages {
    pub data: DeviceAddress,
    pub page_bytes: i64,
    pub slots: i32,
    pub format: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(i32)]
pub enum GrowingPool {
    #[default]
    Csa,
    Hca,
    IndexKeys,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Embed {
    pub step: Step,
    pub embed: Matrix,
    pub embedded: DeviceAddress,
    pub rotations: DeviceAddress,
    pub first_id: i32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Streams {
    pub streams: DeviceAddress,
    pub embedded: DeviceAddress,
    pub y: DeviceAddress,
    pub also: DeviceAddress,
    pub mixing: DeviceAddress,
    pub mix: DeviceAddress,
    pub base: DeviceAddress,
    pub scale: DeviceAddress,
    pub gain: DeviceAddress,
    pub x: DeviceAddress,
    pub partial: DeviceAddress,
    pub hidden: i32,
    pub iterations: i32,
    pub rms_eps: f32,
    pub hc_eps: f32,
    pub tokens: i32,
    pub slices: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Head {
    pub streams: DeviceAddress,
    pub wanted: DeviceAddress,
    pub mix: DeviceAddress,
    pub base: DeviceAddress,
    pub scale: DeviceAddress,
    pub gain: DeviceAddress,
    pub out: DeviceAddress,
    pub hidden: i32,
    pub rms_eps: f32,
    pub hc_eps: f32,
    pub unused: i32,
}

pub const JOBS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Job {
    pub matrix: Matrix,
    pub input: DeviceAddress,
    pub out: DeviceAddress,
    pub in_stride: i64,
    pub out_stride: i64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Dense {
    pub jobs: [Job; JOBS_MAX],
    pub count: i32,
    pub tokens: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Round {
    pub input: DeviceAddress,
    pub out: DeviceAddress,
    pub rows: i32,
    pub cols: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Experts {
    pub experts: DeviceAddress,
    pub ids: DeviceAddress,
    pub weights: DeviceAddress,
    pub x: DeviceAddress,
    pub x_shared: DeviceAddress,
    pub inner: DeviceAddress,
    pub inner_routed: DeviceAddress,
    pub inner_shared: DeviceAddress,
    pub y: DeviceAddress,
    pub y_shared: DeviceAddress,
    pub tokens: i32,
    pub per_token: i32,
    pub hidden: i32,
    pub width: i32,
    pub first_expert: i32,
    pub count: i32,
    pub limit: f32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Route {
    pub step: Step,
    pub scores: DeviceAddress,
    pub table: DeviceAddress,
    pub bias: DeviceAddress,
    pub ids: DeviceAddress,
    pub weights: DeviceAddress,
    pub experts: i32,
    pub per_token: i32,
    pub factor: f32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Compressor {
    pub k: DeviceAddress,
    pub s: DeviceAddress,
    pub ape: DeviceAddress,
    pub norm: DeviceAddress,
    pub rings: DeviceAddress,
    pub page_floats: i64,
    pub pages: Pages,
    pub pool: i32,
    pub width: i32,
    pub channels: i32,
    pub ratio: i32,
    pub ring_rows: i32,
    pub is_index: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Compress {
    pub step: Step,
    pub jobs: [Compressor; 2],
    pub completing: DeviceAddress,
    pub rms_eps: f32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Index {
    pub step: Step,
    pub q: DeviceAddress,
    pub weights: DeviceAddress,
    pub scores: DeviceAddress,
    pub selected: DeviceAddress,
    pub counts: DeviceAddress,
    pub keys: Pages,
    pub heads: i32,
    pub top: i32,
    pub score_stride: i32,
    pub first: i32,
    pub end: i32,
    pub scale: f32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Latents {
    pub step: Step,
    pub qr: DeviceAddress,
    pub q_norm: DeviceAddress,
    pub latents: DeviceAddress,
    pub kv_norm: DeviceAddress,
    pub packed: DeviceAddress,
    pub window: Pages,
    pub q_lora: i32,
    pub compressed: i32,
    pub format: i32,
    pub rms_eps: f32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Window {
    pub step: Step,
    pub latents: DeviceAddress,
    pub packed: DeviceAddress,
    pub window: Pages,
    pub long_rows: i32,
    pub unused: i32,
}

/// `Entries` of `kernels/attention/attention.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(i32)]
pub enum Entries {
    #[default]
    None,
    All,
    Selected,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Attention {
    pub step: Step,
    pub q: DeviceAddress,
    pub sink: DeviceAddress,
    pub latents: DeviceAddress,
    pub packed: DeviceAddress,
    pub window: Pages,
    pub entries: Pages,
    pub selected: DeviceAddress,
    pub counts: DeviceAddress,
    pub out: DeviceAddress,
    pub heads: i32,
    pub selected_stride: i32,
    pub kind: i32,
    pub pool: i32,
    pub ratio: i32,
    pub compressed: i32,
    pub rms_eps: f32,
    pub scale: f32,
}

/// `kernels/decode/around.cu`, as the next two.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Lists {
    pub step: Step,
    pub window: DeviceAddress,
    pub entries: DeviceAddress,
    pub lengths: [DeviceAddress; 3],
    pub entries_stride: i32,
    pub entry_slots: i32,
    pub ratios: [i32; 2],
    pub top: i32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Selected {
    pub step: Step,
    pub selected: DeviceAddress,
    pub lengths: DeviceAddress,
    pub entries: DeviceAddress,
    pub stride: i32,
    pub slots: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Heads {
    pub step: Step,
    pub numbers: DeviceAddress,
    pub rounded: DeviceAddress,
    pub spoilt: DeviceAddress,
    pub heads: i32,
    pub compressed: i32,
    pub rms_eps: f32,
    pub unused: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CopyPage {
    pub data: DeviceAddress,
    pub layer_bytes: i64,
    pub page_bytes: i64,
    pub from: i32,
    pub to: i32,
}

/// Most ranks of a group whose devices meet without the host.
pub const REDUCE_RANKS_MAX: usize = 4;

/// `kernels/reduce/v1_one_shot.cu`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Reduce {
    pub x: DeviceAddress,
    pub outboxes: [DeviceAddress; REDUCE_RANKS_MAX],
    pub words: [DeviceAddress; REDUCE_RANKS_MAX],
    pub abandoned: DeviceAddress,
    pub waited: DeviceAddress,
    pub slot: i64,
    pub len: i32,
    pub rank: i32,
    pub ranks: i32,
    pub unused: i32,
}

/// `kernels/reduce/v2_push.cu`
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Push {
    pub x: DeviceAddress,
    pub inboxes: [DeviceAddress; REDUCE_RANKS_MAX],
    pub counts: DeviceAddress,
    pub abandoned: DeviceAddress,
    pub waited: DeviceAddress,
    pub slot: i64,
    pub len: i32,
    pub rank: i32,
    pub ranks: i32,
    pub unused: i32,
}
