//! Plain text tables and numbers for people. Anything that a program reads comes from `--json` instead.

pub use overshot_lab::report::{Table, count};

/// Bytes in the decimal units that disks and cards are sold in: `159.6 GB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 999.95 would print as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(159_600_000_000), "159.6 GB");
    }
}
