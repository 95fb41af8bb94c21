//! Calls of methods of texts, lists and dicts. Only methods that change nothing exist.

use super::arguments::{Arguments, count, flag, given, integer, integer_or, required, text};
use super::braces;
use super::evaluator::Evaluator;
use super::fault::{Result, evaluation, unsupported};
use super::limits::Meter;
use super::lookup::slice_of;
use super::repr;
use super::strings::{cased, escaped, is_cased, is_title, justified, lines_of, replace, strip};
use super::text::{Builder, Text, short};
use super::value::{Number, Value, View, equal};
use crate::chat::python::{self, is_whitespace};

/// Calls a method that [`super::names::method`] has found.
pub fn call(
    e: &mut Evaluator<'_, '_>,
    of: &Value,
    name: &'static str,
    args: Arguments,
) -> Result<Value> {
    match of {
        Value::Text(of) => of_text(e, of, name, args),
        Value::Dict(dict) => {
            let view = match name {
                "get" => {
                    let [key, default] = args.bind("get", ["key", "default"])?;
                    let key = required(key, "get", "key")?;
                    let found = dict.get(&mut e.meter, &key)?.cloned();
                    return Ok(found.or(default).unwrap_or(Value::None));
                }
                "items" => View::Items,
                "keys" => View::Keys,
                "values" => View::Values,
                _ => {
                    args.none(name)?;
                    return Ok(of.clone());
                }
            };
            args.none(name)?;
            Ok(Value::View(dict.clone(), view))
        }
        Value::Cycler(id) => {
            args.none(name)?;
            let (items, at) = &mut e.cyclers[*id];
            if name == "reset" {
                *at = 0;
                return Ok(Value::None);
            }
            let current = items[*at].clone();
            *at = (*at + 1) % items.len();
            Ok(current)
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            args.none(name)?;
            Ok(match (of.number(), name) {
                (Some(Number::Float(f)), "is_integer") => {
                    Value::Bool(f.is_finite() && f.fract() == 0.0)
                }
                (Some(Number::Int(i)), "bit_length") => {
                    Value::Int((128 - i.unsigned_abs().leading_zeros()).into())
                }
                (Some(Number::Int(i)), "bit_count") => {
                    Value::Int(i.unsigned_abs().count_ones().into())
                }
                (Some(Number::Int(i)), _) => Value::Int(i),
                _ => of.clone(),
            })
        }
        Value::Function(_) => {
            let [keys, value] = args.bind(name, ["iterable", "value"])?;
            let value = value.unwrap_or(Value::None);
            let mut entries = Vec::new();
            for key in e.elements(&required(keys, name, "iterable")?)? {
                e.meter.push(&mut entries, (key, value.clone()))?;
            }
            Value::dict(&mut e.meter, entries)
        }
        Value::Loop(id) if name == "cycle" => e.loop_cycle(*id, args.positional),
        Value::Loop(id) => e.loop_changed(*id, args.positional),
        _ if name == "copy" => args.none(name).map(|()| of.clone()),
        _ => {
            let [wanted] = args.bind(name, ["value"])?;
            let wanted = required(wanted, name, "value")?;
            let mut source = e.iterate(of)?;
            let (mut at, mut found) = (0, 0);
            while let Some(item) = e.next(&mut source)? {
                if equal(&item, &wanted, &mut e.meter)? {
                    found += 1;
                    if name == "index" {
                        return Ok(Value::Int(at));
                    }
                }
                at += 1;
            }
            match name {
                "index" => evaluation("`index` does not find the value"),
                _ => Ok(Value::Int(found)),
            }
        }
    }
}

fn of_text(
    e: &mut Evaluator<'_, '_>,
    of: &Text,
    name: &'static str,
    args: Arguments,
) -> Result<Value> {
    let s = of.as_str();
    e.meter.look_at(s.len())?;
    let ends = |args: Arguments| args.none(name);
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"])?;
            let chars = given(chars).map(|c| text(&c, "the argument")).transpose()?;
            let sides = (name != "rstrip", name != "lstrip");
            Value::Text(strip(&mut e.meter, of, chars.as_ref(), sides)?)
        }
        "split" | "rsplit" => {
            let [sep, max] = args.bind(name, ["sep", "maxsplit"])?;
            let sep = given(sep).map(|s| text(&s, "the separator")).transpose()?;
            let max = integer_or(max, "maxsplit", -1)?;
            let max = if max < 0 { usize::MAX } else { count(max) };
            split(e, of, sep.as_ref(), max, name == "rsplit")?
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"])?;
            let keep = flag(keep);
            let mut lines = Vec::new();
            for (line, end) in lines_of(s) {
                let line = if keep { end } else { line };
                let line = Value::Text(of.part(&mut e.meter, line)?);
                push(&mut e.meter, &mut lines, line)?;
            }
            Value::list(lines)?
        }
        "replace" => {
            let [old, new, n] = args.bind(name, ["old", "new", "count"])?;
            let old = text(&required(old, name, "old")?, "what is replaced")?;
            let mut new = text(&required(new, name, "new")?, "what replaces it")?;
            if of.is_markup() {
                new = escaped(&mut e.meter, &new)?;
            }
            let n = integer_or(n, "count", -1)?;
            Value::Text(replace(&mut e.meter, of, &old, &new, n)?)
        }
        "upper" | "lower" | "title" | "capitalize" | "swapcase" | "casefold" => {
            ends(args)?;
            Value::Text(cased(&mut e.meter, of, name)?)
        }
        "startswith" | "endswith" => {
            let [what, start, end] = args.bind(name, ["prefix", "start", "end"])?;
            let part = bounded(e, of, start, end)?;
            let Some(part) = part else {
                return Ok(Value::Bool(false));
            };
            let matches = |what: &Text| match name {
                "startswith" => part.starts_with(what.as_str()),
                _ => part.ends_with(what.as_str()),
            };
            match required(what, name, "prefix")? {
                Value::Tuple(several) => {
                    let mut any = false;
                    for one in &several.items {
                        e.meter.step()?;
                        any |= matches(&text(one, "the argument")?);
                    }
                    Value::Bool(any)
                }
                one => Value::Bool(matches(&text(&one, "the argument")?)),
            }
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [what, start, end] = args.bind(name, ["sub", "start", "end"])?;
            let what = text(&required(what, name, "sub")?, "the argument")?;
            let what = what.as_str();
            let part = bounded(e, of, start, end)?;
            if name == "count" {
                let n = match (part, what.is_empty()) {
                    (None, _) => 0,
                    (Some(part), true) => part.chars().count() + 1,
                    (Some(part), false) => part.matches(what).count(),
                };
                return Ok(Value::Int(n as i128));
            }
            let found = part.and_then(|part| {
                let at = match name.starts_with('r') {
                    true => part.rfind(what),
                    false => part.find(what),
                }?;
                let from = part.as_ptr() as usize - s.as_ptr() as usize;
                Some(s[..from + at].chars().count() as i128)
            });
            match (found, name.ends_with("index")) {
                (Some(at), _) => Value::Int(at),
                (None, false) => Value::Int(-1),
                (None, true) => return evaluation("`index` does not find the text"),
            }
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"])?;
            let mut source = e.iterate(&required(items, name, "iterable")?)?;
            let mut all = Builder::default();
            let mut first = true;
            while let Some(item) = e.next(&mut source)? {
                if !std::mem::take(&mut first) {
                    all.push_text(&mut e.meter, of)?;
                }
                let item = match (of.is_markup(), &item) {
                    (true, Value::Text(item)) => escaped(&mut e.meter, item)?,
                    (true, item) => {
                        let item = repr::string(&mut e.meter, item)?;
                        escaped(&mut e.meter, &item)?
                    }
                    (false, item) => text(item, "what is joined")?,
                };
                all.push_text(&mut e.meter, &item)?;
            }
            Value::Text(all.finish().marked(of.is_markup()))
        }
        "format" => Value::Text(braces::braces(e, of, args)?),
        "zfill" => {
            let [width] = args.bind(name, ["width"])?;
            let width = integer(&required(width, name, "width")?, "width")?;
            let missing = count(width).saturating_sub(of.chars(&mut e.meter)?);
            let sign = usize::from(s.starts_with(['+', '-']));
            let mut padded = String::new();
            e.meter.write(&mut padded, &s[..sign])?;
            e.meter.fill(&mut padded, '0', missing)?;
            e.meter.write(&mut padded, &s[sign..])?;
            Value::Text(of.derived(padded, &[]))
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"])?;
            let width = integer(&required(width, name, "width")?, "width")?;
            let fill = match fill {
                Some(fill) => text(&fill, "fillchar")?,
                None => short(" "),
            };
            let mut chars = fill.as_str().chars();
            let (Some(c), None) = (chars.next(), chars.next()) else {
                return evaluation("fillchar must be one character");
            };
            let text = justified(&mut e.meter, of, count(width), c, name)?;
            Value::Text(of.derived(text, &[&fill]))
        }
        "removeprefix" | "removesuffix" => {
            let [what] = args.bind(name, ["prefix"])?;
            let what = text(&required(what, name, "prefix")?, "the argument")?;
            let rest = match name {
                "removeprefix" => s.strip_prefix(what.as_str()),
                _ => s.strip_suffix(what.as_str()),
            };
            Value::Text(of.part(&mut e.meter, rest.unwrap_or(s))?)
        }
        "partition" | "rpartition" => {
            let [sep] = args.bind(name, ["sep"])?;
            let sep = text(&required(sep, name, "sep")?, "the separator")?;
            if sep.as_str().is_empty() {
                return evaluation("the separator is empty");
            }
            let at = match name {
                "partition" => s.find(sep.as_str()),
                _ => s.rfind(sep.as_str()),
            };
            let (from, to) = match (at, name) {
                (Some(at), _) => (at, at + sep.as_str().len()),
                (None, "partition") => (s.len(), s.len()),
                (None, _) => (0, 0),
            };
            let mut parts = e.meter.list(3)?;
            for (from, to) in [(0, from), (from, to), (to, s.len())] {
                parts.push(Value::Text(of.slice(&mut e.meter, from, to)?));
            }
            Value::tuple(parts)?
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"])?;
            let size = count(integer_or(size, "tabsize", 8)?);
            let (mut out, mut column) = (String::new(), 0);
            for c in s.chars() {
                match c {
                    '\t' if size > 0 => {
                        let n = size - column % size;
                        e.meter.fill(&mut out, ' ', n)?;
                        column += n;
                    }
                    '\t' => {}
                    c => {
                        e.meter.fill(&mut out, c, 1)?;
                        column = if matches!(c, '\n' | '\r') {
                            0
                        } else {
                            column + 1
                        };
                    }
                }
            }
            Value::Text(of.derived(out, &[]))
        }
        "isupper" | "islower" => {
            ends(args)?;
            Value::Bool(is_cased(s, name == "isupper"))
        }
        "isascii" => {
            ends(args)?;
            Value::Bool(s.is_ascii())
        }
        "isprintable" => {
            ends(args)?;
            Value::Bool(s.chars().all(repr::is_printable))
        }
        "istitle" => {
            ends(args)?;
            Value::Bool(is_title(s))
        }
        "isdigit" | "isalpha" | "isalnum" | "isspace" | "isnumeric" | "isdecimal" => {
            ends(args)?;
            let is: fn(char) -> bool = match name {
                "isalpha" => python::is_alpha,
                "isalnum" => python::is_alnum,
                "isspace" => is_whitespace,
                "isnumeric" => char::is_numeric,
                "isdigit" => python::is_digit,
                _ => python::is_decimal,
            };
            Value::Bool(!s.is_empty() && s.chars().all(is))
        }
        _ => return unsupported(format!("`{name}` of a str is not supported")),
    })
}

fn push(meter: &mut Meter<'_>, list: &mut Vec<Value>, value: Value) -> Result<()> {
    meter.step()?;
    meter.make(size_of::<Text>() + 64)?;
    meter.push(list, value)
}

fn split(
    e: &mut Evaluator<'_, '_>,
    of: &Text,
    sep: Option<&Text>,
    max: usize,
    right: bool,
) -> Result<Value> {
    let s = of.as_str();
    let sep = sep.map(Text::as_str);
    if sep == Some("") {
        return evaluation("the separator is empty");
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = s;
    match (sep, right) {
        (Some(sep), false) => {
            while parts.len() < max
                && let Some((part, behind)) = rest.split_once(sep)
            {
                e.meter.push(&mut parts, part)?;
                rest = behind;
            }
            e.meter.push(&mut parts, rest)?;
        }
        (Some(sep), true) => {
            while parts.len() < max
                && let Some((before, part)) = rest.rsplit_once(sep)
            {
                e.meter.push(&mut parts, part)?;
                rest = before;
            }
            e.meter.push(&mut parts, rest)?;
        }
        (None, false) => loop {
            rest = rest.trim_start_matches(is_whitespace);
            if rest.is_empty() {
                break;
            }
            let end = match parts.len() < max {
                true => rest.find(is_whitespace).unwrap_or(rest.len()),
                false => rest.len(),
            };
            e.meter.push(&mut parts, &rest[..end])?;
            rest = &rest[end..];
        },
        (None, true) => loop {
            rest = rest.trim_end_matches(is_whitespace);
            if rest.is_empty() {
                break;
            }
            let from = match parts.len() < max {
                true => {
                    let space = rest.char_indices().rev().find(|(_, c)| is_whitespace(*c));
                    space.map_or(0, |(at, c)| at + c.len_utf8())
                }
                false => 0,
            };
            e.meter.push(&mut parts, &rest[from..])?;
            rest = &rest[..from];
        },
    }
    if right {
        parts.reverse();
    }
    let mut values = Vec::new();
    for part in parts {
        let part = Value::Text(of.part(&mut e.meter, part)?);
        push(&mut e.meter, &mut values, part)?;
    }
    Value::list(values)
}

/// The part of a text between two optional character indices; `None` if they cross.
fn bounded<'s>(
    e: &mut Evaluator<'_, '_>,
    of: &'s Text,
    start: Option<Value>,
    end: Option<Value>,
) -> Result<Option<&'s str>> {
    if start.is_none() && end.is_none() {
        return Ok(Some(of.as_str()));
    }
    let chars = of.chars(&mut e.meter)?;
    let first = start.unwrap_or(Value::None);
    if first.index().is_some_and(|first| first > chars as i128) {
        return Ok(None);
    }
    let bounds = [first, end.unwrap_or(Value::None), Value::None];
    let (from, n, _, to) = slice_of(&bounds, chars)?;
    if to < from {
        return Ok(None);
    }
    let from = from as usize;
    let (a, b) = (
        of.byte_of(&mut e.meter, from)?,
        of.byte_of(&mut e.meter, from + n)?,
    );
    Ok(Some(&of.as_str()[a..b]))
}
