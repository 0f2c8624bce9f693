//! What kernels have no room for, seen before anything is taken or loaded.

use overshot_model::Spec;

/// As `kernels/matmul/sort.cu` and `kernels/route/v2_warps.cu` have it.
const EXPERTS_MAX: usize = 1024;

/// A model of more than the kernels are made for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model has {given} {what} a layer where the GPU's kernels take {most}: use --backend cpu")]
pub struct Unsupported {
    what: &'static str,
    given: usize,
    most: usize,
}

/// # Errors
/// The first thing of the model that is too large.
pub fn check(spec: &Spec) -> Result<(), Unsupported> {
    match spec.experts {
        given if given > EXPERTS_MAX => Err(Unsupported { what: "routed experts", given, most: EXPERTS_MAX }),
        _ => Ok(()),
    }
}
