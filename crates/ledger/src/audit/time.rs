//! The time as records carry it: RFC 3339, UTC, milliseconds.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now; the beginning of 1970 on a clock before that.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.as_secs(), since.subsec_millis())
}

/// A time in seconds since 1970, without leap seconds.
fn rfc3339(seconds: u64, millis: u32) -> String {
    // Days are counted from 0000-03-01, so that a leap day is the last of its year; an era is 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::rfc3339;

    #[test]
    fn known_moments() {
        // From `date -u -d @N +%FT%T`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_868_800, "2000-03-01T00:00:00"),
            (1_735_689_599, "2024-12-31T23:59:59"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (253_402_300_799, "9999-12-31T23:59:59"),
        ] {
            assert_eq!(rfc3339(seconds, 7), format!("{text}.007Z"));
        }
    }

    #[test]
    fn days_follow_one_another() {
        let mut before = String::new();
        for day in 0..80_000_u64 {
            let text = rfc3339(day * 86_400, 0);
            assert!(text > before, "{text} after {before}");
            before = text;
        }
        assert_eq!(before, "2189-01-11T00:00:00.000Z");
    }
}
