//! The CUDA backend on the emulator, as what the suite of `overshot-conformance` tests.
#![allow(dead_code)]

use overshot_backend_cuda::backend::{CudaBackend, CudaOptions};
use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
use overshot_backend_cuda::gpu::Gpu;
use overshot_conformance::{Extent, Setup, Subject};
use overshot_model::Model;
use std::sync::Arc;

/// Tokens that are computed at a time, unless a variation says otherwise.
pub const TOKENS_MAX: usize = 256;

/// A variation chooses the order of threads and the tokens that are computed at a time.
pub struct Emulated {
    extent: Extent,
}

impl Emulated {
    /// `None`, said loudly, where there is no compiler.
    pub fn find(extent: Extent) -> Option<Self> {
        match EmulatedGpu::new(Order::Ascending) {
            Ok(_) => Some(Emulated { extent }),
            Err(error) => {
                eprintln!("SKIPPED: the model was not run on the emulator ({error})");
                None
            }
        }
    }
}

/// A device of this order for each rank.
pub fn start(model: &Arc<Model>, setup: Setup, order: Order, tokens_max: usize) -> CudaBackend {
    let gpu = || Arc::new(EmulatedGpu::new(order).unwrap()) as Arc<dyn Gpu>;
    let options = CudaOptions { numerics: setup.numerics, capacity: setup.capacity, tokens_max };
    CudaBackend::new(model, options, (0..setup.tp).map(|_| gpu()).collect()).unwrap()
}

impl Subject for Emulated {
    type Backend = CudaBackend;

    fn start(&self, model: &Arc<Model>, setup: Setup) -> CudaBackend {
        let (order, tokens_max) = match setup.variation {
            0 => (Order::Ascending, TOKENS_MAX),
            other => {
                let order = [Order::Descending, Order::Random(other)][other as usize % 2];
                (order, [TOKENS_MAX, 7, 19][other as usize % 3])
            }
        };
        start(model, setup, order, tokens_max)
    }

    fn extent(&self) -> Extent {
        self.extent
    }
}
