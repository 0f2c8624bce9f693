//! The small languages of `overshot lab profile`: `B=FILE`, `FAMILY=BYTES/PER`, `FAMILY=TILES`, `ALL:USED`.

use overshot_lab::profile;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// `64=trace.json.gz`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchFile {
    pub batch: NonZeroU32,
    pub path: PathBuf,
}

pub fn batch_file(text: &str) -> Result<BatchFile, String> {
    let pair = text.split_once('=').and_then(|(batch, path)| Some((batch.trim().parse().ok()?, path)));
    let pair = pair.filter(|(_, path): &(NonZeroU32, &str)| !path.is_empty());
    let (batch, path) = pair.ok_or("use the batch and the file of its trace, such as 64=trace.json.gz")?;
    Ok(BatchFile { batch, path: path.into() })
}

/// What a family must move.
#[derive(Clone, Debug, PartialEq)]
pub struct FamilyBytes {
    pub family: String,
    bytes: f64,
    per: Per,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Per {
    Request,
    Step,
}

impl FamilyBytes {
    pub fn at(&self, batch: u32) -> f64 {
        match self.per {
            Per::Request => self.bytes * f64::from(batch),
            Per::Step => self.bytes,
        }
    }
}

pub fn family_bytes(text: &str) -> Result<FamilyBytes, String> {
    let parse = || {
        let (family, amount) = text.split_once('=')?;
        let (amount, per) = amount.split_once('/')?;
        let per = match per.trim() {
            "request" => Per::Request,
            "step" => Per::Step,
            _ => return None,
        };
        let digits = amount.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(amount.len());
        let unit = match amount[digits..].trim() {
            "B" => 1.0,
            "KB" | "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            _ => return None,
        };
        let bytes = amount[..digits].trim().parse::<f64>().ok()? * unit;
        let is_right = bytes.is_finite() && bytes > 0.0 && !family.is_empty();
        is_right.then(|| FamilyBytes { family: family.trim().to_owned(), bytes, per })
    };
    parse().ok_or_else(|| {
        "use bytes for each request or step, such as attention=16MB/request or experts=36GB/step".into()
    })
}

/// How many tiles of a request a family's kernel walks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyTiles {
    pub family: String,
    pub tiles: NonZeroU32,
}

pub fn family_tiles(text: &str) -> Result<FamilyTiles, String> {
    let pair =
        text.split_once('=').and_then(|(family, tiles)| Some((family.trim(), tiles.trim().parse().ok()?)));
    let (family, tiles) = pair
        .filter(|(family, _)| !family.is_empty())
        .ok_or("use tiles of a request, such as attention=32")?;
    Ok(FamilyTiles { family: family.to_owned(), tiles })
}

/// `256:6`; none of `0:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts(pub Option<profile::Experts>);

pub fn experts(text: &str) -> Result<Experts, String> {
    let parsed = text.split_once(':').and_then(|(all, used)| Some((all.parse().ok()?, used.parse().ok()?)));
    let (all, used): (u32, u32) = parsed
        .filter(|(all, used)| used <= all)
        .ok_or("use all experts and those of a token, such as 256:6")?;
    match (NonZeroU32::new(all), NonZeroU32::new(used)) {
        (Some(all), Some(used_by_a_request)) => {
            Ok(Experts(Some(profile::Experts { all, used_by_a_request })))
        }
        (None, None) => Ok(Experts(None)),
        _ => Err("a token uses at least one expert; 0:0 stands for a model without".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_with_their_batch() {
        assert_eq!(batch_file("64=a=b.json").unwrap().path, PathBuf::from("a=b.json"));
        for text in ["", "64", "64=", "0=a", "-1=a", "x=a", "a.json"] {
            assert!(batch_file(text).unwrap_err().contains("64=trace.json.gz"), "{text}");
        }
    }

    #[test]
    fn bytes_are_for_requests_or_steps() {
        let told = family_bytes("attention = 16.5 MB/request").unwrap();
        assert_eq!((told.family.as_str(), told.at(2)), ("attention", 33e6));
        assert_eq!(family_bytes("host gap=1GB/step").unwrap().at(9), 1e9);
        for text in [
            "",
            "a=1/step",
            "a=1MB",
            "a=1MB/token",
            "=1MB/step",
            "a=-1MB/step",
            "a=NaNMB/step",
            "a=1e999GB/step",
        ] {
            assert!(family_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn experts_and_tiles_are_counted() {
        assert_eq!(experts("0:0"), Ok(Experts(None)));
        assert_eq!(experts("256:6").unwrap().0, Some(profile::Experts::default()));
        for text in ["", "256", "6:256", "256:0", "-1:-1"] {
            assert!(experts(text).is_err(), "{text}");
        }
        assert_eq!(family_tiles("attention=32").unwrap().tiles.get(), 32);
        assert!(family_tiles("attention=0").is_err() && family_tiles("=3").is_err());
    }
}
