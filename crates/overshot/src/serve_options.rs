//! The flags of `overshot serve` that concern the network: who may ask, how much and for how long. From words to what
//! the server takes.

use crate::failure::bad_input;
use crate::input::read_file;
use crate::usage::{at_least_one, whole_number};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use overshot_server::{ApiKeys, CorsOrigin, CorsPolicy, ServerLimits, ServerOptions};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

const KEY_FILE_BYTES_MAX: u64 = 1 << 20;
const BODY_MIB_MAX: usize = 4096;

#[derive(Args, Clone, Debug)]
pub struct NetworkFlags {
    /// Key that clients must send; may be given several times. Other users of this machine can see it: see --api-key-file
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    api_key: Vec<String>,

    /// File with a key a line; empty lines and lines that begin with # do not count
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Origin whose web pages may read answers, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<CorsOrigin>,

    /// MiB that the body of a request may have [default: 64]
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, value_parser = body_mib)]
    body_limit: Option<usize>,

    /// Seconds that an answer may take, waiting included, before it is ended with an error [default: no limit]
    #[arg(long, value_name = "S", allow_negative_numbers = true, value_parser = at_least_one)]
    request_timeout: Option<NonZeroUsize>,

    /// Seconds of silence on a stream after which a comment tells that the server is still there
    #[arg(long, value_name = "S", default_value = "10", allow_negative_numbers = true, value_parser = at_least_one)]
    keep_alive_seconds: NonZeroUsize,

    /// Seconds that running answers get when the server is asked to end
    #[arg(long, value_name = "S", default_value = "30", allow_negative_numbers = true, value_parser = whole_number::<u32>)]
    drain_seconds: u32,

    /// Seconds without a finished step, while there is work, after which /health fails
    #[arg(long, value_name = "S", default_value = "30", allow_negative_numbers = true, value_parser = at_least_one)]
    stall_seconds: NonZeroUsize,
}

fn body_mib(text: &str) -> Result<usize, String> {
    let mib = text.parse().ok().filter(|mib| (1..=BODY_MIB_MAX).contains(mib));
    mib.ok_or_else(|| format!("use a whole number of MiB from 1 to {BODY_MIB_MAX}"))
}

impl NetworkFlags {
    /// # Errors
    /// A file of keys that cannot be read or holds none, a key that cannot be sent.
    pub fn options(&self) -> anyhow::Result<ServerOptions> {
        let standard = ServerLimits::default();
        let body_bytes = self.body_limit.map_or(standard.body_bytes, |mib| mib << 20);
        Ok(ServerOptions {
            drain: Duration::from_secs(u64::from(self.drain_seconds)),
            stall: seconds(self.stall_seconds),
            request_timeout: self.request_timeout.map(seconds),
            keep_alive: seconds(self.keep_alive_seconds),
            api_keys: self.api_keys()?,
            cors: CorsPolicy::new(self.cors_origin.clone()),
            limits: ServerLimits { body_bytes, ..standard },
        })
    }

    fn api_keys(&self) -> anyhow::Result<ApiKeys> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = read_file(path, KEY_FILE_BYTES_MAX)?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            let before = keys.len();
            keys.extend(lines.map(str::to_owned));
            if keys.len() == before {
                // Taken as it is, the server would be open to everybody.
                return Err(bad_input(format!("{} has no key: write one a line", path.display())));
            }
        }
        ApiKeys::new(keys).map_err(|error| bad_input(error.to_string()))
    }
}

fn seconds(number: NonZeroUsize) -> Duration {
    Duration::from_secs(number.get() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        network: NetworkFlags,
    }

    fn options(flags: &[&str]) -> anyhow::Result<ServerOptions> {
        let line = Line::try_parse_from([&["serve"], flags].concat())?;
        line.network.options()
    }

    #[test]
    fn keys_come_from_the_line_and_from_a_file_that_must_hold_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        std::fs::write(path, "# ours\n\n  first \nsecond\n").unwrap();
        let keys = options(&["--api-key", "zero", "--api-key-file", path]).unwrap().api_keys;
        assert_eq!(format!("{keys:?}"), "ApiKeys(3)");
        std::fs::write(path, "# none yet\n").unwrap();
        let error = options(&["--api-key-file", path]).unwrap_err().to_string();
        assert!(error.contains("has no key"), "{error}");
        let error = options(&["--api-key", "two words"]).unwrap_err().to_string();
        assert!(error.contains("API key number 1 cannot be sent"), "{error}");
    }

    #[test]
    fn bounds_are_checked_where_they_are_given() {
        assert_eq!(options(&[]).unwrap().limits, ServerLimits::default());
        assert_eq!(options(&["--body-limit", "2"]).unwrap().limits.body_bytes, 2 << 20);
        for flags in [
            ["--body-limit", "0"],
            ["--body-limit", "5000"],
            ["--request-timeout", "0"],
            ["--keep-alive-seconds", "0"],
            ["--cors-origin", "example.com"],
        ] {
            assert!(options(&flags).is_err(), "{flags:?}");
        }
    }
}
