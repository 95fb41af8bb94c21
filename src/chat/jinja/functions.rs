//! Calls, and the functions of the environment.

use super::arguments::{Arguments, integer, required, text};
use super::evaluator::Evaluator;
use super::fault::{Fault, Kind, Result, evaluation};
use super::limits::MAX_RANGE;
use super::text::short;
use super::value::{Range, Value};
use super::{methods, names};
use std::rc::Rc;

/// `value(args)`
pub fn call(e: &mut Evaluator<'_, '_>, value: &Value, args: Arguments) -> Result<Value> {
    match value {
        Value::Macro(id) => e.call_macro(*id, args),
        Value::Method(of, name) => methods::call(e, of, name, args),
        Value::Function(name) => function(e, name, args),
        Value::Loop(id) => {
            let [iter] = args.bind("loop", ["iterable"])?;
            e.call_loop(*id, required(iter, "loop", "iterable")?)
        }
        Value::Joiner(id) => {
            args.none("joiner")?;
            let (separator, used) = &mut e.joiners[*id];
            Ok(match std::mem::replace(used, true) {
                true => separator.clone(),
                false => Value::Text(short("")),
            })
        }
        Value::Undefined(missing) => evaluation(missing.sentence()),
        other => evaluation(format!("{} cannot be called", other.of_type())),
    }
}

fn function(e: &mut Evaluator<'_, '_>, name: &'static str, args: Arguments) -> Result<Value> {
    match name {
        "range" => range(args),
        "dict" => {
            let entries = entries(e, name, args)?;
            Value::dict(&mut e.meter, entries)
        }
        "namespace" => {
            e.meter.push(&mut e.namespaces, Vec::new())?;
            let id = e.namespaces.len() - 1;
            for (key, value) in entries(e, name, args)? {
                let Value::Text(key) = key else {
                    return evaluation("names of a namespace must be texts");
                };
                super::lookup::set_attr(e, id, key, value)?;
            }
            Ok(Value::Namespace(id))
        }
        "cycler" => {
            let Arguments {
                positional,
                keyword,
            } = args;
            if positional.is_empty() || !keyword.is_empty() {
                return evaluation("`cycler` needs something to cycle through");
            }
            e.meter.push(&mut e.cyclers, (positional, 0))?;
            Ok(Value::Cycler(e.cyclers.len() - 1))
        }
        "joiner" => {
            let [separator] = args.bind(name, ["sep"])?;
            let separator = separator.unwrap_or_else(|| Value::Text(short(", ")));
            e.meter.push(&mut e.joiners, (separator, false))?;
            Ok(Value::Joiner(e.joiners.len() - 1))
        }
        "raise_exception" => {
            let [message] = args.bind(name, ["message"])?;
            e.raise(&required(message, name, "message")?)
        }
        "strftime_now" => {
            let [format] = args.bind(name, ["format"])?;
            let format = text(&required(format, name, "format")?, "the format")?;
            e.meter.make(format.as_str().len().saturating_mul(32))?;
            let written = e.now.strftime(format.as_str())?;
            Ok(Value::Text(format.derived(written, &[])))
        }
        names::SELF => evaluation("`self` cannot be called"),
        _ => Err(Fault::at(
            0,
            Kind::Unsupported,
            format!("`{name}` is not supported in chat templates"),
        )),
    }
}

fn range(args: Arguments) -> Result<Value> {
    let given = args.positional.len();
    let [a, b, step] = args.bind("range", ["start", "stop", "step"])?;
    let a = integer(&required(a, "range", "stop")?, "a bound of `range`")?;
    let b = b.map(|b| integer(&b, "a bound of `range`")).transpose()?;
    let (start, stop) = match b {
        Some(b) if given > 1 => (a, b),
        _ => (0, a),
    };
    let step = match step {
        Some(step) => integer(&step, "the step of `range`")?,
        None => 1,
    };
    if step == 0 {
        return evaluation("the step of `range` is 0");
    }
    let distance = if step > 0 {
        stop.checked_sub(start)
    } else {
        start.checked_sub(stop)
    };
    let size = step.checked_abs().unwrap_or(i128::MAX);
    let len = distance.map(|distance| match distance > 0 {
        true => (distance - 1) / size + 1,
        false => 0,
    });
    match len {
        Some(len) if len <= MAX_RANGE => Ok(Value::Range(Rc::new(Range {
            start,
            stop,
            step,
            len,
        }))),
        _ => evaluation(format!("a `range` of more than {MAX_RANGE} elements")),
    }
}

/// The arguments of `dict(...)`, as pairs.
fn entries(e: &mut Evaluator<'_, '_>, name: &str, args: Arguments) -> Result<Vec<(Value, Value)>> {
    let mut entries = Vec::new();
    if args.positional.len() > 1 {
        return evaluation(format!("`{name}` takes one dict or list of pairs"));
    }
    match args.positional.first() {
        None => {}
        Some(Value::Dict(dict)) => {
            entries = e.meter.list(dict.entries().len())?;
            entries.extend_from_slice(dict.entries());
        }
        Some(other) => {
            for pair in e.elements(other)? {
                let mut pair = e.elements(&pair)?.into_iter();
                match (pair.next(), pair.next(), pair.next()) {
                    (Some(key), Some(value), None) => {
                        e.meter.push(&mut entries, (key, value))?;
                    }
                    _ => return evaluation(format!("`{name}` of what are no pairs")),
                }
            }
        }
    }
    for (key, value) in args.keyword {
        e.meter.push(&mut entries, (Value::Text(key), value))?;
    }
    Ok(entries)
}
