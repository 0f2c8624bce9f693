//! Scratch memory that outlives a step, so that a step of the same size allocates nothing.

/// Hands out float buffers and takes them back. What a taken buffer holds is left over from its last use.
#[derive(Default)]
pub struct Buffers {
    free: Vec<Vec<f32>>,
}

impl Buffers {
    pub fn take(&mut self, len: usize) -> Vec<f32> {
        // The smallest that fits, else the largest, to be grown.
        let fits = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, b)| b.capacity() >= len)
            .min_by_key(|(_, b)| b.capacity());
        let best =
            fits.or_else(|| self.free.iter().enumerate().max_by_key(|(_, b)| b.capacity())).map(|(i, _)| i);
        let mut buffer = best.map(|i| self.free.swap_remove(i)).unwrap_or_default();
        buffer.resize(len, 0.0);
        buffer
    }

    pub fn take_zeroed(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.take(len);
        buffer.fill(0.0);
        buffer
    }

    pub fn give(&mut self, buffers: impl IntoIterator<Item = Vec<f32>>) {
        self.free.extend(buffers);
    }
}
