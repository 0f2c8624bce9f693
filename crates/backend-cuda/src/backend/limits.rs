//! What kernels have no room for, seen before anything is taken or loaded.

use super::kernels::HIDDEN_MAX;
use overshot_model::Spec;

/// As `kernels/matmul/sort.cu` and `kernels/route/v3_blocks.cu` have it.
const EXPERTS_MAX: usize = 1024;

/// A model of more than the kernels are made for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error(
        "the model has {0} routed experts a layer where the GPU's kernels take {EXPERTS_MAX}: use --backend cpu"
    )]
    Experts(usize),
    #[error(
        "the model's hidden_size is {0} where the GPU's kernels take multiples of 4 up to {HIDDEN_MAX}: use --backend cpu"
    )]
    Hidden(usize),
}

/// # Errors
/// The first thing of the model that does not fit.
pub fn check(spec: &Spec) -> Result<(), Unsupported> {
    match (spec.experts, spec.hidden_size) {
        (experts, _) if experts > EXPERTS_MAX => Err(Unsupported::Experts(experts)),
        (_, hidden) if hidden > HIDDEN_MAX || !hidden.is_multiple_of(4) => Err(Unsupported::Hidden(hidden)),
        _ => Ok(()),
    }
}
