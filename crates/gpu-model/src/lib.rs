//! A GPU's limits as arithmetic: what a compiled kernel uses (`cubin`), how many CTAs of it an SM holds and what stands in
//! the way of one more (`occupancy`), how a grid fills a card (`waves`), into how many CTAs to split a request (`splits`)
//! at costs found from measurements (`fit`), and what explains a throughput that falls (`anomaly`). `device` has the tables.
//!
//! For our own decode attention the same arithmetic chooses: `choose` which kernel and how it deals out rows, at costs that a
//! `table` holds for a device and `tune` finds from the self-test's times (`runs`).
//!
//! Nothing here talks to a driver, opens a file or measures: bytes and numbers come in, numbers and names go out, the same
//! on every machine.

pub mod anomaly;
pub mod choose;
pub mod cubin;
pub mod device;
pub mod fit;
mod least_squares;
pub mod occupancy;
pub mod runs;
pub mod splits;
pub mod table;
pub mod tune;
pub mod waves;

pub use anomaly::{Anomaly, AnomalyError, Explanation, Verdict};
pub use choose::{
    Choice as KernelChoice, ChooseError, Costs, Deal, Dealing, KernelShape, Lists, Load, Pin, Plan, Target,
    choose,
};
pub use cubin::{Cubin, CubinError, KernelResources};
pub use device::{Architecture, CARDS, Card, DeviceError};
pub use fit::{Fit, FitError, Measured};
pub use occupancy::{Gate, Launch, LaunchError, Limit, Need, Occupancy, Resource, Step};
pub use runs::{Run, RunError};
pub use splits::{Choice, Comparison, SplitError, SplitLaunch, SplitRule, TileCosts};
pub use table::{Basis, SharedMemory, Table, TableError};
pub use waves::{Cliff, Point, Waves, cliffs};
