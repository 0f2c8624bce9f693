//! A profile as a file: one JSON object, a few kilobytes, with a number of its format.

use super::{Family, Profile, RunsByBatch, StepClock};
use crate::{LabError, Settings};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;

const FORMAT: u32 = 1;

/// Runs of thousands at hundreds of batches fit.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[derive(Serialize)]
struct Written<'a> {
    profile_format: u32,
    #[serde(flatten)]
    profile: &'a Profile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    profile_format: u32,
    subject: String,
    #[serde(default)]
    settings: Settings,
    clock: StepClock,
    step_ms: RunsByBatch,
    #[serde(default)]
    families: Vec<Family>,
}

/// What tells another file from another format.
#[derive(Deserialize)]
struct Head {
    profile_format: u32,
}

impl Profile {
    /// # Errors
    /// A file that cannot be read or holds no profile: says why.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let bad = |what: String| LabError::BadProfile { subject: path.display().to_string(), what };
        let metadata = std::fs::metadata(path).map_err(|error| bad(format!("cannot be opened: {error}")))?;
        if !metadata.is_file() {
            return Err(bad("not a regular file".into()));
        }
        let file = std::fs::File::open(path).map_err(|error| bad(format!("cannot be opened: {error}")))?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| bad(format!("cannot be read: {error}")))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(bad("longer than 64 MiB, so it is no profile".into()));
        }
        Profile::from_json(&bytes).map_err(|error| match error {
            LabError::BadProfile { what, .. } => bad(what),
            other => other,
        })
    }

    /// # Errors
    /// Bytes that hold no profile.
    pub fn from_json(bytes: &[u8]) -> Result<Self, LabError> {
        let bad = |what: String| LabError::BadProfile { subject: "profile".into(), what };
        let head: Head = serde_json::from_slice(bytes)
            .map_err(|_| bad("this is not a profile as `overshot lab profile` writes it".into()))?;
        if head.profile_format != FORMAT {
            let found = head.profile_format;
            return Err(bad(format!("profile_format is {found} where this program reads {FORMAT}")));
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        debug_assert_eq!(stored.profile_format, FORMAT);
        Profile::new(stored.subject, stored.settings, stored.clock, stored.step_ms, stored.families)
    }

    pub fn to_json(&self) -> String {
        let written = Written { profile_format: FORMAT, profile: self };
        let mut text = serde_json::to_string_pretty(&written).expect("texts and finite numbers are JSON");
        text.push('\n');
        text
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), LabError> {
        std::fs::write(path, self.to_json())
            .map_err(|source| LabError::WriteFile { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn profile() -> Profile {
        let series =
            |first, second| RunsByBatch::from([(1, vec![first]), (64, vec![second, second + 0.125])]);
        let family = |name: &str, first| Family {
            name: name.into(),
            step_ms: series(first, 4.0),
            roofline_ms: BTreeMap::from([(64, 0.5)]),
        };
        let settings = Settings::from([("card".into(), "H200".into())]);
        let families = vec![family("attention", 0.1), family("host gap", 1e-9)];
        Profile::new("server", settings, StepClock::Wall, series(5.0, 50.0), families).unwrap()
    }

    #[test]
    fn a_profile_comes_back_from_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        profile().write(&path).unwrap();
        assert_eq!(Profile::read(&path).unwrap(), profile());
    }

    #[test]
    fn what_is_no_profile_is_told_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("profile.json");
        let good = profile().to_json();
        for (text, part) in [
            (String::new(), "this is not a profile"),
            ("{}".into(), "this is not a profile"),
            (good[..good.len() / 2].to_owned(), "this is not a profile"),
            (good.replace("\"profile_format\": 1", "\"profile_format\": 9"), "profile_format is 9"),
            (good.replace("\"wall\"", "\"sun\""), "unknown variant `sun`"),
            (good.replace("roofline_ms", "roof_ms"), "unknown field `roof_ms`"),
            (good.replace("5.0", "-5.0"), "run 1 at batch 1 is -5 ms"),
        ] {
            std::fs::write(&path, text).unwrap();
            let told = Profile::read(&path).unwrap_err();
            assert!(told.is_bad_input() && told.to_string().contains("profile.json: "), "{told}");
            assert!(told.to_string().contains(part), "{told}");
        }
        assert!(Profile::read(folder.path()).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn no_mutation_makes_it_panic() {
        let good = profile().to_json().into_bytes();
        let cases = overshot_testing::asked_cases();
        let seed = overshot_testing::seed();
        let mut random = fastrand::Rng::with_seed(seed);
        for case in 0..cases.unwrap_or(2000) {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bytes.len());
                match random.u8(..3) {
                    0 => bytes[at] = *random.choice(b"0123456789-.eE{}[],:\"n").unwrap(),
                    1 => bytes.truncate(at.max(1)),
                    _ => bytes.insert(at, random.u8(..)),
                }
            }
            // An error, or a profile that is as valid as any.
            if let Ok(found) = Profile::from_json(&bytes) {
                assert_eq!(found.fault(), None, "seed {seed}, case {case}");
            }
        }
    }
}
