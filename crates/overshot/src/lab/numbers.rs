//! Numbers on the command lines of the lab: each parser says in its refusal what would be right.

use std::num::NonZeroU32;

/// Batches that one command computes at most.
pub const BATCHES_MAX: usize = 4096;

pub fn not_negative(text: &str) -> Result<f64, String> {
    // What is multiplied with it must stay finite.
    let number = text.parse().ok().filter(|number: &f64| (0.0..=1e15).contains(number));
    number.ok_or_else(|| "use a number from 0 to 1e15, such as 0.79".into())
}

pub fn at_least_one(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| "use a whole number of at least 1".into())
}

/// Shared memory as NVIDIA counts it, a KB being 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBytes(pub u32);

pub fn kilobytes(text: &str) -> Result<SharedBytes, String> {
    const KB_MAX: f64 = 1024.0;
    let number = text.parse().ok().filter(|number: &f64| (0.0..=KB_MAX).contains(number));
    let number = number.ok_or("use KB of 1,024 bytes, from 0 to 1024, such as 48 or 8.5")?;
    Ok(SharedBytes((number * 1024.0).ceil() as u32))
}

/// A list such as `8,16,32` or a range such as `1..128`, ascending and without repetition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches(pub Vec<u32>);

pub fn batches(text: &str) -> Result<Batches, String> {
    let refusal =
        || format!("use a list such as 8,16,32 or a range such as 1..128, of at most {BATCHES_MAX}");
    let number = |text: &str| text.trim().parse::<NonZeroU32>().map(NonZeroU32::get).map_err(|_| refusal());
    let listed = match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first || (last - first) as usize >= BATCHES_MAX {
                return Err(refusal());
            }
            (first..=last).collect()
        }
        None => text.split(',').take(BATCHES_MAX + 1).map(number).collect::<Result<Vec<u32>, _>>()?,
    };
    if listed.len() > BATCHES_MAX || !listed.is_sorted_by(|one, other| one < other) {
        return Err("list batches in ascending order, each once, at most 4096 of them".into());
    }
    Ok(Batches(listed))
}

/// Two batches, as in `80:96`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPair {
    pub from: u32,
    pub to: u32,
}

pub fn batch_pair(text: &str) -> Result<BatchPair, String> {
    let pair = text.split_once(':').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let pair = pair.filter(|(from, to): &(u32, u32)| (1..*to).contains(from));
    let (from, to) = pair.ok_or("use two batches, the smaller one first, such as 80:96")?;
    Ok(BatchPair { from, to })
}

/// Finite numbers with colons between them, as in `0:10:25`.
pub fn numbers<const COUNT: usize>(text: &str) -> Result<[f64; COUNT], String> {
    let parts: Option<Vec<f64>> = text
        .split(':')
        .take(COUNT + 1)
        .map(|part| part.trim().parse().ok().filter(|n: &f64| n.is_finite()))
        .collect();
    let numbers = parts.and_then(|parts| parts.try_into().ok());
    numbers.ok_or_else(|| format!("use {COUNT} numbers with colons between them, such as 0:10:25"))
}

/// Bytes of shared memory as people say them: `49 KB`, `8.5 KB`, `640 B`.
pub fn shared(bytes: u32) -> String {
    match bytes {
        0 => "0 KB".into(),
        bytes if bytes.is_multiple_of(1024) => format!("{} KB", bytes / 1024),
        bytes if bytes < 1024 => format!("{bytes} B"),
        bytes => format!("{:.2} KB", f64::from(bytes) / 1024.0),
    }
}

pub fn ctas(number: u32) -> String {
    if number == 1 { "1 CTA".into() } else { format!("{number} CTAs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        assert_eq!(kilobytes("49"), Ok(SharedBytes(49 << 10)));
        assert_eq!(kilobytes("0.5"), Ok(SharedBytes(512)));
        for text in ["", "-1", "NaN", "inf", "1025", "49KB", "1e9"] {
            assert!(kilobytes(text).is_err(), "{text}");
        }
        assert_eq!([0, 640, 8704, 50176].map(shared), ["0 KB", "640 B", "8.50 KB", "49 KB"]);
    }

    #[test]
    fn batches_are_lists_or_ranges() {
        assert_eq!(batches("8,16, 32"), Ok(Batches(vec![8, 16, 32])));
        assert_eq!(batches("3..5"), Ok(Batches(vec![3, 4, 5])));
        for text in ["", "0", "1,", "2,1", "3,3", "5..3", "0..4", "1..99999999", "a", "1..", "-1..3"] {
            assert!(batches(text).is_err(), "{text}");
        }
        assert!(batches(&vec!["1"; 10_000].join(",")).is_err());
    }

    #[test]
    fn pairs_ascend() {
        assert_eq!(batch_pair("80:96"), Ok(BatchPair { from: 80, to: 96 }));
        for text in ["", "80", "96:80", "80:80", "0:1", "1:2:3", "-1:2"] {
            assert!(batch_pair(text).is_err(), "{text}");
        }
    }

    #[test]
    fn costs_are_finite() {
        assert_eq!(not_negative("0.79"), Ok(0.79));
        for text in ["-1", "NaN", "inf", "1e16", "", "1 ms"] {
            assert!(not_negative(text).is_err(), "{text}");
        }
    }
}
