//! A day, as TOML writes it. No times, no zones: a ledger needs to know what came first, not when lunch was.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};
use toml_edit::Datetime;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    year: u16,
    month: u8,
    day: u8,
}

impl Date {
    /// Of this machine's clock, in UTC.
    pub fn today() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Date::of_unix_days(now.as_secs() / 86_400)
    }

    /// Counts whole eras of 400 years, which all have the same days, and lets years begin in March, so that the leap
    /// day is the last.
    fn of_unix_days(days: u64) -> Self {
        const DAYS_FROM_MARCH_0000: u64 = 719_468;
        const DAYS_PER_ERA: u64 = 146_097;
        // Year 9999, the last that has four digits, ends before.
        let days = days.min(2_932_896) + DAYS_FROM_MARCH_0000;
        let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        // The bound above keeps all three small.
        Date { year: year as u16, month: month as u8, day: day as u8 }
    }

    pub(super) fn to_toml(self) -> Datetime {
        let date = toml_edit::Date { year: self.year, month: self.month, day: self.day };
        Datetime { date: Some(date), time: None, offset: None }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

const FORM: &str = "use a day such as 2026-11-29";

impl FromStr for Date {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Date::try_from(text.parse::<Datetime>().map_err(|_| FORM)?)
    }
}

impl TryFrom<Datetime> for Date {
    type Error = &'static str;

    fn try_from(given: Datetime) -> Result<Self, Self::Error> {
        match given {
            Datetime { date: Some(date), time: None, offset: None } => {
                Ok(Date { year: date.year, month: date.month, day: date.day })
            }
            _ => Err(FORM),
        }
    }
}

impl<'de> Deserialize<'de> for Date {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Date::try_from(Datetime::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// As text: JSON has no days.
impl Serialize for Date {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_as_calendars_do() {
        for (days, text) in [
            (0, "1970-01-01"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_786, "2026-11-29"),
            (2_932_896, "9999-12-31"),
            (u64::MAX, "9999-12-31"),
        ] {
            assert_eq!(Date::of_unix_days(days).to_string(), text, "{days}");
            assert_eq!(text.parse(), Ok(Date::of_unix_days(days)));
        }
        assert!(Date::today() > "2025-01-01".parse().unwrap());
    }

    #[test]
    fn only_days_are_days() {
        for text in ["", "2026-13-01", "2026-02-30", "2026-11-29T10:00:00", "10:00:00", "yesterday"] {
            assert_eq!(text.parse::<Date>(), Err(FORM), "{text}");
        }
    }
}
