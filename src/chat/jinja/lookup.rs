//! Attributes, elements and slices of values.

use super::evaluator::Evaluator;
use super::fault::{Result, evaluation};
use super::text::{Builder, Text};
use super::value::{Missing, Number, Value};
use super::{names, repr};
use std::rc::Rc;

/// `ns.name = value`
pub fn set_attr(
    e: &mut Evaluator<'_, '_>,
    namespace: usize,
    name: Text,
    value: Value,
) -> Result<()> {
    if name.as_str().starts_with('_') {
        let name = name.as_str();
        return evaluation(format!("a namespace has no attribute `{name}`"));
    }
    let attrs = &mut e.namespaces[namespace];
    e.meter.look_through(attrs.len())?;
    match attrs
        .iter_mut()
        .find(|(other, _)| other.as_str() == name.as_str())
    {
        Some((_, old)) => {
            *old = value;
            Ok(())
        }
        None => e.meter.push(attrs, (name, value)),
    }
}

/// What a value has because of its type: methods and attributes.
fn own_attr(e: &mut Evaluator<'_, '_>, value: &Value, name: &str) -> Result<Option<Value>> {
    match value {
        Value::Undefined(missing) => return evaluation(missing.sentence()),
        Value::Namespace(id) => {
            e.meter.look_through(e.namespaces[*id].len())?;
            let attrs = e.namespaces[*id].iter();
            let mut found = attrs.filter(|(other, _)| other.as_str() == name);
            return Ok(found.next().map(|(_, value)| value.clone()));
        }
        Value::Loop(id) => return e.loop_attr(*id, name),
        Value::Tuple(seq) if seq.is_group && name == "grouper" => {
            return Ok(seq.items.first().cloned());
        }
        Value::Tuple(seq) if seq.is_group && name == "list" => {
            return Ok(seq.items.get(1).cloned());
        }
        Value::Cycler(id) if name == "current" => {
            let (items, at) = &e.cyclers[*id];
            return Ok(Some(items[*at].clone()));
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
            let is_int = !matches!(value, Value::Float(_));
            match (value.number(), name) {
                (Some(Number::Int(i)), "real" | "numerator") => return Ok(Some(Value::Int(i))),
                (_, "real") => return Ok(Some(value.clone())),
                (_, "imag") if is_int => return Ok(Some(Value::Int(0))),
                (_, "imag") => return Ok(Some(Value::Float(0.0))),
                (_, "denominator") if is_int => return Ok(Some(Value::Int(1))),
                _ => {}
            }
        }
        Value::Macro(id) if name == "name" => {
            let tree = e.tree;
            let name = tree.macros[e.macros[*id].body].name;
            return Ok(Some(match name {
                Some(name) => {
                    let name = &tree.names[name as usize];
                    Value::Text(Text::copy(&mut e.meter, name, true)?)
                }
                None => Value::None,
            }));
        }
        _ => {}
    }
    if let Some(method) = names::method(value, name) {
        e.meter.make(size_of::<Value>())?;
        return Ok(Some(Value::Method(Rc::new(value.clone()), method)));
    }
    Ok(names::changes(value, name).then(|| {
        let of = value.of_type();
        Value::undefined(format!("`{name}` of {of} changes it and is not allowed"))
    }))
}

/// `value.name`
pub fn attr(e: &mut Evaluator<'_, '_>, value: &Value, name: &Text) -> Result<Value> {
    if let Some(found) = own_attr(e, value, name.as_str())? {
        return Ok(found);
    }
    if let Value::Dict(dict) = value {
        let key = Value::Text(name.clone());
        if let Some(found) = dict.get(&mut e.meter, &key)? {
            return Ok(found.clone());
        }
    }
    Ok(no_attr(value, name))
}

fn no_attr(value: &Value, name: &Text) -> Value {
    Value::Undefined(Rc::new(Missing::Attr(value.type_name(), name.clone())))
}

/// `value[key]`
pub fn item(e: &mut Evaluator<'_, '_>, value: &Value, key: &Value) -> Result<Value> {
    let found = match (value, key, key.index()) {
        (Value::Undefined(missing), ..) => return evaluation(missing.sentence()),
        (Value::Dict(dict), Value::List(_) | Value::Dict(_), _) => {
            let _ = dict;
            None
        }
        (Value::Dict(dict), key, _) => dict.get(&mut e.meter, key)?.cloned(),
        (Value::List(seq) | Value::Tuple(seq), _, Some(i)) => {
            place(i, seq.items.len()).map(|i| seq.items[i].clone())
        }
        (Value::Range(range), _, Some(i)) => {
            place(i, range.len as usize).map(|i| range.get(i as i128))
        }
        (Value::Text(text), _, Some(i)) => {
            let chars = text.chars(&mut e.meter)?;
            match place(i, chars) {
                Some(i) => {
                    let from = text.byte_of(&mut e.meter, i)?;
                    let len = text.as_str()[from..]
                        .chars()
                        .next()
                        .map_or(0, char::len_utf8);
                    Some(Value::Text(text.slice(&mut e.meter, from, from + len)?))
                }
                None => None,
            }
        }
        _ => None,
    };
    if let Some(found) = found {
        return Ok(found);
    }
    if let Value::Text(name) = key {
        return Ok(match own_attr(e, value, name.as_str())? {
            Some(found) => found,
            None => no_attr(value, name),
        });
    }
    let key = repr::repr(&mut e.meter, key)?;
    Ok(Value::Undefined(Rc::new(Missing::Element(
        value.type_name(),
        key.as_str().chars().take(80).collect(),
    ))))
}

/// The place of index `i` in `len` elements; negative indices count from the end.
fn place(i: i128, len: usize) -> Option<usize> {
    let i = if i < 0 { i + len as i128 } else { i };
    usize::try_from(i).ok().filter(|&i| i < len)
}

/// The first index, the count, the step and the stop of a slice, as in Python's `slice.indices`.
pub fn slice_of(bounds: &[Value; 3], len: usize) -> Result<(i128, usize, i128, i128)> {
    let bound = |value: &Value| match (value, value.index()) {
        (Value::None, _) => Ok(None),
        (_, Some(i)) => Ok(Some(i)),
        _ => evaluation(format!("{} as the bound of a slice", value.of_type())),
    };
    let step = bound(&bounds[2])?.unwrap_or(1);
    if step == 0 {
        return evaluation("a slice with a step of 0");
    }
    let n = len as i128;
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |i: i128| match i < 0 {
        true => i.saturating_add(n).max(low),
        false => i.min(high),
    };
    let start = bound(&bounds[0])?.map_or(if step > 0 { low } else { high }, clamp);
    let stop = bound(&bounds[1])?.map_or(if step > 0 { high } else { low }, clamp);
    let distance = if step > 0 { stop - start } else { start - stop };
    let size = step.unsigned_abs().min(u64::MAX as u128) as i128;
    let count = if distance > 0 {
        (distance + size - 1) / size
    } else {
        0
    };
    Ok((start, count as usize, step, stop))
}

/// `value[a:b:c]`
pub fn slice(e: &mut Evaluator<'_, '_>, value: &Value, bounds: &[Value; 3]) -> Result<Value> {
    match value {
        Value::Undefined(missing) => evaluation(missing.sentence()),
        Value::List(seq) | Value::Tuple(seq) => {
            let (start, count, step, _) = slice_of(bounds, seq.items.len())?;
            let mut items = e.meter.list(count)?;
            let places = (0..count as i128).map(|i| (start + i * step) as usize);
            items.extend(places.map(|at| seq.items[at].clone()));
            match value {
                Value::List(_) => Value::list(items),
                _ => Value::tuple(items),
            }
        }
        Value::Text(text) => {
            let chars = text.chars(&mut e.meter)?;
            let (start, count, step, _) = slice_of(bounds, chars)?;
            if count == 0 {
                return Ok(Value::Text(text.slice(&mut e.meter, 0, 0)?));
            }
            if step == 1 {
                let from = text.byte_of(&mut e.meter, start as usize)?;
                let to = text.byte_of(&mut e.meter, start as usize + count)?;
                return Ok(Value::Text(text.slice(&mut e.meter, from, to)?));
            }
            let mut ends: Vec<usize> = e.meter.list(chars)?;
            ends.extend(text.as_str().char_indices().map(|(at, _)| at));
            ends.push(text.as_str().len());
            let mut parts = Builder::default();
            for i in 0..count as i128 {
                let at = (start + i * step) as usize;
                let part = text.slice(&mut e.meter, ends[at], ends[at + 1])?;
                parts.push_text(&mut e.meter, &part)?;
            }
            Ok(Value::Text(parts.finish().marked(text.is_markup())))
        }
        Value::Range(range) => {
            let (start, count, step, stop) = slice_of(bounds, range.len as usize)?;
            Ok(Value::Range(Rc::new(super::value::Range {
                start: range.place(start),
                stop: range.place(stop),
                step: range.step.saturating_mul(step),
                len: count as i128,
            })))
        }
        other => evaluation(format!("{} has no slices", other.of_type())),
    }
}
