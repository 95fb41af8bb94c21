//! Tests: the names that may follow `is`.

use super::arguments::{Arguments, required};
use super::ast::Cmp;
use super::evaluator::Evaluator;
use super::fault::{Result, evaluation};
use super::value::{Value, equal};
use super::{names, ops, repr, strings};

/// Whether `value is name(args)`.
pub fn holds(
    e: &mut Evaluator<'_, '_>,
    name: &str,
    value: &Value,
    args: Arguments,
) -> Result<bool> {
    let cmp = match name {
        "==" | "eq" | "equalto" => Cmp::Eq,
        "!=" | "ne" => Cmp::Ne,
        ">" | "gt" | "greaterthan" => Cmp::Gt,
        ">=" | "ge" => Cmp::Ge,
        "<" | "lt" | "lessthan" => Cmp::Lt,
        "<=" | "le" => Cmp::Le,
        "in" => Cmp::In,
        _ => return unary(e, name, value, args),
    };
    let [other] = args.bind(name, ["b"])?;
    let other = required(other, name, "b")?;
    e.compares(cmp, value, &other)
}

fn unary(e: &mut Evaluator<'_, '_>, name: &str, value: &Value, args: Arguments) -> Result<bool> {
    if matches!(name, "divisibleby" | "sameas") {
        let [other] = args.bind(name, [if name == "sameas" { "other" } else { "num" }])?;
        let other = required(other, name, "other")?;
        return match name {
            "sameas" => same(e, value, &other),
            _ => remainder(e, value, &other, 0),
        };
    }
    args.none(name)?;
    Ok(match name {
        "odd" => return remainder(e, value, &Value::Int(2), 1),
        "even" => return remainder(e, value, &Value::Int(2), 0),
        "defined" => !matches!(value, Value::Undefined(_)),
        "undefined" => matches!(value, Value::Undefined(_)),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.number().is_some(),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Text(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
                | Value::Undefined(_)
        ),
        "iterable" => !matches!(
            value,
            Value::None
                | Value::Bool(_)
                | Value::Int(_)
                | Value::Float(_)
                | Value::Method(..)
                | Value::Function(_)
                | Value::Namespace(_)
                | Value::Macro(_)
                | Value::Cycler(_)
                | Value::Joiner(_)
        ),
        "callable" => matches!(
            value,
            Value::Method(..)
                | Value::Function(_)
                | Value::Macro(_)
                | Value::Loop(_)
                | Value::Joiner(_)
                | Value::Undefined(_)
        ),
        "escaped" => matches!(value, Value::Text(text) if text.is_markup()),
        "filter" | "test" => match value {
            Value::Text(wanted) if name == "filter" => names::is_filter(wanted.as_str()),
            Value::Text(wanted) => names::is_test(wanted.as_str()),
            _ => false,
        },
        "lower" | "upper" => {
            let text = repr::string(&mut e.meter, value)?;
            e.meter.look_at(text.as_str().len())?;
            strings::is_cased(text.as_str(), name == "upper")
        }
        _ => return evaluation(format!("there is no test `{name}`")),
    })
}

fn remainder(e: &mut Evaluator<'_, '_>, value: &Value, of: &Value, wanted: i128) -> Result<bool> {
    let rest = ops::arithmetic(e, super::ast::Op::Mod, value, of)?;
    equal(&rest, &Value::Int(wanted), &mut e.meter)
}

/// Python's `is`. For texts and numbers, Python's result depends on how they were made; here, equal
/// ones are the same.
fn same(e: &mut Evaluator<'_, '_>, a: &Value, b: &Value) -> Result<bool> {
    Ok(match (a, b) {
        (Value::Undefined(_), _) | (_, Value::Undefined(_)) => false,
        (Value::List(a), Value::List(b)) => std::rc::Rc::ptr_eq(a, b),
        (Value::Dict(a), Value::Dict(b)) => std::rc::Rc::ptr_eq(a, b),
        (a, b) => a.type_name() == b.type_name() && equal(a, b, &mut e.meter)?,
    })
}
