//! Devices under the CUDA backend, as what the suite of `overshot-conformance` tests: the emulator, and a card where there
//! is one.
#![allow(dead_code)]

use overshot_backend_cuda::backend::{Company, CudaBackend, CudaOptions};
use overshot_backend_cuda::emulator::{EmulatedGpu, Order};
use overshot_backend_cuda::gpu::Gpu;
use overshot_backend_cuda::{cuda, devices};
use overshot_conformance::{Extent, Setup, Subject};
use overshot_model::Model;
use std::sync::Arc;

/// Set where a card must be there: what would be skipped then fails.
const CARD_VARIABLE: &str = "OVERSHOT_REQUIRE_CARD";

/// Tokens that are computed at a time, unless a variation says otherwise.
pub const TOKENS_MAX: usize = 256;

/// A variation chooses the tokens that are computed at a time, and on the emulator the order of threads.
pub enum Device {
    Emulator(Extent),
    Card,
}

impl Device {
    /// What there is not is said loudly. Where a card is required, it is all that is tested.
    pub fn all(of_emulator: Extent) -> Vec<Device> {
        let mut all: Vec<Device> = Device::emulator(of_emulator).into_iter().collect();
        match devices::open(&[0]) {
            Ok(_) => all.push(Device::Card),
            Err(error) if card_is_required() => panic!("{error}"),
            Err(error) => eprintln!("SKIPPED: nothing was run on a card ({error})"),
        }
        all
    }

    pub fn emulator(extent: Extent) -> Option<Device> {
        if card_is_required() {
            return None;
        }
        match EmulatedGpu::new(Order::Ascending) {
            Ok(_) => Some(Device::Emulator(extent)),
            Err(error) => {
                eprintln!("SKIPPED: nothing was run on the emulator ({error})");
                None
            }
        }
    }
}

fn card_is_required() -> bool {
    std::env::var_os(CARD_VARIABLE).is_some()
}

/// An emulated device of this order for each rank.
pub fn emulated(setup: Setup, order: Order) -> Vec<Arc<dyn Gpu>> {
    let gpu = || Arc::new(EmulatedGpu::new(order).unwrap()) as Arc<dyn Gpu>;
    (0..setup.tp).map(|_| gpu()).collect()
}

pub fn start_on(
    gpus: Vec<Arc<dyn Gpu>>,
    model: &Arc<Model>,
    setup: Setup,
    tokens_max: usize,
    company: Company,
) -> CudaBackend {
    let Setup { numerics, capacity, .. } = setup;
    let options = CudaOptions { numerics, capacity, tokens_max, company, rehearsal: None };
    CudaBackend::new(model, options, gpus).unwrap()
}

impl Device {
    fn start_in(&self, company: Company, model: &Arc<Model>, setup: Setup) -> CudaBackend {
        let tokens_max = match setup.variation {
            0 => TOKENS_MAX,
            other => [TOKENS_MAX, 7, 19][other as usize % 3],
        };
        let order = match setup.variation {
            0 => Order::Ascending,
            other => [Order::Descending, Order::Random(other)][other as usize % 2],
        };
        let gpus = match self {
            Device::Emulator(_) => emulated(setup, order),
            // A card for each rank, as far as there are; several ranks on one have a queue each.
            Device::Card => {
                let cards = cuda::devices().unwrap().len();
                let ordinals: Vec<usize> = (0..setup.tp).map(|rank| rank % cards).collect();
                devices::open(&ordinals).unwrap()
            }
        };
        start_on(gpus, model, setup, tokens_max, company)
    }
}

/// Bits are the same however rows are computed.
impl Subject for Device {
    type Backend = CudaBackend;

    fn start(&self, model: &Arc<Model>, setup: Setup) -> CudaBackend {
        self.start_in(Company::Invariant, model, setup)
    }

    fn extent(&self) -> Extent {
        match self {
            Device::Emulator(extent) => *extent,
            Device::Card => Extent::Whole,
        }
    }
}

/// As the command line has it: the quicker sums, whose bits depend on the rest of a step.
pub struct InAnyCompany(pub Device);

impl Subject for InAnyCompany {
    type Backend = CudaBackend;

    fn start(&self, model: &Arc<Model>, setup: Setup) -> CudaBackend {
        self.0.start_in(Company::Any, model, setup)
    }

    fn extent(&self) -> Extent {
        self.0.extent()
    }
}
