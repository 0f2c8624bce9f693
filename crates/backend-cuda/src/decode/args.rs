//! The kernel's parameter, field by field as `kernels/decode/args.cuh` declares it: change both.

use crate::gpu::DeviceAddress;

/// One paged pool and the list of its entries that each row attends to.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Pool {
    /// Pages of `page_bytes`: `page_entries` x 576 bytes of data, then `page_entries` x 8 of scales.
    pub data: DeviceAddress,
    /// int32 `[rows, index_stride]`: page x page_entries + slot; anything outside `0..entries` is masked.
    pub index: DeviceAddress,
    /// int32 `[rows]`, or null when every row uses the whole capacity.
    pub length: DeviceAddress,
    pub page_bytes: i64,
    pub page_entries: i32,
    pub entries: i32,
    pub index_stride: i32,
    /// The longest list of any row; 0 for a layer without this pool.
    pub capacity: i32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Args {
    /// bf16 `[rows, heads, 512]`, rows `q_stride` numbers apart.
    pub q: DeviceAddress,
    /// bf16 `[rows, heads, 512]`, rows `out_stride` numbers apart.
    pub out: DeviceAddress,
    /// float32 `[heads]`.
    pub sink: DeviceAddress,
    /// float32 `[rows, splits, heads, 512]`; may be null when `splits` is 1. Version 7: `[workers, 2, heads, 512]`.
    pub partial: DeviceAddress,
    /// float32 `[rows, splits, heads]`; version 7: `[workers, 2, heads]`.
    pub partial_log: DeviceAddress,
    /// int32 `[rows, heads / 16 rounded up]`, zero before the first launch; version 7: workers instead of rows.
    pub arrivals: DeviceAddress,
    /// `[workers]` of [`Run`], as the schedule kernel wrote them; version 7 only.
    pub runs: DeviceAddress,
    pub window: Pool,
    pub extra: Pool,
    pub q_stride: i64,
    pub out_stride: i64,
    pub rows: i32,
    pub heads: i32,
    /// Blocks a row; version 7: workers.
    pub splits: i32,
    /// Softmax scale times log2(e).
    pub scale_log2: f32,
}

/// A worker's share of all rows; only kernels look inside.
pub const RUN_BYTES: usize = 48;

/// What the schedule kernel is given.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ScheduleArgs {
    pub window_length: DeviceAddress,
    pub extra_length: DeviceAddress,
    pub runs: DeviceAddress,
    pub window_capacity: i32,
    pub extra_capacity: i32,
    pub rows: i32,
    pub workers: i32,
    pub tile: i32,
    pub row_quarters: i32,
    pub part_quarters: i32,
    pub unused: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernels_structs() {
        assert_eq!(size_of::<Pool>(), 48);
        assert_eq!(size_of::<Args>(), 7 * 8 + 2 * 48 + 2 * 8 + 4 * 4);
        assert_eq!(size_of::<ScheduleArgs>(), 3 * 8 + 8 * 4);
    }
}
