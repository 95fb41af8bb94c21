//! Texts and numbers as Python writes them for a format: the parts that `%` and `str.format` share.

use super::fault::{Result, evaluation};
use super::limits::Meter;
use super::text::{Text, extend};
use super::value::Number;

/// How one value is written.
#[derive(Debug, Default)]
pub struct Spec {
    pub fill: Option<char>,
    /// `<`, `>`, `^`, `=`
    pub align: Option<char>,
    /// `+` or a space.
    pub sign: Option<char>,
    pub alternate: bool,
    pub width: usize,
    /// `,` or `_` between groups of digits.
    pub group: Option<char>,
    pub precision: Option<usize>,
    pub kind: Option<char>,
}

/// The largest number of digits after the point that may be asked for: an f64 has at most 1,074.
const MAX_PRECISION: usize = 1100;

/// A text, cut to the precision and filled up to the width.
pub fn padded(meter: &mut Meter<'_>, out: &mut String, text: &Text, spec: &Spec) -> Result<()> {
    let chars = text.chars(meter)?;
    let kept = spec.precision.map_or(chars, |most| most.min(chars));
    let end = text.byte_of(meter, kept)?;
    let missing = spec.width.saturating_sub(kept);
    let before = match spec.align {
        Some('>') => missing,
        Some('^') => missing / 2,
        _ => 0,
    };
    let fill = spec.fill.unwrap_or(' ');
    meter.fill(out, fill, before)?;
    meter.write(out, &text.as_str()[..end])?;
    meter.fill(out, fill, missing - before)
}

/// Sign, prefix and digits, in groups if the format asks for them, filled up to the width.
pub fn number(
    meter: &mut Meter<'_>,
    out: &mut String,
    prefix: &str,
    digits: &str,
    spec: &Spec,
) -> Result<()> {
    let digits = &grouped(meter, digits, spec.width.saturating_sub(prefix.len()), spec)?;
    let missing = spec.width.saturating_sub(prefix.len() + digits.len());
    let fill = spec.fill.unwrap_or(' ');
    let (outer, inner) = match spec.align {
        Some('<') => (0, 0),
        Some('^') => (missing / 2, 0),
        Some('=') => (0, missing),
        _ => (missing, 0),
    };
    meter.fill(out, fill, outer)?;
    meter.write(out, prefix)?;
    meter.fill(out, fill, inner)?;
    meter.write(out, digits)?;
    meter.fill(out, fill, missing - outer - inner)
}

pub fn sign(negative: bool, spec: &Spec) -> String {
    match (negative, spec.sign) {
        (true, _) => "-".into(),
        (false, Some(sign)) if sign != '-' => sign.into(),
        _ => String::new(),
    }
}

pub fn integer(
    meter: &mut Meter<'_>,
    out: &mut String,
    value: Number,
    spec: &Spec,
    least: usize,
) -> Result<()> {
    let Number::Int(value) = value else {
        return evaluation("an integer format of a float");
    };
    let size = value.unsigned_abs();
    let (digits, mark) = match spec.kind {
        Some('x') => (format!("{size:x}"), "0x"),
        Some('X') => (format!("{size:X}"), "0X"),
        Some('o') => (format!("{size:o}"), "0o"),
        Some('b') => (format!("{size:b}"), "0b"),
        _ => (size.to_string(), ""),
    };
    if spec.group == Some(',') && !mark.is_empty() {
        return evaluation("`,` groups decimal digits only");
    }
    let mut prefix = sign(value < 0, spec);
    if spec.alternate {
        prefix.push_str(mark);
    }
    let mut all = String::new();
    meter.fill(&mut all, '0', least.saturating_sub(digits.len()))?;
    all.push_str(&digits);
    number(meter, out, &prefix, &all, spec)
}

/// Digits with `spec.group` between every three digits (every four in other bases), counted from
/// the point to the left. Zeros that fill `width` are grouped too.
fn grouped(meter: &mut Meter<'_>, digits: &str, width: usize, spec: &Spec) -> Result<String> {
    let mut out = String::new();
    let (size, is_digit): (usize, fn(&char) -> bool) = match spec.kind {
        Some('x' | 'X' | 'o' | 'b') => (4, char::is_ascii_hexdigit),
        _ => (3, char::is_ascii_digit),
    };
    let whole = digits.find(|c: char| !is_digit(&c)).unwrap_or(digits.len());
    let Some(group) = spec.group.filter(|_| whole > 0) else {
        meter.write(&mut out, digits)?;
        return Ok(out);
    };
    let mut n = whole;
    if spec.align == Some('=') && spec.fill == Some('0') {
        // As few digits as are needed to fill the width together with their separators. No
        // separator comes first.
        let width = width.saturating_sub(digits.len() - whole);
        let least = width - width / (size + 1);
        n = n.max(least + usize::from(least > 0 && least + (least - 1) / size < width));
    }
    meter.make(n.saturating_add(n / size))?;
    let zeros = std::iter::repeat_n('0', n - whole);
    for (i, c) in zeros.chain(digits[..whole].chars()).enumerate() {
        if i > 0 && (n - i) % size == 0 {
            extend(&mut out, [group])?;
        }
        extend(&mut out, [c])?;
    }
    meter.write(&mut out, &digits[whole..])?;
    Ok(out)
}

pub fn float(meter: &mut Meter<'_>, out: &mut String, value: f64, spec: &Spec) -> Result<()> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return evaluation(format!("more than {MAX_PRECISION} digits behind the point"));
    }
    let kind = spec.kind.unwrap_or('g');
    let size = value.abs();
    let mut digits = if size.is_nan() {
        "nan".to_owned()
    } else if size.is_infinite() {
        "inf".to_owned()
    } else {
        match kind.to_ascii_lowercase() {
            'f' => format!("{size:.precision$}"),
            '%' => format!("{:.precision$}", size * 100.0) + "%",
            'e' => exponent(&format!("{size:.precision$e}")),
            _ => general(size, precision.max(1), spec.alternate),
        }
    };
    if kind.is_ascii_uppercase() {
        digits = digits.to_ascii_uppercase();
    }
    let negative = value.is_sign_negative() && !value.is_nan();
    let prefix = sign(negative, spec);
    number(meter, out, &prefix, &digits, spec)
}

/// Turns Rust's exponent into Python's, which has a sign and at least two digits.
fn exponent(text: &str) -> String {
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, size) = match exponent.strip_prefix('-') {
                Some(size) => ('-', size),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{size:0>2}")
        }
        None => text.to_owned(),
    }
}

/// `%g`
pub fn general(size: f64, precision: usize, keep_zeros: bool) -> String {
    let scientific = format!("{size:.*e}", precision - 1);
    let (digits, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if power < -4 || power >= precision as i32 {
        return exponent(&format!("{}e{power}", trim(digits)));
    }
    trim(&format!(
        "{size:.*}",
        (precision as i32 - 1 - power).max(0) as usize
    ))
}
