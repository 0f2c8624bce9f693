//! The families of kernels that a step's time is told by: what profiles show, and what each must move at least (`traffic.rs`).

use std::fmt;

/// Whether a plan's time is told by family. That costs an event at every change of family, and nothing where it is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timing {
    #[default]
    Off,
    ByFamily,
}

/// In the order of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Page operations, and what a step is told.
    Copies,
    /// Which entries each row sees, and how attention deals them out.
    Schedule,
    Embed,
    /// Mixing of the residual streams, with the norms around layers.
    Streams,
    /// wq_a, wkv, and what compressors and the indexer read of the layer's input.
    Inputs,
    /// Norms and rotation of latents, and their place in the window.
    Latents,
    /// Entries and index keys that complete, and the rows of those that do not.
    Compress,
    /// wq_b of attention and of the indexer.
    Queries,
    IndexScores,
    IndexSelect,
    WindowAttention,
    CsaAttention,
    HcaAttention,
    /// wo_a and wo_b.
    Outputs,
    /// The router's matrix.
    Gate,
    Route,
    /// w1 and w3, of routed and shared experts, and the sorting of tokens before them.
    ExpertsUp,
    /// w2 of all experts, and their sum.
    ExpertsDown,
    Head,
    Sample,
    /// Sums over ranks, but for what a rank waits in them.
    Reduce,
    /// For peers, in sums: until they have delivered.
    Wait,
}

impl Family {
    pub const ALL: [Family; 22] = [
        Family::Copies,
        Family::Schedule,
        Family::Embed,
        Family::Streams,
        Family::Inputs,
        Family::Latents,
        Family::Compress,
        Family::Queries,
        Family::IndexScores,
        Family::IndexSelect,
        Family::WindowAttention,
        Family::CsaAttention,
        Family::HcaAttention,
        Family::Outputs,
        Family::Gate,
        Family::Route,
        Family::ExpertsUp,
        Family::ExpertsDown,
        Family::Head,
        Family::Sample,
        Family::Reduce,
        Family::Wait,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Family::Copies => "copies",
            Family::Schedule => "schedule",
            Family::Embed => "embed",
            Family::Streams => "streams",
            Family::Inputs => "inputs",
            Family::Latents => "latents",
            Family::Compress => "compress",
            Family::Queries => "queries",
            Family::IndexScores => "index scores",
            Family::IndexSelect => "index select",
            Family::WindowAttention => "attention, window",
            Family::CsaAttention => "attention, CSA",
            Family::HcaAttention => "attention, HCA",
            Family::Outputs => "outputs",
            Family::Gate => "gate",
            Family::Route => "route",
            Family::ExpertsUp => "experts up",
            Family::ExpertsDown => "experts down",
            Family::Head => "head",
            Family::Sample => "sample",
            Family::Reduce => "reduce",
            Family::Wait => "wait",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
