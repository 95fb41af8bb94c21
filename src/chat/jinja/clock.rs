//! `strftime_now`: a moment in words, as glibc's `strftime` writes it in the C locale.

use super::fault::{Result, unsupported};
use std::fmt::Write;

/// A moment in local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The full year, such as 2026.
    pub year: i64,
    /// From 1.
    pub month: u32,
    /// From 1.
    pub day: u32,
    /// From 0.
    pub hour: u32,
    /// From 0.
    pub minute: u32,
    /// From 0; 60 in a leap second.
    pub second: u32,
    /// From 0, which is Sunday.
    pub weekday: u32,
    /// The day of the year, from 0.
    pub yearday: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl Moment {
    /// The moment in the form that `format` says.
    pub fn strftime(&self, format: &str) -> Result<String> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut code = chars.next();
            let mut pad = None;
            if let Some(flag @ ('-' | '_' | '0')) = code {
                pad = Some(flag);
                code = chars.next();
            }
            let Some(code) = code else {
                out.push('%');
                break;
            };
            // These modifiers ask for another calendar or for other digits, which this locale does
            // not have.
            let (modifier, code) = match code {
                'E' | 'O' => (Some(code), chars.next()),
                code => (None, Some(code)),
            };
            if let Some('^' | '#' | '+' | 's' | '1'..='9') = code {
                let code = code.unwrap_or_default();
                return unsupported(format!("strftime_now does not know `%{code}`"));
            }
            let takes = |code: &char| match modifier {
                Some('E') => "cnprtuxyzCPRTXYZ%".contains(*code),
                Some(_) => "bdeghjklmnprtuwyzBCGHIMPRSTUVWZ%".contains(*code),
                None => true,
            };
            let known = code.filter(takes);
            if !known.is_some_and(|code| self.one(&mut out, code, pad)) {
                // glibc copies a code that it does not know.
                out.push('%');
                out.extend(pad.into_iter().chain(modifier).chain(code));
            }
        }
        Ok(out)
    }

    /// Writes what `%code` stands for, or says that it stands for nothing.
    fn one(&self, out: &mut String, code: char, flag: Option<char>) -> bool {
        let month = MONTHS[self.month.clamp(1, 12) as usize - 1];
        let day = DAYS[self.weekday as usize % 7];
        let hour12 = (self.hour + 11) % 12 + 1;
        let monday = (self.weekday + 6) % 7;
        let mut number = |value: u32, width: usize, fill: char| {
            let fill = match flag {
                Some('_') => ' ',
                Some('0') => '0',
                _ => fill,
            };
            let digits = value.to_string();
            if flag != Some('-') {
                (digits.len()..width).for_each(|_| out.push(fill));
            }
            out.push_str(&digits);
        };
        match code {
            'd' => number(self.day, 2, '0'),
            'e' => number(self.day, 2, ' '),
            'm' => number(self.month, 2, '0'),
            'H' => number(self.hour, 2, '0'),
            'k' => number(self.hour, 2, ' '),
            'I' => number(hour12, 2, '0'),
            'l' => number(hour12, 2, ' '),
            'M' => number(self.minute, 2, '0'),
            'S' => number(self.second, 2, '0'),
            'j' => number(self.yearday + 1, 3, '0'),
            'y' => number(self.year.rem_euclid(100) as u32, 2, '0'),
            'C' => number(self.year.div_euclid(100) as u32, 2, '0'),
            'U' => number((self.yearday + 7 - self.weekday) / 7, 2, '0'),
            'W' => number((self.yearday + 7 - monday) / 7, 2, '0'),
            'V' => number(self.iso_week().1, 2, '0'),
            'G' => out.push_str(&self.iso_week().0.to_string()),
            'g' => number(self.iso_week().0.rem_euclid(100) as u32, 2, '0'),
            'u' => number(monday + 1, 1, '0'),
            'w' => number(self.weekday, 1, '0'),
            'Y' => out.push_str(&self.year.to_string()),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'A' => out.push_str(day),
            'a' => out.push_str(&day[..3]),
            'p' => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
            'P' => out.push_str(if self.hour < 12 { "am" } else { "pm" }),
            'f' => out.push_str("000000"),
            // A moment without a time zone has no name for one, like Python's datetime.now().
            'Z' | 'z' => {}
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            'D' | 'x' => self.several(out, "mdy", "/"),
            'F' => {
                let _ = write!(out, "{}-", self.year);
                self.several(out, "md", "-");
            }
            'T' | 'X' => self.several(out, "HMS", ":"),
            'R' => self.several(out, "HM", ":"),
            'r' => {
                self.several(out, "IMS", ":");
                self.several(out, " p", "");
            }
            'c' => {
                self.several(out, "a b e T Y", "");
            }
            ' ' => out.push(' '),
            _ => return false,
        }
        true
    }

    /// Year and week of ISO 8601: a week belongs to the year that its Thursday is in.
    fn iso_week(&self) -> (i64, u32) {
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = |year: i64| 365 + i32::from(leap(year));
        let thursday = self.yearday as i32 + 3 - (self.weekday as i32 + 6) % 7;
        let (year, day) = if thursday < 0 {
            (self.year - 1, thursday + days(self.year - 1))
        } else if thursday >= days(self.year) {
            (self.year + 1, thursday - days(self.year))
        } else {
            (self.year, thursday)
        };
        (year, day as u32 / 7 + 1)
    }

    fn several(&self, out: &mut String, codes: &str, between: &str) {
        for (i, code) in codes.chars().enumerate() {
            if i > 0 {
                out.push_str(between);
            }
            self.one(out, code, None);
        }
    }
}
