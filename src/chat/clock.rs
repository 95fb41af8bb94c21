//! Local time. (U)
#![allow(unsafe_code)]

use super::jinja::Moment;
use crate::{Error, Result};

/// The moment `seconds` after the beginning of 1970 in UTC, in this process's time zone; `None`:
/// now.
pub(super) fn moment(seconds: Option<i64>) -> Result<Moment> {
    let seconds = seconds.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs() as i64)
    });
    let time: libc::time_t = seconds;
    // SAFETY: a `tm` of zeros is a value: it holds numbers and a pointer that may be NULL.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are this function's own; localtime_r writes no other memory.
    let made = unsafe { libc::localtime_r(&time, &mut tm) };
    if made.is_null() {
        return Err(Error::invalid(
            "chat_now",
            "a time that the calendar has",
            seconds,
        ));
    }
    let number = |n: libc::c_int| u32::try_from(n).unwrap_or(0);
    Ok(Moment {
        year: i64::from(tm.tm_year) + 1900,
        month: number(tm.tm_mon) + 1,
        day: number(tm.tm_mday),
        hour: number(tm.tm_hour),
        minute: number(tm.tm_min),
        second: number(tm.tm_sec),
        weekday: number(tm.tm_wday),
        yearday: number(tm.tm_yday),
    })
}
