//! Which roundings a run applies. The same names on every backend and on the command line.

use std::fmt;
use std::str::FromStr;

macro_rules! modes {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $text),+ })
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok($name::$variant),)+
                    other => Err(format!("`{other}` is not one of: {}", [$($text),+].join(", "))),
                }
            }
        }
    };
}

modes! {
    /// How latents (window and compressed entries) are cached.
    KvFormat {
        F32 = "f32",
        /// 584 bytes an entry: 448 E4M3 with a power-of-two scale per 64, then 64 BF16 (the publisher trained with it).
        Fp8 = "fp8",
    }
}

modes! {
    /// How indexer keys are cached, and their queries rounded.
    IndexKeyFormat {
        F32 = "f32",
        Bf16 = "bf16",
        /// After a Hadamard transform, one power-of-two scale per 128.
        Fp8 = "fp8",
        /// After a Hadamard transform, E2M1 with a scale per 32 (the publisher trained with it).
        Fp4 = "fp4",
    }
}

modes! {
    /// Rounding of activations before FP8 and FP4 matrices.
    Activations {
        Exact = "none",
        /// Blocks of 128, power-of-two scale: the publisher's dynamic activation scheme.
        E4m3 = "e4m3",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numerics {
    pub kv: KvFormat,
    pub index_keys: IndexKeyFormat,
    pub act: Activations,
}

impl Numerics {
    /// No rounding at all: what the fixtures without `kvq` were made with.
    pub const EXACT: Numerics =
        Numerics { kv: KvFormat::F32, index_keys: IndexKeyFormat::F32, act: Activations::Exact };
}

impl Default for Numerics {
    fn default() -> Self {
        Numerics { kv: KvFormat::Fp8, index_keys: IndexKeyFormat::Fp8, act: Activations::Exact }
    }
}
