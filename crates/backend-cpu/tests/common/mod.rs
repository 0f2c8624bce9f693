//! The CPU backend as what the suite of `overshot-conformance` tests, and a bench over it for what only it can show.
#![allow(dead_code)]

use overshot_backend::Numerics;
use overshot_backend_cpu::{CpuBackend, CpuOptions, Isa};
use overshot_conformance::{Bench, Extent, Setup, Subject};
use overshot_model::Model;
use std::sync::Arc;

/// With the kernels of one instruction set. A variation chooses the number of threads.
#[derive(Clone, Copy)]
pub struct Cpu {
    pub isa: Isa,
}

impl Cpu {
    pub fn fast() -> Self {
        Cpu { isa: Isa::detect() }
    }

    /// One of each: what does not depend on threads may depend on kernels.
    pub fn all() -> [Self; 2] {
        [Self::fast(), Cpu { isa: Isa::Scalar }]
    }
}

impl Subject for Cpu {
    type Backend = CpuBackend;

    fn start(&self, model: &Arc<Model>, setup: Setup) -> CpuBackend {
        let Setup { numerics, capacity, tp, variation } = setup;
        let threads = match (tp, variation) {
            (1, 0) => None,
            (1, _) => Some(1 + variation as usize % 3),
            _ => Some(tp),
        };
        CpuBackend::new(
            model.clone(),
            CpuOptions { numerics, capacity, tp, threads, isa: self.isa, rehearsal: None },
        )
        .unwrap()
    }

    fn extent(&self) -> Extent {
        Extent::Whole
    }
}

/// The CPU backend at its fastest, with its accounting.
pub fn bench(model: &Arc<Model>, numerics: Numerics, tokens: usize) -> Bench<CpuBackend> {
    Bench::start(&Cpu::fast(), model, Setup::new(numerics, 1, tokens))
}
