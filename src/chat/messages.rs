//! Reads messages as JSON in OpenAI's shape, and turns them into the values that templates see.

use super::jinja::{Dict, Fault, Kind, Meter, Text, Value, read_json};
use crate::{Error, Result};

/// The most bytes that messages, tools and variables may have each.
pub const MAX_JSON: usize = 16 << 20;

/// The text that transformers appends to the last content, to find the end of that content in the
/// rendered text.
pub(super) const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// The names that programs use for a message's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message of a dialog in any template's roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn<'a> {
    /// Who speaks.
    pub role: &'a str,
    /// What they say.
    pub content: &'a str,
}

/// The error for a text of the caller that is not as it must be.
#[allow(clippy::boxed_local)] // as results of this module have it
pub(super) fn wrong(name: &str, fault: Box<Fault>) -> Error {
    match fault.kind {
        Kind::Cancelled => Error::Cancelled,
        Kind::Memory => Error::refused(format!("reading {name}"), fault.bytes),
        _ => Error::invalid(name, "JSON that can be read", fault.message),
    }
}

fn shape(name: String, expected: &str, got: &Value) -> Error {
    Error::invalid(name, expected, got.of_type())
}

/// The JSON of `name` as a value.
pub(super) fn parse(meter: &mut Meter<'_>, name: &str, json: &str) -> Result<Value> {
    if json.len() > MAX_JSON {
        let expected = format!("at most {MAX_JSON} bytes");
        return Err(Error::invalid(
            name,
            expected,
            format!("{} bytes", json.len()),
        ));
    }
    read_json(meter, json).map_err(|fault| wrong(name, fault))
}

/// How a template sees messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// Keys of a message whose value is null are left out, as transformers does since 5.24.
    pub drops_nulls: bool,
    /// A content of several texts stays a list, as the caller gave it.
    pub keeps_lists: bool,
    /// [`TAG`] follows the last content.
    pub continued: bool,
}

/// Reads messages for a template. It joins contents that are lists of texts, unless the template
/// goes through them itself. It turns arguments of tool calls into objects, and gives reasoning
/// each of its names. Also returns whether there was a null to drop.
pub(super) fn read(meter: &mut Meter<'_>, json: &str, view: View) -> Result<(Value, bool)> {
    let messages = match parse(meter, "messages", json)? {
        Value::List(list) => list,
        other => return Err(shape("messages".into(), "an array", &other)),
    };
    let last = messages.items.len().checked_sub(1);
    if last.is_none() {
        return Err(Error::invalid("messages", "at least one message", "empty"));
    }
    let mut made = meter.list(messages.items.len()).map_err(fault)?;
    let mut dropped = false;
    for (i, message) in messages.items.iter().enumerate() {
        let Value::Dict(keys) = message else {
            return Err(shape(format!("messages[{i}]"), "an object", message));
        };
        let is_null = |(_, value): &(Value, Value)| matches!(value, Value::None);
        dropped |= view.drops_nulls && keys.entries().iter().any(is_null);
        let continued = view.continued && Some(i) == last;
        made.push(one(meter, i, keys, View { continued, ..view })?);
    }
    Ok((Value::list(made).map_err(fault)?, dropped))
}

fn fault(fault: Box<Fault>) -> Error {
    wrong("messages", fault)
}

fn one(meter: &mut Meter<'_>, i: usize, keys: &Dict, view: View) -> Result<Value> {
    match keys.get_text("role") {
        Some(Value::Text(_)) => {}
        Some(other) => return Err(shape(format!("messages[{i}].role"), "a string", other)),
        None => {
            let name = format!("messages[{i}].role");
            return Err(Error::invalid(name, "a string", "missing"));
        }
    }
    let reasoning = REASONING
        .iter()
        .find_map(|name| keys.get_text(name).filter(|v| !matches!(v, Value::None)));
    let mut pairs = meter
        .list(keys.entries().len() + REASONING.len())
        .map_err(fault)?;
    let key = |meter: &mut Meter<'_>, name: &str| {
        Text::copy(meter, name, false)
            .map(Value::Text)
            .map_err(fault)
    };
    for (name, value) in keys.entries() {
        let value = match name {
            Value::Text(name) if REASONING.contains(&name.as_str()) => match (value, reasoning) {
                (Value::None, Some(reasoning)) => reasoning.clone(),
                _ => value.clone(),
            },
            Value::Text(name) if name.as_str() == "content" => content(meter, i, value, view)?,
            Value::Text(name) if name.as_str() == "tool_calls" => calls(meter, i, value)?,
            _ => value.clone(),
        };
        if !view.drops_nulls || !matches!(value, Value::None) {
            pairs.push((name.clone(), value));
        }
    }
    if view.continued
        && !matches!(
            keys.get_text("content"),
            Some(Value::Text(_) | Value::List(_))
        )
    {
        let name = format!("messages[{i}].content");
        return Err(Error::invalid(name, "a text to be continued", "none"));
    }
    if let Some(reasoning) = reasoning {
        for name in REASONING {
            if keys.get_text(name).is_none() {
                pairs.push((key(meter, name)?, reasoning.clone()));
            }
        }
    }
    Value::dict(meter, pairs).map_err(fault)
}

fn content(meter: &mut Meter<'_>, i: usize, value: &Value, view: View) -> Result<Value> {
    let tag = view.continued;
    let mut text = String::new();
    match value {
        Value::Text(content) if !tag => return Ok(Value::Text(content.clone())),
        Value::Text(content) => meter.write(&mut text, content.as_str()).map_err(fault)?,
        Value::None => return Ok(Value::None),
        Value::List(parts) => {
            let mut last = None;
            for (j, part) in parts.items.iter().enumerate() {
                let name = format!("messages[{i}].content[{j}]");
                let Value::Dict(part) = part else {
                    return Err(shape(name, "an object", part));
                };
                match (part.get_text("type"), part.get_text("text")) {
                    (Some(Value::Text(kind)), Some(Value::Text(more)))
                        if kind.as_str() == "text" =>
                    {
                        meter.write(&mut text, more.as_str()).map_err(fault)?;
                        last = Some(more);
                    }
                    (Some(Value::Text(kind)), _) if kind.as_str() != "text" => {
                        let kind: String = kind.as_str().chars().take(40).collect();
                        return Err(Error::Unsupported(format!(
                            "{name} is of type {kind:?}: messages are texts here"
                        )));
                    }
                    _ => {
                        let expected = "an object with `type` \"text\" and a string `text`";
                        return Err(Error::invalid(name, expected, "another one"));
                    }
                }
            }
            match (last, parts.items.len() > 1 && view.keeps_lists) {
                (Some(last), true) if tag => return tagged(meter, &parts.items, last),
                (Some(_), true) => return Ok(value.clone()),
                _ => {}
            }
        }
        other => {
            let name = format!("messages[{i}].content");
            return Err(shape(name, "a string, null or an array of texts", other));
        }
    }
    if tag {
        meter.write(&mut text, TAG).map_err(fault)?;
    }
    Ok(Value::Text(Text::of(text, false)))
}

/// A list of texts in which [`TAG`] follows the last one.
fn tagged(meter: &mut Meter<'_>, parts: &[Value], last: &Text) -> Result<Value> {
    let mut with_tag = String::new();
    meter.write(&mut with_tag, last.as_str()).map_err(fault)?;
    meter.write(&mut with_tag, TAG).map_err(fault)?;
    let text = Text::of(with_tag, false);
    let mut made = meter.list(parts.len()).map_err(fault)?;
    made.extend_from_slice(parts);
    if let Some(part) = made.last_mut() {
        *part = replaced(meter, part, "text", |_, _| Ok(Value::Text(text)))?;
    }
    Value::list(made).map_err(fault)
}

/// Turns the `arguments` of tool calls into objects, as transformers' documentation wants them.
fn calls(meter: &mut Meter<'_>, i: usize, value: &Value) -> Result<Value> {
    let calls = match value {
        Value::List(calls) => calls,
        Value::None => return Ok(Value::None),
        other => {
            let name = format!("messages[{i}].tool_calls");
            return Err(shape(name, "an array", other));
        }
    };
    let mut made = meter.list(calls.items.len()).map_err(fault)?;
    for (j, call) in calls.items.iter().enumerate() {
        made.push(replaced(meter, call, "function", |meter, function| {
            replaced(meter, function, "arguments", |meter, arguments| {
                let Value::Text(json) = arguments else {
                    return Ok(arguments.clone());
                };
                let name = format!("messages[{i}].tool_calls[{j}].function.arguments");
                parse(meter, &name, json.as_str())
            })
        })?);
    }
    Value::list(made).map_err(fault)
}

/// A copy of an object with another value of `key`. A value that is no object or does not have the
/// key stays as it is.
fn replaced(
    meter: &mut Meter<'_>,
    object: &Value,
    key: &str,
    value: impl FnOnce(&mut Meter<'_>, &Value) -> Result<Value>,
) -> Result<Value> {
    let Value::Dict(keys) = object else {
        return Ok(object.clone());
    };
    let Some(old) = keys.get_text(key) else {
        return Ok(object.clone());
    };
    let new = value(meter, old)?;
    let mut pairs = meter.list(keys.entries().len()).map_err(fault)?;
    for (name, value) in keys.entries() {
        let is_it = matches!(name, Value::Text(name) if name.as_str() == key);
        let value = if is_it { &new } else { value };
        pairs.push((name.clone(), value.clone()));
    }
    Value::dict(meter, pairs).map_err(fault)
}

/// Turns as values for a template.
pub(super) fn of_turns(meter: &mut Meter<'_>, turns: &[Turn<'_>]) -> Result<Value> {
    let mut made = meter.list(turns.len()).map_err(fault)?;
    for turn in turns {
        let mut pairs = meter.list(2).map_err(fault)?;
        for (name, text) in [("role", turn.role), ("content", turn.content)] {
            let name = Text::copy(meter, name, false).map_err(fault)?;
            let text = Text::copy(meter, text, false).map_err(fault)?;
            pairs.push((Value::Text(name), Value::Text(text)));
        }
        made.push(Value::dict(meter, pairs).map_err(fault)?);
    }
    Value::list(made).map_err(fault)
}
