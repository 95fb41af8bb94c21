//! Filters of one value: texts, numbers, JSON. Filters of sequences are in `sequences`.

use super::arguments::{
    Arguments, count, flag, given, integer_or, number, required, soft_text, text,
};
use super::evaluator::Evaluator;
use super::fault::{Result, evaluation, unsupported};
use super::repr::{self, Json};
use super::strings::{cased, escaped, justified, lines_of, replace, strip};
use super::text::{Text, extend, room, short};
use super::value::{Number, Value, View};
use super::{lookup, names, ops, percent, sequences};
use crate::chat::python;

impl Evaluator<'_, '_> {
    /// `value | name(args)`
    pub(super) fn filter(&mut self, name: &str, value: Value, args: Arguments) -> Result<Value> {
        if !names::is_filter(name) {
            return evaluation(format!("there is no filter `{name}`"));
        }
        if let Some(result) = sequences::apply(self, name, &value, &args) {
            return result;
        }
        match name {
            "default" | "d" => {
                let [default, boolean] = args.bind(name, ["default_value", "boolean"])?;
                let missing =
                    matches!(value, Value::Undefined(_)) || (flag(boolean) && !value.truth());
                Ok(match missing {
                    true => default.unwrap_or_else(|| Value::Text(short(""))),
                    false => value,
                })
            }
            "tojson" => tojson(self, &value, args),
            "abs" | "int" | "float" | "round" | "filesizeformat" => {
                numeric(self, name, &value, args)
            }
            "attr" => {
                let [attr] = args.bind(name, ["name"])?;
                let attr = text(&required(attr, name, "name")?, "the attribute")?;
                match value {
                    // This looks for attributes only, not for elements.
                    Value::Dict(_) if names::method(&value, attr.as_str()).is_none() => {
                        Ok(Value::undefined("a dict has no such attribute"))
                    }
                    value => lookup::attr(self, &value, &attr),
                }
            }
            "items" => {
                args.none(name)?;
                let pairs = match &value {
                    Value::Dict(dict) => self.elements(&Value::View(dict.clone(), View::Items))?,
                    Value::Undefined(_) => Vec::new(),
                    other => {
                        let of = other.of_type();
                        return evaluation(format!("`items` needs a dict, not {of}"));
                    }
                };
                self.generator(pairs)
            }
            _ => textual(self, name, value, args),
        }
    }
}

fn textual(e: &mut Evaluator<'_, '_>, name: &str, value: Value, args: Arguments) -> Result<Value> {
    match name {
        "indent" => return indent(e, &text(&value, "what is filtered")?, args),
        "truncate" => return truncate(e, &value, args),
        _ => {}
    }
    let of = soft_text(&mut e.meter, &value)?;
    let is_markup = of.is_markup();
    Ok(Value::Text(match name {
        "string" | "safe" => {
            args.none(name)?;
            of.marked(is_markup || name == "safe")
        }
        "trim" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = given(chars).map(|c| text(&c, "the argument")).transpose()?;
            strip(&mut e.meter, &of, chars.as_ref(), (true, true))?
        }
        "upper" | "lower" | "capitalize" => {
            args.none(name)?;
            cased(&mut e.meter, &of, name)?
        }
        "title" => {
            args.none(name)?;
            title(e, &of)?.marked(false)
        }
        "center" => {
            let [width] = args.bind(name, ["width"])?;
            let width = count(integer_or(width, "width", 80)?);
            let text = justified(&mut e.meter, &of, width, ' ', name)?;
            of.derived(text, &[])
        }
        "replace" => {
            let [old, new, n] = args.bind(name, ["old", "new", "count"])?;
            let old = soft_text(&mut e.meter, &required(old, name, "old")?)?;
            let new = soft_text(&mut e.meter, &required(new, name, "new")?)?;
            let n = integer_or(given(n), "count", -1)?;
            e.meter.look_at(of.as_str().len())?;
            replace(&mut e.meter, &of, &old, &new, n)?.marked(false)
        }
        "format" => {
            let args = match args.keyword.is_empty() {
                true => Value::tuple(args.positional)?,
                false if args.positional.is_empty() => {
                    let pairs = args.keyword.into_iter();
                    let pairs = pairs.map(|(key, value)| (Value::Text(key), value));
                    Value::dict(&mut e.meter, pairs.collect())?
                }
                false => return evaluation("`format` takes arguments by position or by name"),
            };
            percent::percent(e, &of, &args)?
        }
        "e" | "escape" | "forceescape" => {
            args.none(name)?;
            let of = of.marked(is_markup && name != "forceescape");
            escaped(&mut e.meter, &of)?
        }
        "wordcount" => {
            args.none(name)?;
            e.meter.look_at(of.as_str().len())?;
            let words = of.as_str();
            let words = words.split(|c: char| !(python::is_alnum(c) || c == '_'));
            return Ok(Value::Int(
                words.filter(|word| !word.is_empty()).count() as i128
            ));
        }
        _ => return unsupported(format!("the filter `{name}` is not supported")),
    }))
}

/// Capitalises words. A word begins after white space and after any of `-({[<`.
fn title(e: &mut Evaluator<'_, '_>, of: &Text) -> Result<Text> {
    let s = of.as_str();
    e.meter.make(s.len().saturating_mul(3))?;
    let mut out = room(s.len())?;
    let (mut begins, mut rest) = (true, 0);
    for (at, c) in s.char_indices() {
        let between = python::is_whitespace(c) || "-({[<".contains(c);
        match begins || between {
            true => {
                extend(&mut out, c.to_uppercase())?;
                rest = at + c.len_utf8();
            }
            // jinja2 splits off a word's first letter and calls `str.lower()` on the rest alone.
            false => extend(&mut out, python::lower(&s[rest..], at - rest, c))?,
        }
        begins = between;
    }
    Ok(of.derived(out, &[]))
}

fn indent(e: &mut Evaluator<'_, '_>, of: &Text, args: Arguments) -> Result<Value> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let (first, blank) = (flag(first), flag(blank));
    let width = match width {
        Some(Value::Text(width)) => width,
        width => {
            let n = count(integer_or(width, "width", 4)?);
            let mut spaces = String::new();
            e.meter.fill(&mut spaces, ' ', n)?;
            Text::of(spaces, true)
        }
    };
    e.meter.look_at(of.as_str().len())?;
    let mut with_end = String::new();
    e.meter.write(&mut with_end, of.as_str())?;
    e.meter.write(&mut with_end, "\n")?;
    let mut out = String::new();
    for (i, (line, _)) in lines_of(&with_end).enumerate() {
        if i > 0 {
            e.meter.write(&mut out, "\n")?;
        }
        let indented = if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if indented {
            e.meter.write(&mut out, width.as_str())?;
        }
        e.meter.write(&mut out, line)?;
    }
    Ok(Value::Text(of.derived(out, &[&width])))
}

fn truncate(e: &mut Evaluator<'_, '_>, value: &Value, args: Arguments) -> Result<Value> {
    let names = ["length", "killwords", "end", "leeway"];
    let [length, kill, end, leeway] = args.bind("truncate", names)?;
    let length = integer_or(length, "length", 255)?;
    let leeway = integer_or(given(leeway), "leeway", 5)?;
    let end = match end {
        Some(end) => text(&end, "end")?,
        None => short("..."),
    };
    let ending = end.chars(&mut e.meter)?;
    if length < ending as i128 || leeway < 0 {
        return evaluation("`truncate` to less than its end");
    }
    // jinja2 calls len() first: a short enough non-string is returned as it is.
    let Value::Text(of) = value else {
        let source = e.iterate(value)?;
        return match e.known_length(&source) {
            Some(n) if n as i128 <= length.saturating_add(leeway) => Ok(value.clone()),
            _ => evaluation("`truncate` of what is no text"),
        };
    };
    if of.chars(&mut e.meter)? as i128 <= length.saturating_add(leeway) {
        return Ok(Value::Text(of.clone()));
    }
    let to = of.byte_of(&mut e.meter, count(length) - ending)?;
    let mut kept = &of.as_str()[..to];
    if !flag(kill) {
        kept = kept.rsplit_once(' ').map_or(kept, |(before, _)| before);
    }
    let kept = of.part(&mut e.meter, kept)?;
    let (kept, end) = (Value::Text(kept), Value::Text(end));
    ops::arithmetic(e, super::ast::Op::Add, &kept, &end)
}

fn tojson(e: &mut Evaluator<'_, '_>, value: &Value, args: Arguments) -> Result<Value> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    let [ascii, indent, separators, sort] = args.bind("tojson", names)?;
    let indent = match given(indent) {
        None => None,
        Some(Value::Text(indent)) => Some(indent),
        Some(indent) => {
            let n = integer_or(Some(indent), "indent", 0)?;
            let mut spaces = String::new();
            e.meter.fill(&mut spaces, ' ', count(n))?;
            Some(Text::of(spaces, true))
        }
    };
    let (comma, colon) = match given(separators) {
        None if indent.is_some() => (short(","), short(": ")),
        None => (short(", "), short(": ")),
        Some(pair) => {
            let mut pair = e.elements(&pair)?.into_iter();
            match (pair.next(), pair.next(), pair.next()) {
                (Some(comma), Some(colon), None) => {
                    (text(&comma, "a separator")?, text(&colon, "a separator")?)
                }
                _ => return evaluation("`separators` must be two texts"),
            }
        }
    };
    let options = Json {
        indent,
        comma,
        colon,
        ascii: flag(ascii),
        sort: flag(sort),
    };
    Ok(Value::Text(repr::json(&mut e.meter, value, &options)?))
}

fn numeric(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<Value> {
    if let Value::Undefined(missing) = value
        && name != "round"
    {
        return evaluation(missing.sentence());
    }
    match name {
        "abs" => {
            args.none(name)?;
            match number(value, "what is filtered")? {
                Number::Float(f) => Ok(Value::Float(f.abs())),
                Number::Int(i) if i < 0 => ops::negate(&Value::Int(i)),
                Number::Int(i) => Ok(Value::Int(i)),
            }
        }
        "int" => {
            let [default, base] = args.bind(name, ["default", "base"])?;
            let base = integer_or(base, "base", 10)?;
            let found = match value {
                Value::Text(text) => {
                    let text = text.as_str();
                    e.meter.look_at(text.len())?;
                    match parse_int(text, base)? {
                        None => whole(parse_float(text)?.filter(|f| f.is_finite()))?,
                        found => found,
                    }
                }
                value => match value.number() {
                    Some(Number::Int(i)) => Some(i),
                    Some(Number::Float(f)) => whole(Some(f).filter(|f| !f.is_nan()))?,
                    None => None,
                },
            };
            let found = found.map(Value::Int).or(default);
            Ok(found.unwrap_or(Value::Int(0)))
        }
        "float" => {
            let [default] = args.bind(name, ["default"])?;
            let found = match value {
                Value::Text(text) => {
                    e.meter.look_at(text.as_str().len())?;
                    parse_float(text.as_str())?
                }
                value => value.number().map(Number::float),
            };
            Ok(found
                .map(Value::Float)
                .or(default)
                .unwrap_or(Value::Float(0.0)))
        }
        "round" => round(value, args),
        _ => unsupported(format!("the filter `{name}` is not supported")),
    }
}

/// The integer part of a float.
fn whole(f: Option<f64>) -> Result<Option<i128>> {
    match f {
        Some(f) if f.abs() < -(i128::MIN as f64) => Ok(Some(f as i128)),
        Some(_) => ops::too_large(),
        None => Ok(None),
    }
}

/// Python's `int(text, base)`; `None` if that raises an error.
fn parse_int(text: &str, base: i128) -> Result<Option<i128>> {
    let text = text.trim_matches(python::is_whitespace);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = |mark: &str| {
        let lower = digits.get(..2)?.to_ascii_lowercase();
        let rest = (lower == mark).then(|| &digits[2..])?;
        Some(rest.strip_prefix('_').unwrap_or(rest))
    };
    let (base, digits) = match base {
        16 => (16, prefixed("0x").unwrap_or(digits)),
        8 => (8, prefixed("0o").unwrap_or(digits)),
        2 => (2, prefixed("0b").unwrap_or(digits)),
        0 => match (prefixed("0x"), prefixed("0o"), prefixed("0b")) {
            (Some(digits), ..) => (16, digits),
            (_, Some(digits), _) => (8, digits),
            (.., Some(digits)) => (2, digits),
            // As in Python's source code, in which 010 is an error.
            _ if digits.starts_with('0') && digits.contains(|c| !matches!(c, '0' | '_')) => {
                return Ok(None);
            }
            _ => (10, digits),
        },
        3..=36 => (base as u32, digits),
        _ => return Ok(None),
    };
    let mut parts = digits.split('_');
    let fine = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_digit(base));
    if !parts.all(fine) {
        return Ok(None);
    }
    let mut value: i128 = 0;
    for digit in digits.chars().filter_map(|c| c.to_digit(base)) {
        let digit = i128::from(digit);
        let next = value.checked_mul(base.into());
        let next = next.and_then(|value| match negative {
            true => value.checked_sub(digit),
            false => value.checked_add(digit),
        });
        match next {
            Some(next) => value = next,
            None => return ops::too_large(),
        }
    }
    Ok(Some(value))
}

/// Python's `float(text)`; `None` if that raises an error.
fn parse_float(text: &str) -> Result<Option<f64>> {
    let text = text.trim_matches(python::is_whitespace);
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let underscores = (0..bytes.len()).filter(|&at| bytes[at] == b'_');
    for at in underscores {
        if at == 0 || !digit(at - 1) || !digit(at + 1) {
            return Ok(None);
        }
    }
    if !text.contains('_') {
        return Ok(text.parse().ok());
    }
    let mut digits = room(text.len())?;
    extend(&mut digits, text.chars().filter(|&c| c != '_'))?;
    Ok(digits.parse().ok())
}

fn round(value: &Value, args: Arguments) -> Result<Value> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    // 1,100 digits are enough for any float, and for any i128.
    let digits = integer_or(precision, "precision", 0)?.clamp(-1100, 1100);
    let method = match method {
        Some(method) => text(&method, "method")?,
        None => short("common"),
    };
    let value = number(value, "what is rounded")?;
    let scale = |digits: i128| 10f64.powi(digits.clamp(-400, 400) as i32);
    match (method.as_str(), value) {
        ("common", Number::Int(i)) if digits >= 0 => Ok(Value::Int(i)),
        ("common", Number::Int(i)) => {
            let Some(unit) = 10i128.checked_pow(digits.unsigned_abs() as u32) else {
                return Ok(Value::Int(0));
            };
            let (low, rest) = (i.div_euclid(unit), i.rem_euclid(unit));
            let up = rest > unit - rest || (rest == unit - rest && low % 2 != 0);
            match (low + i128::from(up)).checked_mul(unit) {
                Some(rounded) => Ok(Value::Int(rounded)),
                None => ops::too_large(),
            }
        }
        ("common", Number::Float(f)) if digits >= 0 => {
            let exact = format!("{f:.*}", digits as usize);
            Ok(Value::Float(exact.parse().unwrap_or(f)))
        }
        ("common", Number::Float(f)) => {
            let unit = scale(-digits);
            Ok(Value::Float(match (f.is_finite(), unit.is_finite()) {
                (false, _) => f,
                (true, false) => 0.0 * f,
                (true, true) => (f / unit).round_ties_even() * unit,
            }))
        }
        ("ceil" | "floor", value) => {
            let scaled = value.float() * scale(digits);
            let whole = match method.as_str() {
                "ceil" => scaled.ceil(),
                _ => scaled.floor(),
            };
            if !whole.is_finite() {
                return evaluation("`round` of a float that is no number");
            }
            Ok(Value::Float(whole / scale(digits)))
        }
        _ => evaluation("the method of `round` must be common, ceil or floor"),
    }
}
