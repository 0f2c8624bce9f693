//! What an SM of each architecture offers, and how many SMs the cards have that people run this model on.
//!
//! Sources. Warps and shared memory: the table of technical specifications per compute capability in NVIDIA's CUDA Programming
//! Guide; no such device was at hand but the H200. Granules, CTA slots and named barriers: NVIDIA's occupancy header of CUDA 13.0,
//! which is asked beside `occupancy.rs` for all of these; warps and shared memory are told to it, so it confirms neither. Cards: NVIDIA's
//! data sheets, SMs as their cores over 128 where a sheet counts cores only; listings agree on H20, H100 PCIe, H200 and B200, and
//! the H200 was also asked itself.
//! Nothing here asks a driver: an unknown architecture is an error, never a guess.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

pub const THREADS_PER_WARP: u32 = 32;
pub const WARPS_PER_CTA_MAX: u32 = 32;
pub const REGISTERS_PER_SM: u32 = 65_536;
pub const REGISTERS_PER_THREAD_MAX: u32 = 255;
/// A warp lives in one of four partitions of the SM, each with a quarter of the registers.
pub const PARTITIONS: u32 = 4;
/// Registers are handed to a warp in units of 256.
pub const REGISTER_UNIT: u32 = 256;
/// Shared memory is handed to a CTA in units of 128 bytes, after the system took 1 KiB for itself.
pub const SHARED_UNIT_BYTES: u32 = 128;
pub const SHARED_RESERVE_BYTES: u32 = 1024;
pub const NAMED_BARRIERS_PER_CTA_MAX: u32 = 16;

/// An architecture: what differs between SMs. The constants above are the same for all of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Architecture {
    /// 120 for sm_120 (compute capability 12.0).
    pub sm: u32,
    pub warps_per_sm: u32,
    pub ctas_per_sm: u32,
    pub shared_bytes_per_sm: u32,
    /// The most one CTA may ask for, after opting in to more than 48 KiB.
    pub shared_bytes_per_cta: u32,
    /// `None` where the occupancy header counts no barriers (before sm_90).
    pub named_barriers_per_sm: Option<u32>,
}

const fn architecture(
    sm: u32,
    warps_per_sm: u32,
    ctas_per_sm: u32,
    shared_kib: u32,
    named_barriers_per_sm: Option<u32>,
) -> Architecture {
    let shared_bytes_per_sm = shared_kib << 10;
    let shared_bytes_per_cta = shared_bytes_per_sm - SHARED_RESERVE_BYTES;
    Architecture {
        sm,
        warps_per_sm,
        ctas_per_sm,
        shared_bytes_per_sm,
        shared_bytes_per_cta,
        named_barriers_per_sm,
    }
}

/// sm_101 is what toolkits before CUDA 13 call sm_110.
pub const ARCHITECTURES: [Architecture; 11] = [
    architecture(80, 64, 32, 164, None),
    architecture(86, 48, 16, 100, None),
    architecture(87, 48, 16, 164, None),
    architecture(89, 48, 24, 100, None),
    architecture(90, 64, 32, 228, Some(64)),
    architecture(100, 64, 32, 228, Some(64)),
    architecture(101, 48, 24, 228, Some(24)),
    architecture(103, 64, 32, 228, Some(64)),
    architecture(110, 48, 24, 228, Some(24)),
    architecture(120, 48, 24, 100, Some(24)),
    architecture(121, 48, 24, 100, Some(24)),
];

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    #[error("`{given}` is no known GPU architecture: use one of {}", known_architectures())]
    UnknownArchitecture { given: String },
    #[error("`{given}` is no known card: use one of {}, or give --sms", known_cards())]
    UnknownCard { given: String },
    #[error("`{given}` could be {several}: write more of the name")]
    AmbiguousCard { given: String, several: String },
}

impl Architecture {
    /// # Errors
    /// An architecture that has no row in the table.
    pub fn of_sm(sm: u32) -> Result<Self, DeviceError> {
        let found = ARCHITECTURES.into_iter().find(|known| known.sm == sm);
        found.ok_or_else(|| DeviceError::UnknownArchitecture { given: format!("sm_{sm}") })
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.sm)
    }
}

impl FromStr for Architecture {
    type Err = DeviceError;

    /// Reads `sm_120`, `sm_120a`, `sm_100f`, `120` and `12.0`.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let digits = text.trim().strip_prefix("sm_").unwrap_or(text.trim());
        let digits = digits.strip_suffix(['a', 'f']).unwrap_or(digits);
        let number = match digits.split_once('.') {
            Some((major, minor)) if minor.len() == 1 => format!("{major}{minor}"),
            Some(_) => String::new(),
            None => digits.to_owned(),
        };
        let found = number.parse().ok().and_then(|sm: u32| Architecture::of_sm(sm).ok());
        found.ok_or_else(|| DeviceError::UnknownArchitecture { given: text.to_owned() })
    }
}

/// A card as sold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Card {
    pub name: &'static str,
    pub sm: u32,
    pub sms: u32,
    /// Memory bandwidth as the data sheet states it: measured copies reach 80 to 92 % of it.
    pub gb_per_s: f64,
}

const fn card(name: &'static str, sm: u32, sms: u32, gb_per_s: f64) -> Card {
    Card { name, sm, sms, gb_per_s }
}

pub const CARDS: [Card; 14] = [
    card("A100 SXM 80 GB", 80, 108, 2039.0),
    card("RTX 3090", 86, 82, 936.0),
    card("L4", 89, 58, 300.0),
    card("L40S", 89, 142, 864.0),
    card("RTX 4090", 89, 128, 1008.0),
    card("H20", 90, 78, 4000.0),
    card("H100 PCIe", 90, 114, 2000.0),
    card("H100 SXM", 90, 132, 3350.0),
    card("H200", 90, 132, 4800.0),
    card("B200", 100, 148, 8000.0),
    card("RTX 5080", 120, 84, 960.0),
    card("RTX 5090", 120, 170, 1792.0),
    card("RTX PRO 6000", 120, 188, 1792.0),
    card("GB10", 121, 48, 273.0),
];

impl Card {
    /// Finds a card by a part of its name, in any case, spaces and hyphens alike.
    ///
    /// # Errors
    /// No card has the text in its name, or several do and none is called so exactly.
    pub fn named(text: &str) -> Result<Self, DeviceError> {
        let plain = |name: &str| name.to_lowercase().replace(['-', ' ', '_'], "");
        let wanted = plain(text);
        if let Some(exact) = CARDS.into_iter().find(|card| plain(card.name) == wanted) {
            return Ok(exact);
        }
        let matches: Vec<Card> = CARDS
            .into_iter()
            .filter(|card| !wanted.is_empty() && plain(card.name).contains(&wanted))
            .collect();
        match matches.as_slice() {
            [one] => Ok(*one),
            [] => Err(DeviceError::UnknownCard { given: text.to_owned() }),
            several => Err(DeviceError::AmbiguousCard {
                given: text.to_owned(),
                several: several.iter().map(|card| card.name).collect::<Vec<_>>().join(" or "),
            }),
        }
    }

    pub fn architecture(&self) -> Architecture {
        Architecture::of_sm(self.sm).expect("a test walks the table: every card's architecture has a row")
    }
}

fn known_architectures() -> String {
    ARCHITECTURES.map(|known| known.to_string()).join(", ")
}

fn known_cards() -> String {
    CARDS.map(|card| card.name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_in_every_spelling() {
        for text in ["sm_120", "sm_120a", "120", "12.0", "sm_120f", " 120 "] {
            assert_eq!(text.parse::<Architecture>().map(|found| found.sm), Ok(120), "{text}");
        }
        for text in ["", "sm_", "sm_70", "12.00", "1.20", "-120", "sm_120b", "99999999999", "ünï"] {
            assert!(text.parse::<Architecture>().is_err(), "{text}");
        }
        let sentence = "sm_70".parse::<Architecture>().unwrap_err().to_string();
        assert!(sentence.contains("`sm_70`") && sentence.contains("sm_120"), "{sentence}");
    }

    #[test]
    fn cards_have_architectures_and_are_found_by_part_of_their_name() {
        for card in CARDS {
            assert_eq!(card.architecture().sm, card.sm);
            assert_eq!(Card::named(card.name), Ok(card));
        }
        assert_eq!(Card::named("pro-6000").map(|card| card.sms), Ok(188));
        assert_eq!(Card::named("h200").map(|card| card.sms), Ok(132));
        assert!(matches!(Card::named("h100"), Err(DeviceError::AmbiguousCard { .. })));
        assert!(matches!(Card::named(""), Err(DeviceError::UnknownCard { .. })));
    }
}
