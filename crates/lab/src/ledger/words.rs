//! Numbers of a ledger as people read them.

use super::lever::Guard;

/// `+5.7 %`.
pub fn signed_percent(percent: f64) -> String {
    if percent.abs() >= 9.95 {
        format!("{percent:+.0} %")
    } else if percent.abs() < 0.05 {
        "0.0 %".into()
    } else {
        format!("{percent:+.1} %")
    }
}

/// As somebody typed it.
pub fn plain_number(number: f64) -> String {
    let size = number.abs();
    if size >= 1e15 || (size > 0.0 && size < 1e-9) { format!("{number:e}") } else { number.to_string() }
}

pub fn with_unit(number: f64, unit: &str) -> String {
    if unit.is_empty() { plain_number(number) } else { format!("{} {unit}", plain_number(number)) }
}

/// `1 -> 2 CTAs`.
pub fn arrow(before: f64, after: f64, unit: &str) -> String {
    format!("{} -> {}", plain_number(before), with_unit(after, unit))
}

pub fn guard_limit(guard: &Guard) -> String {
    match (guard.at_most, guard.at_least) {
        (Some(most), _) => format!("at most {}", with_unit(most, &guard.unit)),
        (None, Some(least)) => format!("at least {}", with_unit(least, &guard.unit)),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (percent, text) in [(5.7, "+5.7 %"), (-45.16, "-45 %"), (0.01, "0.0 %"), (-0.04, "0.0 %")] {
            assert_eq!(signed_percent(percent), text);
        }
        assert_eq!(arrow(0.00207, 0.00166, ""), "0.00207 -> 0.00166");
        assert_eq!((plain_number(24.0), plain_number(1e300)), ("24".into(), "1e300".into()));
    }
}
