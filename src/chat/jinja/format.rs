//! Python's `%` formatting and `str.format`.

use super::arguments::{Arguments, count};
use super::eval::Evaluator;
use super::fault::{Result, evaluation, unsupported};
use super::limits::Meter;
use super::text::Text;
use super::value::{Number, Value};
use super::{ops, repr};

/// How one value is written.
#[derive(Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^`, `=`
    align: Option<char>,
    /// `+` or a space.
    sign: Option<char>,
    alternate: bool,
    width: usize,
    /// `,` or `_` between groups of digits.
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Digits behind a point that a number may be asked for: an f64 has at most 1,074.
const MAX_PRECISION: usize = 1100;

/// `text % args`
pub fn percent(e: &mut Evaluator<'_, '_>, text: &Text, args: &Value) -> Result<Text> {
    let positional: &[Value] = match args {
        Value::Tuple(seq) => &seq.items,
        other => std::slice::from_ref(other),
    };
    let mut next = positional.iter();
    let mut named = false;
    let mut out = String::new();
    let mut templates = text.is_templates();
    let mut rest = text.as_str();
    while let Some(at) = rest.find('%') {
        e.meter.step()?;
        e.meter.write(&mut out, &rest[..at])?;
        rest = &rest[at + 1..];
        let mut key = None;
        if let Some(behind) = rest.strip_prefix('(') {
            let Some(end) = behind.find(')') else {
                return evaluation("a format key without `)`");
            };
            key = Some(&behind[..end]);
            rest = &behind[end + 1..];
        }
        let mut spec = Spec::default();
        let mut left = false;
        let mut zero = false;
        loop {
            match rest.as_bytes().first() {
                Some(b'#') => spec.alternate = true,
                Some(b'0') => zero = true,
                Some(b'-') => left = true,
                Some(b' ') => spec.sign = spec.sign.or(Some(' ')),
                Some(b'+') => spec.sign = Some('+'),
                _ => break,
            }
            rest = &rest[1..];
        }
        let mut star = |rest: &mut &str| -> Result<Option<i128>> {
            if let Some(behind) = rest.strip_prefix('*') {
                *rest = behind;
                return match next.next().and_then(Value::index) {
                    Some(n) => Ok(Some(n)),
                    None => evaluation("`*` in a format needs an int"),
                };
            }
            let digits = rest
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len());
            let number = &rest[..digits];
            *rest = &rest[digits..];
            match number {
                "" => Ok(None),
                number => Ok(Some(number.parse().unwrap_or(i128::MAX))),
            }
        };
        if let Some(width) = star(&mut rest)? {
            left |= width < 0;
            spec.width = count(width.saturating_abs());
        }
        if let Some(behind) = rest.strip_prefix('.') {
            rest = behind;
            spec.precision = Some(count(star(&mut rest)?.unwrap_or(0)));
        }
        rest = rest.trim_start_matches(['h', 'l', 'L']);
        let Some(kind) = rest.chars().next() else {
            return evaluation("a format ends behind `%`");
        };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            e.meter.write(&mut out, "%")?;
            continue;
        }
        let value = match key {
            None => match next.next() {
                Some(value) => value.clone(),
                None => return evaluation("a format has more `%` than arguments"),
            },
            Some(key) => {
                named = true;
                let Value::Dict(dict) = args else {
                    return evaluation("a format with keys needs a dict");
                };
                let wanted = Value::Text(Text::copy(&mut e.meter, key, true)?);
                match dict.get(&mut e.meter, &wanted)? {
                    Some(value) => value.clone(),
                    None => return evaluation(format!("a format has no value for `{key}`")),
                }
            }
        };
        spec.align = match (left, zero, kind) {
            (true, ..) => Some('<'),
            (false, true, 's' | 'r' | 'a' | 'c') | (false, false, _) => Some('>'),
            (false, true, _) => Some('='),
        };
        spec.fill = Some(if spec.align == Some('=') { '0' } else { ' ' });
        let text = match kind {
            's' => repr::string(&mut e.meter, &value)?,
            'r' | 'a' => repr::repr(&mut e.meter, &value)?,
            'c' => match &value {
                Value::Text(c) if c.as_str().chars().count() == 1 => c.clone(),
                value => match value
                    .index()
                    .and_then(|i| char::from_u32(u32::try_from(i).ok()?))
                {
                    Some(c) => super::text::short(c),
                    None => return evaluation("`%c` needs a character"),
                },
            },
            _ => {
                // Unlike `format`, `%d` takes floats too, and `%x` only integers.
                let value = match (kind, value.number()) {
                    ('d' | 'i' | 'u', Some(Number::Float(f))) => {
                        if !f.is_finite() {
                            return evaluation("`%d` of a float that is no number");
                        }
                        Number::Int(f as i128)
                    }
                    (_, Some(number)) => number,
                    _ => {
                        let of = value.type_name();
                        return evaluation(format!("`%{kind}` needs a number, not a {of}"));
                    }
                };
                spec.kind = Some(match kind {
                    'i' | 'u' => 'd',
                    kind => kind,
                });
                if matches!(spec.kind, Some('d' | 'x' | 'X' | 'o')) {
                    let digits = spec.precision.take().unwrap_or(0);
                    integer(&mut e.meter, &mut out, value, &spec, digits)?;
                } else {
                    float(&mut e.meter, &mut out, value.float(), &spec)?;
                }
                continue;
            }
        };
        templates &= text.is_templates();
        padded(&mut e.meter, &mut out, &text, &spec)?;
    }
    // What could be looked up by a key need not be used.
    let keys = matches!(
        args,
        Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_)
    );
    if !named && !keys && next.next().is_some() {
        return evaluation("not all arguments are used by the format");
    }
    e.meter.write(&mut out, rest)?;
    Ok(Text::of(out, templates))
}

/// A text, cut to the precision and filled up to the width.
fn padded(meter: &mut Meter<'_>, out: &mut String, text: &Text, spec: &Spec) -> Result<()> {
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

/// Sign, prefix and digits, filled up to the width.
fn number(
    meter: &mut Meter<'_>,
    out: &mut String,
    prefix: &str,
    digits: &str,
    spec: &Spec,
) -> Result<()> {
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

fn sign(negative: bool, spec: &Spec) -> String {
    match (negative, spec.sign) {
        (true, _) => "-".into(),
        (false, Some(sign)) if sign != '-' => sign.into(),
        _ => String::new(),
    }
}

fn integer(
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
    let mut prefix = sign(value < 0, spec);
    if spec.alternate {
        prefix.push_str(mark);
    }
    let mut all = String::new();
    meter.fill(&mut all, '0', least.saturating_sub(digits.len()))?;
    all.push_str(&digits);
    number(meter, out, &prefix, &grouped(&all, spec), spec)
}

/// Digits with `spec.group` between every three, from the point to the left.
fn grouped(digits: &str, spec: &Spec) -> String {
    let Some(group) = spec.group else {
        return digits.to_owned();
    };
    let whole = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits[..whole].chars().enumerate() {
        if i > 0 && (whole - i) % 3 == 0 {
            out.push(group);
        }
        out.push(c);
    }
    out + &digits[whole..]
}

fn float(meter: &mut Meter<'_>, out: &mut String, value: f64, spec: &Spec) -> Result<()> {
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
    number(meter, out, &prefix, &grouped(&digits, spec), spec)
}

/// Rust's exponent as Python's: a sign and at least two digits.
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
fn general(size: f64, precision: usize, keep_zeros: bool) -> String {
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

/// `text.format(args)`
pub fn braces(e: &mut Evaluator<'_, '_>, text: &Text, args: Arguments) -> Result<Text> {
    let mut out = Braces {
        text: String::new(),
        templates: text.is_templates(),
        next: 0,
        args,
    };
    out.write(e, text.as_str(), 0)?;
    Ok(Text::of(out.text, out.templates))
}

struct Braces {
    text: String,
    templates: bool,
    /// The next argument that `{}` takes.
    next: usize,
    args: Arguments,
}

impl Braces {
    /// `level` 1 is the inside of a format specification.
    fn write(&mut self, e: &mut Evaluator<'_, '_>, text: &str, level: u32) -> Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            e.meter.step()?;
            e.meter.write(&mut self.text, &rest[..at])?;
            let brace = &rest[at..=at];
            let behind = &rest[at + 1..];
            if let Some(behind) = behind.strip_prefix(brace) {
                e.meter.write(&mut self.text, brace)?;
                rest = behind;
                continue;
            }
            if brace == "}" {
                return evaluation("a single `}` in a format");
            }
            let (mut depth, mut end) = (1, None);
            for (i, c) in behind.char_indices() {
                depth += match c {
                    '{' => 1,
                    '}' => -1,
                    _ => 0,
                };
                if depth == 0 {
                    end = Some(i);
                    break;
                }
            }
            let Some(end) = end else {
                return evaluation("a `{` without `}` in a format");
            };
            e.meter.look_at(end)?;
            self.field(e, &behind[..end], level)?;
            rest = &behind[end + 1..];
        }
        e.meter.write(&mut self.text, rest)
    }

    fn field(&mut self, e: &mut Evaluator<'_, '_>, field: &str, level: u32) -> Result<()> {
        if level > 1 {
            return evaluation("a format is nested too deep");
        }
        let end = field.find(['!', ':']).unwrap_or(field.len());
        let (name, mut behind) = field.split_at(end);
        let value = self.value(e, name)?;
        let mut value = value;
        if let Some(conversion) = behind.strip_prefix('!') {
            let text = match conversion.chars().next() {
                Some('r' | 'a') => repr::repr(&mut e.meter, &value)?,
                Some('s') => repr::string(&mut e.meter, &value)?,
                _ => return evaluation("an unknown conversion in a format"),
            };
            value = Value::Text(text);
            behind = &conversion[1..];
        }
        let spec = match behind.strip_prefix(':') {
            Some(spec) if spec.contains('{') => {
                let before = std::mem::take(&mut self.text);
                self.write(e, spec, level + 1)?;
                std::mem::replace(&mut self.text, before)
            }
            Some(spec) => spec.to_owned(),
            None if behind.is_empty() => String::new(),
            None => return evaluation("expected `:` in a format"),
        };
        self.formatted(e, &value, &spec)
    }

    /// The argument that `name`, with attributes and items, is.
    fn value(&mut self, e: &mut Evaluator<'_, '_>, name: &str) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let index = match first {
            "" => {
                self.next += 1;
                Some(self.next - 1)
            }
            first => first.parse::<usize>().ok(),
        };
        let found = match index {
            Some(index) => self.args.positional.get(index).cloned(),
            None => {
                let mut named = self.args.keyword.iter();
                let found = named.find(|(key, _)| key.as_str() == first);
                found.map(|(_, value)| value.clone())
            }
        };
        let Some(mut value) = found else {
            return evaluation(format!("a format has no value for `{first}`"));
        };
        while !rest.is_empty() {
            e.meter.step()?;
            if let Some(behind) = rest.strip_prefix('.') {
                let end = behind.find(['.', '[']).unwrap_or(behind.len());
                let name = Text::copy(&mut e.meter, &behind[..end], true)?;
                value = ops::attr(e, &value, &name)?;
                rest = &behind[end..];
            } else {
                let Some(end) = rest.find(']') else {
                    return evaluation("a `[` without `]` in a format");
                };
                let key = match rest[1..end].parse::<i128>() {
                    Ok(index) => Value::Int(index),
                    Err(_) => Value::Text(Text::copy(&mut e.meter, &rest[1..end], true)?),
                };
                value = ops::item(e, &value, &key)?;
                rest = &rest[end + 1..];
            }
        }
        Ok(value)
    }

    fn formatted(&mut self, e: &mut Evaluator<'_, '_>, value: &Value, spec: &str) -> Result<()> {
        let spec = parse_spec(spec)?;
        let meter = &mut e.meter;
        let numeric = match value {
            Value::Bool(_) if spec.kind.is_none() => None,
            value => value.number(),
        };
        let Some(value) = numeric else {
            if !matches!(spec.kind, None | Some('s')) || spec.align == Some('=') {
                let (kind, of) = (spec.kind.unwrap_or('='), value.type_name());
                return evaluation(format!("the format `{kind}` does not fit a {of}"));
            }
            if !matches!(value, Value::Text(_)) && (spec.width > 0 || spec.precision.is_some()) {
                let of = value.type_name();
                return evaluation(format!("a {of} has no format with a width"));
            }
            let text = repr::string(meter, value)?;
            self.templates &= text.is_templates();
            return padded(meter, &mut self.text, &text, &spec);
        };
        match (spec.kind, value) {
            (None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n'), Number::Int(_)) => {
                if spec.precision.is_some() {
                    return evaluation("an integer has no precision");
                }
                integer(meter, &mut self.text, value, &spec, 0)
            }
            (Some('c'), Number::Int(i)) => match u32::try_from(i).ok().and_then(char::from_u32) {
                Some(c) => padded(meter, &mut self.text, &super::text::short(c), &spec),
                None => evaluation("`c` needs a character's code"),
            },
            (None, Number::Float(f)) if spec.precision.is_none() => {
                let digits = repr::float(f.abs());
                let prefix = sign(f.is_sign_negative() && !f.is_nan(), &spec);
                number(
                    meter,
                    &mut self.text,
                    &prefix,
                    &grouped(&digits, &spec),
                    &spec,
                )
            }
            (None, _) => unsupported("a precision without a kind in a format"),
            (Some('f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%'), _) => {
                float(meter, &mut self.text, value.float(), &spec)
            }
            (Some(kind), _) => evaluation(format!("the format `{kind}` does not fit a number")),
        }
    }
}

/// `[[fill]align][sign][#][0][width][,][.precision][kind]`
fn parse_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let mut chars = text.chars().peekable();
    let aligns = ['<', '>', '^', '='];
    let mut ahead = text.chars();
    let (first, second) = (ahead.next(), ahead.next());
    if second.is_some_and(|c| aligns.contains(&c)) {
        (spec.fill, spec.align) = (first, second);
        chars.nth(1);
    } else if first.is_some_and(|c| aligns.contains(&c)) {
        spec.align = first;
        chars.next();
    }
    if let Some(sign) = chars.next_if(|c| matches!(c, '+' | '-' | ' ')) {
        spec.sign = Some(sign);
    }
    spec.alternate = chars.next_if_eq(&'#').is_some();
    if chars.next_if_eq(&'0').is_some() {
        spec.fill = spec.fill.or(Some('0'));
        spec.align = spec.align.or(Some('='));
    }
    let mut digits = || {
        let mut number: Option<usize> = None;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            let digit = digit as usize - '0' as usize;
            number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        number
    };
    spec.width = digits().unwrap_or(0);
    spec.group = chars.next_if(|c| matches!(c, ',' | '_'));
    if chars.next_if_eq(&'.').is_some() {
        let mut number: Option<usize> = None;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            let digit = digit as usize - '0' as usize;
            number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
        }
        match number {
            Some(number) => spec.precision = Some(number),
            None => return evaluation("a format without a precision behind `.`"),
        }
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return evaluation("an invalid format");
    }
    Ok(spec)
}
