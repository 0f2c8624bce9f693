//! The small languages of `overshot lab project`: `FAMILY=MS`, `FAMILY=MS@BATCH`, `LOW..HIGH@BATCH`, `LOW..HIGH`.

use overshot_lab::project::{SeenThroughput, Transfer};

/// `attention=0.79`
#[derive(Clone, Debug, PartialEq)]
pub struct FamilySlope {
    pub family: String,
    pub ms: f64,
}

pub fn family_slope(text: &str) -> Result<FamilySlope, String> {
    let pair = text.rsplit_once('=').and_then(|(family, ms)| Some((name(family)?, not_negative(ms)?)));
    let (family, ms) = pair.ok_or("use a family and its milliseconds a request, such as attention=0.79")?;
    Ok(FamilySlope { family, ms })
}

/// `moe=23@96`
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyAt {
    pub family: String,
    pub ms: f64,
    pub batch: u32,
}

pub fn family_at(text: &str) -> Result<FamilyAt, String> {
    let parse = || {
        let (slope, batch) = text.rsplit_once('@')?;
        let FamilySlope { family, ms } = family_slope(slope).ok()?;
        Some(FamilyAt { family, ms, batch: batch.trim().parse().ok().filter(|batch| *batch > 0)? })
    };
    parse().ok_or_else(|| "use a family, its milliseconds and the batch of these, such as moe=23@96".into())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThroughputBand(pub SeenThroughput);

/// `775..845@96`, or `810@96`
pub fn throughput_band(text: &str) -> Result<ThroughputBand, String> {
    let parse = || {
        let (band, batch) = text.split_once('@')?;
        let (low, high) = band.split_once("..").unwrap_or((band, band));
        let (low, high) = (not_negative(low)?, not_negative(high)?);
        let batch = batch.trim().parse().ok().filter(|batch| *batch > 0)?;
        (low > 0.0 && low <= high).then_some(ThroughputBand(SeenThroughput { low, high, batch }))
    };
    parse().ok_or_else(|| {
        "use tokens a second, the lower ones first, and their batch, such as 775..845@96 or 810@96".into()
    })
}

/// `0.7..1`, or `1`
pub fn transfer(text: &str) -> Result<Transfer, String> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let pair = not_negative(low).zip(not_negative(high));
    let pair = pair.filter(|(low, high)| low <= high && *high <= 1.0);
    let (low, high) = pair.ok_or("use two shares from 0 to 1, the lower one first, such as 0.7..1")?;
    Ok(Transfer { low, high })
}

fn name(text: &str) -> Option<String> {
    let name = text.trim().to_lowercase();
    (!name.is_empty() && name.chars().count() <= 100).then_some(name)
}

fn not_negative(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_with_their_family_and_batch() {
        assert_eq!(family_slope("Host gap = 0.1"), Ok(FamilySlope { family: "host gap".into(), ms: 0.1 }));
        assert_eq!(family_at("moe=23@96"), Ok(FamilyAt { family: "moe".into(), ms: 23.0, batch: 96 }));
        let band = SeenThroughput { low: 775.0, high: 845.0, batch: 96 };
        assert_eq!(throughput_band("775..845@96"), Ok(ThroughputBand(band)));
        assert_eq!(throughput_band("810@8").unwrap().0.low, 810.0);
        assert_eq!(transfer("0.7..1"), Ok(Transfer { low: 0.7, high: 1.0 }));
        assert_eq!(transfer("1"), Ok(Transfer { low: 1.0, high: 1.0 }));
    }

    #[test]
    fn what_is_not_so_written_is_told_how() {
        for text in ["", "attention", "=1", "a=", "a=NaN", "a=-1", "a=1 ms", "a=inf"] {
            assert!(family_slope(text).unwrap_err().contains("attention=0.79"), "{text}");
            assert!(family_at(&format!("{text}@4")).is_err(), "{text}");
        }
        for text in ["775..845", "845..775@96", "0@96", "775..845@0", "a..b@3", "@"] {
            assert!(throughput_band(text).unwrap_err().contains("775..845@96"), "{text}");
        }
        for text in ["", "1..0.7", "0.7..1.1", "-1..1", "NaN"] {
            assert!(transfer(text).unwrap_err().contains("0.7..1"), "{text}");
        }
    }
}
