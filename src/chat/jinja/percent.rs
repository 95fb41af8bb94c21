//! Python's `%` formatting.

use super::arguments::count;
use super::evaluator::Evaluator;
use super::fault::{Result, evaluation};
use super::format::{Spec, float, integer, padded};
use super::repr;
use super::strings::escaped;
use super::text::Text;
use super::value::{Number, Value};

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
        let shown = match kind {
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
                // Unlike in `format`, `%d` accepts floats too, and `%x` accepts only integers.
                let value = match (kind, value.number()) {
                    ('d' | 'i' | 'u', Some(Number::Float(f))) => {
                        if !f.is_finite() {
                            return evaluation("`%d` of a float that is no number");
                        }
                        Number::Int(f as i128)
                    }
                    (_, Some(number)) => number,
                    _ => {
                        let of = value.of_type();
                        return evaluation(format!("`%{kind}` needs a number, not {of}"));
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
        let shown = match text.is_markup() {
            true => escaped(&mut e.meter, &shown)?,
            false => shown,
        };
        templates &= shown.is_templates();
        padded(&mut e.meter, &mut out, &shown, &spec)?;
    }
    // Arguments that can be looked up by a key need not be used.
    let keys = matches!(
        args,
        Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_)
    );
    if !named && !keys && next.next().is_some() {
        return evaluation("not all arguments are used by the format");
    }
    e.meter.write(&mut out, rest)?;
    Ok(Text::of(out, templates).marked(text.is_markup()))
}
